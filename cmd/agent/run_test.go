package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/internal/control/spcapi"
	"github.com/holdfast-dev/holdfast/internal/shared/metricsserver"
	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/internal/testenv/loopback"
	"github.com/holdfast-dev/holdfast/internal/testenv/testlog"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
	"github.com/holdfast-dev/holdfast/pkg/spc"
)

// TestRun has agents at one API server, because one with the manifests takes seconds to start.
func TestRun(t *testing.T) {
	f := newFixture(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T, fixture)
	}{
		{"release", testRelease},
		{"etcd outside Kubernetes", testEtcd},
		{"etcd starts", testEtcdStart},
		{"recreated node", testRecreatedNode},
		{"SPC labels", testSPCLabels},
		{"webhook down", testWebhookDown},
		{"metrics over HTTPS", testSecureMetrics},
		{"existing nodes", testExistingNodes},
		{"replaced cordon", testReplacedCordon},
		{"released by hand", testReleasedByHand},
		{"etcd node", testHoldOfEtcdNode},
		{"endpoint and label", testEndpointAndLabel},
		{"API server paused", testPausedServer},
		{"API server restarted", testRestartedServer},
		{"dead connections", testDeadConnections},
		{"number of requests", testNumberOfRequests}, // It starts a controller.
		{"without the policy", testWithoutPolicy},    // It deletes the policy's parameter.
	} {
		f.t = t
		t.Run(test.name, func(t *testing.T) {
			f.t = t
			test.run(t, f)
		})
	}
}

func testRelease(t *testing.T, f fixture) {
	root := newHost(t, 1)
	node := f.addNode(apiserver.NodeSpec{Name: "worker-1", InternalIP: "192.0.2.1", BootID: bootID(1)})
	require.Equal(t, f.BornHeld(), node.Spec.Unschedulable)

	address := fmt.Sprintf("127.0.0.1:%d", loopback.FreePort(t))
	f.startAgent(node.Name, root, "--health-listen="+address, "--tick=10m") // An event must wake it.
	f.waitFor(node.Name, "held", func(n *corev1.Node) bool {
		return condition(n, readiness.NetworkHeld).Status == corev1.ConditionTrue
	})
	require.Contains(t, condition(f.node(node.Name), readiness.NetworkHeld).Message, "/etc/cni/net.d")

	installFlannel(t, root)
	start := time.Now()
	f.waitFor(node.Name, "released", func(n *corev1.Node) bool { return !n.Spec.Unschedulable })
	t.Logf("released %s after the last file was written", time.Since(start))
	f.waitFor(node.Name, "NetworkUnavailable is False", func(n *corev1.Node) bool {
		return condition(n, corev1.NodeNetworkUnavailable).Status == corev1.ConditionFalse
	})

	require.Equal(t, http.StatusOK, httpStatus("http://"+address+"/healthz"))
	response, err := http.Get("http://" + address + "/metrics")
	require.NoError(t, err)
	metrics, err := io.ReadAll(response.Body)
	require.NoError(t, errors.Join(err, response.Body.Close()))
	requireClean(t, string(metrics))
	for _, name := range []string{
		`holdfast_build_info{goversion="go`, "holdfast_agent_unreadable_places",
		"holdfast_agent_etcd_questions_total", "process_cpu_seconds_total",
	} {
		require.Contains(t, string(metrics), name)
	}
}

// requireClean checks the holdfast metrics against the conventions of Prometheus.
func requireClean(t *testing.T, metrics string) {
	t.Helper()
	problems, err := promlint.New(strings.NewReader(metrics)).Lint()
	require.NoError(t, err)
	for _, p := range problems {
		require.NotContains(t, p.Metric, "holdfast", p.Text)
	}
}

// testSecureMetrics checks that the port for scrapers admits only users who may get the metrics.
func testSecureMetrics(t *testing.T, f fixture) {
	root := newHost(t, 1)
	node := f.addNode(apiserver.NodeSpec{Name: "worker-7", InternalIP: "192.0.2.7", BootID: bootID(7)})
	address := fmt.Sprintf("127.0.0.1:%d", loopback.FreePort(t))
	f.startAgent(node.Name, root, "--metrics-listen="+address)
	//nolint:gosec // As a scraper does: the certificate is self-signed.
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	scrape := func(token string) (int, string) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+"/metrics", http.NoBody)
		require.NoError(t, err)
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := client.Do(request)
		if err != nil {
			return 0, err.Error()
		}
		text, err := io.ReadAll(response.Body)
		require.NoError(t, errors.Join(err, response.Body.Close()))
		return response.StatusCode, string(text)
	}
	const agent, webhook = "holdfast-agent", "holdfast-webhook"
	tokenOf := func(account string) string {
		config, err := f.ServiceAccountConfig(t.Context(), "holdfast-system", account, "")
		require.NoError(t, err)
		return config.BearerToken
	}
	account := func(name string) rbacv1.Subject {
		return rbacv1.Subject{Kind: "ServiceAccount", Namespace: "holdfast-system", Name: name}
	}
	requireStatus := func(token string, want int) {
		require.Eventually(t, func() bool {
			status, _ := scrape(token)
			return status == want
		}, soon, 500*time.Millisecond, want)
	}
	scraper := tokenOf(webhook)
	requireStatus(scraper, http.StatusServiceUnavailable) // The agent may not ask the API server yet.
	f.createRole("scraper", rbacv1.PolicyRule{NonResourceURLs: []string{metricsserver.Path}, Verbs: []string{"get"}})
	f.bindRole("scraper", account(webhook))
	f.bindRole("system:auth-delegator", account(agent))
	requireStatus(scraper, http.StatusOK)
	requireStatus(tokenOf(agent), http.StatusForbidden)
	requireStatus(scraper+"x", http.StatusUnauthorized)
	_, text := scrape(scraper)
	requireClean(t, text)
	require.Contains(t, text, "holdfast_agent_unreadable_places")
}

