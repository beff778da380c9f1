package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

const soon = 30 * time.Second

// asWebhook makes the test's own program the webhook: a real process, with real signals, without a second build.
const asWebhook = "as-webhook"

func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 1 && os.Args[1] == asWebhook:
		os.Args = os.Args[1:]
		main()
	case len(os.Args) > 1 && os.Args[1] == asCounter:
		countAuthorities()
		return
	}
	os.Exit(m.Run())
}

// replica is one process of the webhook.
type replica struct {
	*testenv.Process
	address, health, metrics string
}

// startReplica starts the webhook with the rights of its service account.
func startReplica(t *testing.T, server *testenv.APIServer, name string, args ...string) *replica {
	t.Helper()
	account, err := server.ServiceAccountConfig(t.Context(), "holdfast-system", "holdfast-webhook", "")
	require.NoError(t, err)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, testenv.WriteKubeconfig(kubeconfig, account))
	local := func() string { return fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t)) }
	r := &replica{address: local(), health: local(), metrics: local()}
	self, err := os.Executable()
	require.NoError(t, err)
	r.Process, err = testenv.StartProcess(testenv.ProcessOptions{
		Name: name, Path: self, LogFile: filepath.Join(t.TempDir(), "log"),
		Args: append([]string{
			asWebhook, "--kubeconfig=" + kubeconfig, "--listen=" + r.address, "--health-listen=" + r.health,
			"--metrics-listen=" + r.metrics, "--log-format=text",
		}, args...),
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the log of %s:\n%s", name, r.LogTail(60))
		}
		require.NoError(t, r.Stop(context.WithoutCancel(t.Context())))
	})
	return r
}

func fetch(t *testing.T, url string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	return response.StatusCode, string(body)
}

func (r *replica) waitReady(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		require.True(t, r.Running(), "%v", r.Exited())
		code, _ := fetch(t, "http://"+r.health+"/readyz")
		return code == http.StatusOK
	}, soon, 50*time.Millisecond)
}

// cluster is an API server with Holdfast installed and two replicas of the webhook behind its Service.
type cluster struct {
	*testenv.APIServer
	api      client.Client
	replicas []*replica
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{APIServer: testenv.NewInstalledAPIServer(t)}
	objects := runtime.NewScheme()
	require.NoError(t, corev1.AddToScheme(objects))
	require.NoError(t, v1alpha1.AddToScheme(objects))
	var err error
	c.api, err = client.New(c.Admin(), client.Options{Scheme: objects})
	require.NoError(t, err)
	var addresses []string
	secret := machines(t)
	for i := range 2 {
		c.replicas = append(c.replicas, startReplica(t, c.APIServer, fmt.Sprint("webhook-", i), "--spc-secret-dir="+secret, "--observer-wait=2s"))
		addresses = append(addresses, c.replicas[i].address)
	}
	proxy, err := c.ServeService(t.Context(), "holdfast-system", "holdfast-webhook", addresses...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, proxy.Close()) })
	for _, r := range c.replicas {
		r.waitReady(t)
	}
	return c
}

func (c *cluster) node(t *testing.T, name string, labels map[string]string) *corev1.Node {
	t.Helper()
	node, err := testenv.RegisterNode(t.Context(), c.Admin(), testenv.NodeSpec{Name: name, Labels: labels, Ready: true})
	require.NoError(t, err)
	return node
}

func etcdLabel() map[string]string {
	return map[string]string{protect.EtcdMemberLabel: protect.EtcdMemberLabelValue}
}

func (c *cluster) delete(t *testing.T, node string, args ...string) (string, error) {
	t.Helper()
	return c.Kubectl(t.Context(), append([]string{"delete", "node", node, "--wait=false"}, args...)...)
}

// event returns the message of an event on the node.
func (c *cluster) event(t *testing.T, node *corev1.Node, reason string) string {
	t.Helper()
	message := ""
	require.Eventually(t, func() bool {
		events, err := c.Client().CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		for _, e := range events.Items {
			if e.InvolvedObject.UID == node.UID && e.Reason == reason {
				message = e.Message
				return true
			}
		}
		return false
	}, soon, 50*time.Millisecond)
	return message
}

