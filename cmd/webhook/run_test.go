package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// TestWebhook runs the scenarios that need a real API server, one after the other on the same one.
func TestWebhook(t *testing.T) {
	f := newFixture(t)
	for _, scenario := range []struct {
		name string
		run  func(*testing.T, *fixture)
	}{
		{"hold watch", testHoldWatch}, // before other Nodes are held
		{"lost Lease", testLostLease},
		{"client certificate", testClientCertificate},
		{"machines", testMachines},
		{"reviews", testReviews},
		{"slow posts", testSlowPosts},
		{"restarts", testRestarts},
		{"certificate in files", testTLSFiles}, // takes permissions away
	} {
		t.Run(scenario.name, func(t *testing.T) { scenario.run(t, f) })
	}
}

// testReviews has two replicas that publish the SPC inventory too, and stops them.
func testReviews(t *testing.T, f *fixture) {
	args := []string{"--spc-secret-dir=" + startSPC(t), "--observer-wait=5s"}
	f.startReady(t, args, args)

	// Workers can be deleted, one by one and as a collection.
	f.addNode(t, "worker-1", nil)
	require.Equal(t, "node \"worker-1\" deleted\n", f.kubectlDelete(t, "worker-1"), "there is a warning")
	for _, name := range []string{"worker-2", "worker-3"} {
		f.addNode(t, name, map[string]string{"pool": "old"})
	}
	nodes := f.Client().CoreV1().Nodes()
	deleteAll := func(selector string) error {
		return nodes.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: selector})
	}
	require.NoError(t, deleteAll("pool=old"))

	// A node with the label but without a member in any cluster cannot be decided on, so
	// it stays. A dry run has the same result.
	lost := f.addNode(t, "etcd-9", etcdLabel())
	for _, dryRun := range [][]string{nil, {metav1.DryRunAll}} {
		err := nodes.Delete(t.Context(), "etcd-9", metav1.DeleteOptions{DryRun: dryRun})
		require.ErrorContains(t, err, `admission webhook "etcd-nodes.holdfast.dev" denied the request`)
		require.ErrorContains(t, err, "etcd-9")
	}
	require.ErrorContains(t, deleteAll(observation.EtcdMemberLabel), "denied the request")
	require.Contains(t, f.waitForEvent(t, lost, "DeletionRefused"), "user kubernetes-admin may not delete this node: ")

	// Nor can k3s be made to remove its member, but that of a worker, which has none.
	const marker = "etcd.k3s.cattle.io/remove"
	require.ErrorContains(t, f.annotate(t, "etcd-9", marker, "true"),
		`admission webhook "removal-markers.holdfast.dev" denied the request`)
	require.Contains(t, f.waitForEvent(t, lost, "RemovalRefused"),
		"user kubernetes-admin may not remove the member of this node: ")
	f.addNode(t, "worker-4", nil)
	require.NoError(t, f.annotate(t, "worker-4", marker, "true"))

	// With break-glass both is possible.
	f.breakGlass(t, lost)
	require.NoError(t, f.annotate(t, "etcd-9", marker, "true"))
	require.Contains(t, f.waitForEvent(t, lost, "RemovalAllowed"),
		"user kubernetes-admin removes the member of this node with a break-glass override: ")
	require.Contains(t, f.kubectlDelete(t, "etcd-9"), "Warning: ")
	require.Contains(t, f.waitForEvent(t, lost, "DeletionAllowed"),
		"user kubernetes-admin deletes this node with a break-glass override: ")

	code, metrics := fetch(t, "http://"+f.replicas[0].metrics+"/metrics")
	require.Equal(t, http.StatusOK, code, metrics)
	require.Contains(t, metrics+f.replicas[1].fetchMetrics(t),
		`holdfast_webhook_admissions_total{path="/validate-etcd-node",reason="BreakGlass",verdict="allowed"} 1`)

	require.Contains(t, metrics, `holdfast_build_info{goversion="go`)
	require.Contains(t, metrics, "holdfast_webhook_ready 1\n")
	for _, replica := range f.replicas {
		problems, err := promlint.New(strings.NewReader(replica.fetchMetrics(t))).Lint()
		require.NoError(t, err)
		for _, p := range problems {
			require.NotContains(t, p.Metric, "holdfast", p.Text)
		}
	}

	// A second request for a Node that is already being deleted succeeds, although no
	// agent runs.
	terminating := f.addNode(t, "etcd-8", etcdLabel())
	terminating.Finalizers = []string{"example.org/wait"}
	require.NoError(t, f.api.Update(t.Context(), terminating))
	f.breakGlass(t, terminating)
	require.NoError(t, f.api.Delete(t.Context(), terminating))
	require.NoError(t, f.api.Get(t.Context(), client.ObjectKeyFromObject(terminating), terminating))
	delete(terminating.Annotations, quorum.BreakGlassAnnotation)
	require.NoError(t, f.api.Update(t.Context(), terminating))
	require.NoError(t, f.api.Delete(t.Context(), terminating))

	f.checkBreakGlassCommand(t)
	f.checkSPC(t)
	f.checkShutdown(t)
}