// httpStatus returns the status of a response, or 0 without a response.
func httpStatus(url string) int {
	response, err := http.Get(url)
	if err != nil || response.Body.Close() != nil {
		return 0
	}
	return response.StatusCode
}

func testRecreatedNode(t *testing.T, f fixture) {
	root := newHost(t, 1)
	first, kubelet, err := f.AddNode(t.Context(), apiserver.NodeSpec{Name: "worker-2", BootID: bootID(1)})
	require.NoError(t, err)
	require.NotEqual(t, types.UID(""), first.UID)
	// The token of a pod ends with its Node. An administrator's token does not.
	log := f.startAgent(first.Name, root, "--kubeconfig="+f.kubeconfig(f.Admin()))
	isHeld := func(uid types.UID) func(*corev1.Node) bool {
		return func(n *corev1.Node) bool { return n.UID == uid && isHeldNode(n) }
	}
	f.waitFor(first.Name, "held", isHeld(first.UID))
	require.NoError(t, f.Client().CoreV1().Nodes().Delete(t.Context(), first.Name, metav1.DeleteOptions{}))
	log.RequireText(t, "waiting for the node to register", soon)
	second, err := apiserver.RegisterNode(t.Context(), kubelet, apiserver.NodeSpec{Name: first.Name, BootID: bootID(2)})
	require.NoError(t, err)
	setBootID(t, root, bootID(2))
	f.waitFor(first.Name, "held again", isHeld(second.UID))
}

func testSPCLabels(t *testing.T, f fixture) {
	node := f.addNode(apiserver.NodeSpec{Name: "worker-3", InternalIP: "192.0.2.3", BootID: bootID(1)})
	log := f.startAgent(node.Name, newHost(t, 1), "--spc-inventory=holdfast-system/machines")
	log.RequireText(t, "has not been read yet", soon)

	machine := spc.Record{
		PK: 3, Cluster: 2, InstanceID: "spc2-worker-3", GroupName: "autoscaled", PrivateIP: "192.0.2.3", State: "running",
	}
	partOf := func(machine spc.Record) map[string][]byte {
		x := spc.NewIndex(&spc.Inventory{
			Organization: 1, Cluster: 2, AsOf: node.CreationTimestamp.UTC(), Records: []spc.Record{machine},
		})
		encoded, err := spcapi.Encode(x.Split([]*corev1.Node{node})[spc.PartOf(node.Name)])
		require.NoError(t, err)
		return map[string][]byte{spcapi.InventoryKey: encoded}
	}
	configMaps := f.Client().CoreV1().ConfigMaps("holdfast-system")
	published, err := configMaps.Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: spcapi.PartName("machines", node.Name)}, BinaryData: partOf(machine),
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	f.waitFor(node.Name, "labelled", func(n *corev1.Node) bool { return n.Labels[spc.InstanceIDLabel] == "spc2-worker-3" })
	f.waitFor(node.Name, "in its group", func(n *corev1.Node) bool { return n.Labels[spc.NodeGroupLabel] == "autoscaled" })

	// A failed build is not visible to autoscalers, but kubectl describe shows it.
	machine.State, machine.IsFailed = "building", true
	published.BinaryData = partOf(machine)
	_, err = configMaps.Update(t.Context(), published, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		events, err := f.Client().CoreV1().Events("").List(t.Context(), metav1.ListOptions{
			FieldSelector: "involvedObject.name=" + node.Name + ",reason=SPCMachineFailed",
		})
		return err == nil && len(events.Items) > 0
	}, soon, 50*time.Millisecond)
	description := f.kubectl("describe", "node", node.Name)
	require.Contains(t, description, "SPCMachineFailed")
	require.Contains(t, description, "holdfast.dev/spc-problem: SPC reports that its machine spc2-worker-3 (node_id 3) "+
		"has failed (state building, failed)")
}