func (c *cluster) leader(t *testing.T) string {
	t.Helper()
	lease, err := c.Client().CoordinationV1().Leases("holdfast-system").Get(t.Context(), leaseName, metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

func TestWebhookAtAnAPIServer(t *testing.T) {
	c := newCluster(t)

	// A worker goes, alone and with others.
	c.node(t, "worker-1", nil)
	out, err := c.delete(t, "worker-1")
	require.NoError(t, err)
	require.Equal(t, "node \"worker-1\" deleted\n", out, "no warning")
	for _, name := range []string{"worker-2", "worker-3"} {
		c.node(t, name, map[string]string{"pool": "old"})
	}
	require.NoError(t, c.Client().CoreV1().Nodes().DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "pool=old"}))

	// A node with the label that no cluster has a member on is not understood, so it stays, for a dry run too.
	lost := c.node(t, "etcd-9", etcdLabel())
	for _, args := range [][]string{nil, {"--dry-run=server"}} {
		_, err = c.delete(t, "etcd-9", args...)
		require.ErrorContains(t, err, `admission webhook "etcd-nodes.holdfast.dev" denied the request`)
		require.ErrorContains(t, err, "etcd-9")
	}
	err = c.Client().CoreV1().Nodes().DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: protect.EtcdMemberLabel})
	require.ErrorContains(t, err, "denied the request")
	require.Contains(t, c.event(t, lost, "DeletionRefused"), "user kubernetes-admin may not delete this node: ")

	// Until the glass is broken.
	glass := fmt.Sprintf(`{"uid":"%s","until":"%s","reason":"the machine is gone"}`, lost.UID, time.Now().Add(10*time.Minute).UTC().Format(time.RFC3339))
	_, err = c.Kubectl(t.Context(), "annotate", "node", "etcd-9", protect.BreakGlassAnnotation+"="+glass)
	require.NoError(t, err)
	out, err = c.delete(t, "etcd-9")
	require.NoError(t, err)
	require.Contains(t, out, "Warning: ")
	require.Contains(t, c.event(t, lost, "DeletionAllowed"), "user kubernetes-admin deletes this node by breaking the glass: ")

	code, metrics := fetch(t, "http://"+c.replicas[0].metrics+"/metrics")
	require.Equal(t, http.StatusOK, code, metrics)
	_, more := fetch(t, "http://"+c.replicas[1].metrics+"/metrics")
	require.Contains(t, metrics+more, `holdfast_webhook_admissions_total{path="/validate-etcd-node",reason="BreakGlass",verdict="allowed"} 1`)

	// A node whose Node is being deleted already is let go, though nobody could be asked.
	going := c.node(t, "etcd-8", etcdLabel())
	going.Finalizers = []string{"example.org/wait"}
	require.NoError(t, c.api.Update(t.Context(), going))
	going.Annotations = map[string]string{protect.BreakGlassAnnotation: strings.Replace(glass, string(lost.UID), string(going.UID), 1)}
	require.NoError(t, c.api.Update(t.Context(), going))
	require.NoError(t, c.api.Delete(t.Context(), going))
	require.NoError(t, c.api.Get(t.Context(), client.ObjectKeyFromObject(going), going))
	delete(going.Annotations, protect.BreakGlassAnnotation)
	require.NoError(t, c.api.Update(t.Context(), going))
	require.NoError(t, c.api.Delete(t.Context(), going))

	c.tellsOfMachines(t)
	c.endsWell(t)
}

// endsWell ends both replicas while a review is under way, after the one that leads has handed over.
func (c *cluster) endsWell(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { return c.leader(t) != "" }, soon, 50*time.Millisecond)

	// A member whose agent never answers: the verdict waits for it.
	silent := c.node(t, "etcd-1", etcdLabel())
	object := &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Name: "cd"}, Spec: v1alpha1.EtcdClusterSpec{
		Nonce: "before", Members: []v1alpha1.Binding{{MemberID: "a1", Node: silent.Name, NodeUID: silent.UID}},
	}}
	require.NoError(t, c.api.Create(t.Context(), object))

	for left := c.replicas; len(left) > 0; {
		var review errgroup.Group
		review.Go(func() error {
			_, err := c.delete(t, silent.Name)
			return err
		})
		var busy *replica
		require.Eventually(t, func() bool {
			for _, r := range left {
				if _, text := fetch(t, "http://"+r.metrics+"/metrics"); strings.Contains(text, "holdfast_webhook_admissions_in_flight 1") {
					busy = r
				}
			}
			return busy != nil
		}, soon, 20*time.Millisecond)
		began := time.Now()
		require.NoError(t, busy.Stop(t.Context()))
		require.Less(t, time.Since(began), 5*time.Second)
		require.ErrorContains(t, busy.Exited(), "exit status 0")
		require.Contains(t, busy.LogTail(3), "webhook stopped")
		err := review.Wait()
		require.ErrorContains(t, err, `admission webhook "etcd-nodes.holdfast.dev" denied the request`, "a review that is under way is answered")
		require.NotContains(t, err.Error(), "cannot decide", "and judged to its end")
		left = slices.DeleteFunc(left, func(r *replica) bool { return r == busy })
		if len(left) > 0 {
			require.Eventually(t, func() bool { return c.leader(t) != "" }, soon, 50*time.Millisecond)
		}
	}
	require.Empty(t, c.leader(t), "whoever led gave the Lease back")

	// With nobody there, workers go and etcd nodes stay.
	c.node(t, "worker-9", nil)
	_, err := c.delete(t, "worker-9")
	require.NoError(t, err)
	_, err = c.delete(t, silent.Name)
	require.ErrorContains(t, err, "failed calling webhook")
}