// checkShutdown stops both replicas during a review, each after the leader has handed over.
func (f *fixture) checkShutdown(t *testing.T) {
	t.Helper()
	f.waitForLeader(t)
	silent, cluster := f.addSilentMember(t, "silent-1", "cd")
	quick := 0
	for left := f.replicas; len(left) > 0; {
		reviewed := make(chan error, 1)
		go func() {
			reviewed <- f.deleteNode(t, silent.Name)
		}()
		var busy *webhookProcess
		require.Eventually(t, func() bool {
			for _, replica := range left {
				if strings.Contains(replica.fetchMetrics(t), "holdfast_webhook_admissions_in_flight 1") {
					busy = replica
				}
			}
			return busy != nil
		}, soon, 20*time.Millisecond)
		start := time.Now()
		require.NoError(t, syscall.Kill(busy.PID(), syscall.SIGTERM))
		require.Eventually(t, func() bool {
			code, text := fetch(t, "http://"+busy.health+"/readyz")
			return code == http.StatusServiceUnavailable && text == "the webhook is stopping\n"
		}, soon, time.Millisecond)
		// The agent answers only now. The review sees its answer, and not only at its deadline.
		err := f.answerUntilReviewed(t, cluster, silent, reviewed)
		require.ErrorContains(t, err, "would break quorum", "the running review ended without the answer of the agent")
		if time.Since(start) < 5*time.Second {
			quick++
		}
		busy.requireStopped(t)
		require.Contains(t, busy.LogTail(3), "webhook stopped")
		left = slices.DeleteFunc(left, func(replica *webhookProcess) bool { return replica == busy })
		if len(left) > 0 {
			f.waitForLeader(t)
		}
	}
	require.Positive(t, quick, "no running review got an event: its observers have 6 s")
	require.Empty(t, f.leader(t), "the leader did not give the Lease back")

	// Without a webhook, workers can be deleted, and etcd nodes cannot.
	f.addNode(t, "worker-9", nil)
	require.NoError(t, f.deleteNode(t, "worker-9"))
	require.ErrorContains(t, f.deleteNode(t, silent.Name), "failed calling webhook")
}

// answerUntilReviewed publishes an observation of a cluster with one voter for each nonce, and
// returns the result of the review.
func (f *fixture) answerUntilReviewed(
	t *testing.T, cluster *v1alpha1.EtcdCluster, node *corev1.Node, reviewed <-chan error,
) (result error) {
	t.Helper()
	require.Eventually(t, func() bool {
		c := &v1alpha1.EtcdCluster{}
		require.NoError(t, f.api.Get(t.Context(), client.ObjectKeyFromObject(cluster), c))
		o := &v1alpha1.EtcdObservation{}
		name := v1alpha1.ObservationName(v1alpha1.ClusterID(c.Name), node.Name)
		if err := f.api.Get(t.Context(), client.ObjectKey{Name: name}, o); err == nil {
			o.Observation = v1alpha1.Observation{
				Node: node.Name, NodeUID: node.UID, Nonce: c.Spec.Nonce, Time: metav1.Now(), LocalMember: "a1", Linearizable: true,
				Members: []v1alpha1.MemberStatus{{ID: "a1", Name: "etcd-1", Healthy: true}},
			}
			require.NoError(t, f.api.Update(t.Context(), o))
		} else { // The leader has not created it yet.
			require.True(t, apierrors.IsNotFound(err), "%v", err)
		}
		select {
		case result = <-reviewed:
			return true
		default:
			return false
		}
	}, soon, 20*time.Millisecond)
	return result
}

