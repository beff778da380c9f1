package plugin

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/pem"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/control/admission"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore/storetest"
	"github.com/holdfast-dev/holdfast/internal/control/review"
	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
)

// A reviewedCluster is a real API server with the manifests of Holdfast, which asks the handler and
// the reviewer of the webhook, and an etcd cluster of three members whose agents are simulated.
type reviewedCluster struct {
	*storetest.Fixture
	t      *testing.T
	server *apiserver.Server
}

// newReviewedCluster creates Nodes and members with this number. The agents have answered once.
func newReviewedCluster(t *testing.T, server *apiserver.Server, number int) *reviewedCluster {
	t.Helper()
	f := storetest.New(t, server.Admin(), number)
	t.Cleanup(func() { // The end of the fixture deletes Nodes.
		c := &reviewedCluster{t: t, server: server}
		c.changeWebhooks(context.WithoutCancel(t.Context()), func(w *admissionregistrationv1.ValidatingWebhook) {
			w.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "never", Expression: "false"}}
		})
	})
	f.CreateBound()
	f.WriteNonce("first")
	f.PublishAll("first")
	return &reviewedCluster{Fixture: f, t: t, server: server}
}

// openStore returns the store of a replica of the webhook, which writes with its account.
func (c *reviewedCluster) openStore() *clusterstore.Store {
	c.t.Helper()
	config, err := c.server.ServiceAccountConfig(c.t.Context(), "holdfast-system", "holdfast-webhook", "")
	require.NoError(c.t, err)
	webhook, err := client.New(config, client.Options{Scheme: c.Client.Scheme()})
	require.NoError(c.t, err)
	return c.OpenStore(func(o *clusterstore.Options) { o.Client, o.Reader = webhook, webhook })
}

// serveWebhook lets the API server ask the webhook until the end of the test. It does not start the
// leader, so nothing but the test changes the EtcdClusters.
func (c *reviewedCluster) serveWebhook() *httptest.Server {
	c.t.Helper()
	store := c.openStore()
	handler := admission.New(admission.Options{
		Reviewer: review.New(review.Options{Store: store}), Nodes: store.CachedNodes, Events: &record.FakeRecorder{},
		Node: func(ctx context.Context, name string) (*corev1.Node, error) {
			return c.server.Client().CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		},
		Pod: func(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
			return c.server.Client().CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		Log: slog.New(slog.NewTextHandler(c.t.Output(), nil)), Registerer: prometheus.NewRegistry(),
	})
	mux := http.NewServeMux()
	require.NoError(c.t, handler.Mount(mux))
	web := httptest.NewTLSServer(mux)
	c.t.Cleanup(web.Close)
	c.configureWebhooks(web.URL, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw}))
	return web
}

// configureWebhooks points the webhook configuration to a URL, and waits until that is in effect.
func (c *reviewedCluster) configureWebhooks(url string, ca []byte) {
	c.t.Helper()
	paths := map[string]string{
		"etcd-nodes.holdfast.dev": admission.EtcdNodePath, "other-nodes.holdfast.dev": admission.NodePath,
	}
	c.changeWebhooks(c.t.Context(), func(w *admissionregistrationv1.ValidatingWebhook) {
		if path := paths[w.Name]; path != "" {
			address := url + path
			w.ClientConfig = admissionregistrationv1.WebhookClientConfig{URL: &address, CABundle: ca}
			w.MatchConditions = nil
		}
	})
}

func (c *reviewedCluster) changeWebhooks(
	ctx context.Context, change func(*admissionregistrationv1.ValidatingWebhook),
) {
	c.t.Helper()
	configurations := c.server.Client().AdmissionregistrationV1().ValidatingWebhookConfigurations()
	configuration, err := configurations.Get(ctx, "holdfast", metav1.GetOptions{})
	require.NoError(c.t, err)
	for i := range configuration.Webhooks {
		change(&configuration.Webhooks[i])
	}
	_, err = configurations.Update(ctx, configuration, metav1.UpdateOptions{})
	require.NoError(c.t, err)
	require.NoError(c.t, c.server.WaitForPolicies(ctx))
}

// setWebhookArgs replaces the arguments in the webhook's Deployment. No pods run there.
func (c *reviewedCluster) setWebhookArgs(args string) {
	c.t.Helper()
	patch := `[{"op":"replace","path":"/spec/template/spec/containers/0/args","value":` + args + `}]`
	_, err := c.server.Client().AppsV1().Deployments("holdfast-system").Patch(c.t.Context(), "holdfast-webhook",
		types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
	require.NoError(c.t, err)
}

// withoutAgents makes a probe request that no agent answers, and returns its nonce.
func (c *reviewedCluster) withoutAgents() (nonce string) {
	nonce = rand.Text()
	c.WriteNonce(nonce)
	return nonce
}

// setHealth publishes observations in which the i-th member is healthy or not.
func (c *reviewedCluster) setHealth(i int, isHealthy bool) {
	c.t.Helper()
	c.ChangeAgents(func() {
		c.Members[i].Healthy, c.Members[i].Reason = isHealthy, ""
		if !isHealthy {
			c.Members[i].Reason = "connection refused"
		}
	})
	c.PublishAll(c.Cluster().Spec.Nonce)
}

// worker creates a Node without etcd, and deletes it after the test.
func (c *reviewedCluster) worker(t *testing.T, name string) *corev1.Node {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	require.NoError(t, c.Client.Create(t.Context(), node))
	t.Cleanup(func() { require.NoError(t, c.Client.Delete(context.WithoutCancel(t.Context()), node)) })
	return node
}

// patch applies a merge patch to a Node.
func (c *reviewedCluster) patch(node *corev1.Node, body string) {
	c.t.Helper()
	patch := client.RawPatch(types.MergePatchType, []byte(body))
	require.NoError(c.t, c.Client.Patch(c.t.Context(), node.DeepCopy(), patch))
}

// A commandResult is the result of one command line.
type commandResult struct {
	out, errOut string
	code        int
}

// run runs a command as the administrator.
func (c *reviewedCluster) run(args ...string) commandResult {
	c.t.Helper()
	return runPlugin(c.t.Context(), append([]string{"--kubeconfig=" + c.server.Kubeconfig()}, args...)...)
}

// runPlugin runs a command line.
func runPlugin(ctx context.Context, args ...string) commandResult {
	var out, errOut bytes.Buffer
	streams := Streams{In: strings.NewReader(""), Out: &out, ErrOut: &errOut}
	code := Execute(ctx, streams, "v0.1.0", args)
	return commandResult{out.String(), errOut.String(), code}
}

// requireGolden is compareOutput for an output with ages.
func requireGolden(t *testing.T, name, out string) {
	t.Helper()
	compareOutput(t, name, regexp.MustCompile(`\b\d+(?:ms|s|m)\b`).ReplaceAllString(out, "AGE"))
}