// maxRequests limits the requests for a node from its creation to its release, because a
// cluster has many nodes:
//
//  1. watch the Node; the watch begins with the current Node,
//  2. write what is missing at first, such as the CNI configuration,
//  3. write what is missing then: flannel's subnet file,
//  4. release: the cordon, the taints and the record in one patch,
//  5. write the conditions,
//  6. create the event.
const maxRequests = 6

// testNumberOfRequests counts the agent's requests at the API server. The node lifecycle
// controller runs, as in every cluster. It may put a taint back between the two writes of
// the release and remove it later; that must cost the agent no request. The search of the disks has
// the lowest priority: on a busy machine it ends after the first write, and would cause another.
func testNumberOfRequests(t *testing.T, f fixture) {
	apiserver.RequireBornHeld(t, f.Server)
	_, err := f.StartControllers("node-lifecycle-controller")
	require.NoError(t, err)
	root := newHost(t, 9)
	node := f.addNode(apiserver.NodeSpec{Name: "worker-9", InternalIP: "192.0.2.9", BootID: bootID(9)})
	f.waitFor(node.Name, "tainted by the controller", func(n *corev1.Node) bool { return len(controllerTaints(n)) == 2 })
	f.startAgent(node.Name, root, "--tick=1s", "--data-search-interval=0")
	waitForReason := func(reason string) {
		f.waitFor(node.Name, reason, func(n *corev1.Node) bool {
			return condition(n, readiness.NetworkHeld).Reason == reason
		})
	}
	waitForReason(readiness.WaitingForCNI)
	installFlannelCNI(t, root)
	waitForReason(readiness.WaitingForFlannel)
	installFlannel(t, root)
	f.waitFor(node.Name, "released", func(n *corev1.Node) bool {
		return holdState(n) == readiness.Released && condition(n, readiness.NetworkHeld).Status == corev1.ConditionFalse
	})
	hasEvent := func() bool { return len(f.requests(node.Name, "events")) > 0 }
	require.Eventually(t, hasEvent, soon, 10*time.Millisecond, "no event")

	// The audit log has a request after its answer.
	all := f.requests(node.Name, "")
	require.Eventually(t, func() bool {
		before := len(all)
		all = f.requests(node.Name, "")
		return len(all) == before
	}, soon, 3*time.Second, "there are requests in steady state")
	var list strings.Builder
	for _, r := range all {
		fmt.Fprintf(&list, "  %s %s %s %s\n", r.Verb, r.Resource, r.Subresource, r.Name)
	}
	t.Logf("%d requests:\n%s", len(all), &list)
	require.LessOrEqual(t, len(all), maxRequests, list.String())

	f.waitFor(node.Name, "without taints", func(n *corev1.Node) bool { return len(controllerTaints(n)) == 0 })
}

// controllerTaints returns the taints that the node lifecycle controller derives from a hold.
func controllerTaints(n *corev1.Node) (keys []string) {
	for _, taint := range n.Spec.Taints {
		if taint.Key == corev1.TaintNodeUnschedulable || taint.Key == corev1.TaintNodeNetworkUnavailable {
			keys = append(keys, taint.Key)
		}
	}
	return keys
}

// requests returns the requests of a node's agent, of one resource or of all.
func (f fixture) requests(node, resource string) []apiserver.Request {
	f.t.Helper()
	all, err := f.Requests("system:serviceaccount:holdfast-system:holdfast-agent")
	require.NoError(f.t, err)
	var found []apiserver.Request
	for _, r := range all {
		if r.Node == node && (resource == "" || r.Resource == resource) {
			found = append(found, r)
		}
	}
	return found
}

func TestHealth(t *testing.T) {
	var mu sync.Mutex
	var unhealthy error
	check := func(time.Time) error { mu.Lock(); defer mu.Unlock(); return unhealthy }
	address := fmt.Sprintf("127.0.0.1:%d", loopback.FreePort(t))
	ctx, cancel := context.WithCancel(t.Context())
	first, second := make(chan error, 1), make(chan error, 1)
	serve := func(ended chan error, log io.Writer) {
		logger := slog.New(slog.NewTextHandler(log, nil))
		ports, err := newPorts(config{healthListen: address}, check, http.NotFoundHandler(), logger)
		if err != nil {
			ended <- err
			return
		}
		ended <- keepServing(ctx, ports[0])
	}
	hasStatus := func(status int) func() bool {
		return func() bool { return httpStatus("http://"+address+"/healthz") == status }
	}
	go serve(first, t.Output())
	require.Eventually(t, hasStatus(http.StatusOK), soon, 10*time.Millisecond)
	mu.Lock()
	unhealthy = errors.New("the node loop has not turned for 1m")
	mu.Unlock()
	require.True(t, hasStatus(http.StatusServiceUnavailable)())

	log := &testlog.Buffer{}
	go serve(second, log)
	log.RequireText(t, "failed to serve a port", soon)
	cancel()
	require.ErrorIs(t, <-first, context.Canceled)
	require.ErrorIs(t, <-second, context.Canceled)
}