// testHoldWatch has a held node and no agent. The leader of the webhook must release the
// node.
func testHoldWatch(t *testing.T, f *fixture) {
	apiserver.RequireBornHeld(t, f.Server)
	f.startReady(t, []string{"--agent-missing-after=1s", "--stuck-hold-after=10s", "--on-stuck-hold=release"})
	f.waitForLeader(t)
	node, _, err := f.AddNode(t.Context(), apiserver.NodeSpec{Name: "n1", Ready: true})
	require.NoError(t, err)
	require.True(t, node.Spec.Unschedulable)

	require.Contains(t, f.waitForEvent(t, node, readiness.AgentMissing), "kubectl uncordon n1 && ")
	require.Contains(t, f.waitForEvent(t, node, readiness.EventGivenUp), "--on-stuck-hold=release")
	require.Eventually(t, func() bool {
		released, err := f.Client().CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		require.NoError(t, err)
		record, err := readiness.ParseRecord(released.Annotations[readiness.HoldAnnotation])
		require.NoError(t, err)
		c := readiness.FindCondition(released, corev1.NodeNetworkUnavailable)
		if c != nil && c.Status != corev1.ConditionFalse {
			return false
		}
		return !released.Spec.Unschedulable && record.State == readiness.Released && record.Reason == readiness.Overdue
	}, soon, 50*time.Millisecond)
	metrics := f.replicas[0].fetchMetrics(t)
	require.Contains(t, metrics, "holdfast_webhook_holds_given_up_total 1")
	require.Contains(t, metrics, `holdfast_webhook_holds{state="overdue"} `)
	require.Contains(t, metrics, "holdfast_webhook_born_held_switched_off_total 0")
}

func TestHealthWithoutAPIServer(t *testing.T) {
	health := freeAddress(t)
	cfg, err := parse([]string{
		"--kubeconfig=" + unreachableAPI(t), "--listen=127.0.0.1:0", "--metrics-listen=", "--health-listen=" + health,
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return run(ctx, cfg, io.Discard) })
	require.Eventually(t, func() bool {
		code, text := fetch(t, "http://"+health+"/readyz")
		return code == http.StatusServiceUnavailable && text == "waiting for the API server\n"
	}, soon, 10*time.Millisecond)
	code, _ := fetch(t, "http://"+health+"/healthz")
	require.Equal(t, http.StatusOK, code)
	cancel()
	require.NoError(t, g.Wait())
}

// TestSecureMetrics has no API server, so every token is unknown.
func TestSecureMetrics(t *testing.T) {
	address := freeAddress(t)
	cfg, err := parse([]string{
		"--kubeconfig=" + unreachableAPI(t), "--listen=127.0.0.1:0", "--metrics-listen=" + address, "--metrics-secure",
		"--health-listen=",
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return run(ctx, cfg, t.Output()) })
	//nolint:gosec // As a scraper does: the certificate is self-signed.
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	for header, want := range map[string]int{
		"": http.StatusUnauthorized, "Bearer token": http.StatusServiceUnavailable,
	} {
		require.Eventually(t, func() bool {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/metrics", http.NoBody)
			require.NoError(t, err)
			request.Header.Set("Authorization", header)
			response, err := client.Do(request)
			return err == nil && response.Body.Close() == nil && response.StatusCode == want
		}, soon, 10*time.Millisecond, header)
	}
	code, _ := fetch(t, "http://"+address+"/metrics")
	require.NotEqual(t, http.StatusOK, code)
	cancel()
	require.NoError(t, g.Wait())
}

func TestOpenPortWarning(t *testing.T) {
	for name, test := range map[string]struct {
		clientCA string
		want     bool
	}{
		"without client CA": {"", true},
		"with client CA":    {"ca.pem", false},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config{kubeconfig: unreachableAPI(t), listen: "127.0.0.1:0", clientCAFile: test.clientCA}
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // There is no API server, so run would wait.
			var log bytes.Buffer
			require.NoError(t, run(ctx, cfg, &log))
			require.Contains(t, log.String(), "webhook starting")
			if test.want {
				require.Contains(t, log.String(), "level=WARN")
				require.Contains(t, log.String(), "set --client-ca-file")
			} else {
				require.NotContains(t, log.String(), "--client-ca-file")
			}
		})
	}
}
