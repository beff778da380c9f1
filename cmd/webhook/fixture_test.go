package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/internal/testenv/loopback"
	"github.com/holdfast-dev/holdfast/internal/testenv/process"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// soon is the time limit for events that take milliseconds on an idle machine.
const soon = time.Minute

// The first argument of the test binary can make it another program: the webhook, as a
// process with real signals and without a second build, or a program that counts the
// certificate authorities that it knows.
const (
	asWebhook = "as-webhook"
	asCounter = "as-counter-of-authorities"
)

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

// memoryLimit is GOMEMLIMIT in the manifests.
const memoryLimit = "GOMEMLIMIT=200MiB"

// webhookProcess is one replica.
type webhookProcess struct {
	*process.Process
	options                  process.Options
	address, health, metrics string
}

// startWebhook starts a replica with the rights of its service account.
func startWebhook(t *testing.T, server *apiserver.Server, name string, args ...string) *webhookProcess {
	t.Helper()
	account, err := server.ServiceAccountConfig(t.Context(), "holdfast-system", "holdfast-webhook", "")
	require.NoError(t, err)
	w := &webhookProcess{address: freeAddress(t), health: freeAddress(t), metrics: freeAddress(t)}
	self, err := os.Executable()
	require.NoError(t, err)
	w.options = process.Options{
		Name: name, Path: self, LogFile: filepath.Join(t.TempDir(), "log"), Env: []string{memoryLimit},
		Args: append([]string{
			asWebhook, "--kubeconfig=" + writeKubeconfig(t, account), "--listen=" + w.address, "--health-listen=" + w.health,
			"--metrics-listen=" + w.metrics, "--log-format=text",
		}, args...),
	}
	w.start(t)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("end of the log of %s:\n%s", name, w.LogTail(60))
		}
		require.NoError(t, w.Stop(context.WithoutCancel(t.Context())))
	})
	return w
}

// start starts the process, also after it has ended, at the same addresses.
func (w *webhookProcess) start(t *testing.T) {
	t.Helper()
	var err error
	w.Process, err = process.Start(w.options)
	require.NoError(t, err)
}

// requireStopped waits until the process has ended after a SIGTERM, with success. Stop would kill
// it after 5 s, which a busy machine needs for the last reviews.
func (w *webhookProcess) requireStopped(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { return !w.Running() }, soon, 10*time.Millisecond)
	require.ErrorContains(t, w.Exited(), "exit status 0")
}

// dial connects to the port for reviews.
func (w *webhookProcess) dial(ctx context.Context) (net.Conn, error) {
	//nolint:gosec // The tests send nothing secret.
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}}
	return dialer.DialContext(ctx, "tcp", w.address)
}

func (w *webhookProcess) waitReady(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		require.True(t, w.Running(), "%v", w.Exited())
		code, _ := fetch(t, "http://"+w.health+"/readyz")
		return code == http.StatusOK
	}, soon, 50*time.Millisecond)
}

func (w *webhookProcess) fetchMetrics(t *testing.T) string {
	t.Helper()
	_, text := fetch(t, "http://"+w.metrics+"/metrics")
	return text
}

func freeAddress(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", loopback.FreePort(t))
}

func writeKubeconfig(t *testing.T, config *rest.Config) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, apiserver.WriteKubeconfig(path, config))
	return path
}

// unreachableAPI returns the kubeconfig of an API server that does not exist.
func unreachableAPI(t *testing.T) string {
	t.Helper()
	return writeKubeconfig(t, &rest.Config{Host: "http://127.0.0.1:1"})
}

// fetch returns the status and body of a response, or 0 and the error.
func fetch(t *testing.T, url string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
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

// fixture is an API server with Holdfast installed, and the replicas of one scenario. Objects stay
// after a scenario, so each has names of its own.
type fixture struct {
	*apiserver.Server
	api      client.Client
	clientCA string // the file with the authority of the API server's client certificate
	replicas []*webhookProcess
	service  *apiserver.ServiceProxy
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{}
	var configuration string
	configuration, f.clientCA = writeClientCertificate(t)
	f.Server = apiserver.NewWith(t, apiserver.Options{Args: []string{"--admission-control-config-file=" + configuration}})
	apiserver.InstallMachines(t, f.Server)
	require.NoError(t, f.Install(t.Context(), "cluster-api", "karpenter-nodeclaims"))
	objects := runtime.NewScheme()
	require.NoError(t, corev1.AddToScheme(objects))
	require.NoError(t, v1alpha1.AddToScheme(objects))
	var err error
	f.api, err = client.New(f.Admin(), client.Options{Scheme: objects})
	require.NoError(t, err)
	return f
}

// start starts a replica for each list of arguments, behind the Service of the webhook, until the
// scenario ends.
func (f *fixture) start(t *testing.T, replicaArgs ...[]string) {
	t.Helper()
	f.replicas = nil
	for i, args := range replicaArgs {
		f.replicas = append(f.replicas, startWebhook(t, f.Server, fmt.Sprint("webhook-", i), args...))
	}
	var err error
	f.service, err = f.ServeService(t.Context(), "holdfast-system", "holdfast-webhook", f.addresses()...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.service.Close()) })
}

// startReady is start, and waits until the replicas are ready.
func (f *fixture) startReady(t *testing.T, replicaArgs ...[]string) {
	t.Helper()
	f.start(t, replicaArgs...)
	for _, replica := range f.replicas {
		replica.waitReady(t)
	}
}

// addresses returns where the replicas review deletions.
func (f *fixture) addresses() []string {
	var addresses []string
	for _, replica := range f.replicas {
		addresses = append(addresses, replica.address)
	}
	return addresses
}

func (f *fixture) addNode(t *testing.T, name string, labels map[string]string) *corev1.Node {
	t.Helper()
	node, err := apiserver.RegisterNode(t.Context(), f.Admin(),
		apiserver.NodeSpec{Name: name, Labels: labels, Ready: true})
	require.NoError(t, err)
	return node
}

func etcdLabel() map[string]string {
	return map[string]string{observation.EtcdMemberLabel: observation.EtcdMemberLabelValue}
}

func (f *fixture) deleteNode(t *testing.T, node string) error {
	t.Helper()
	return f.Client().CoreV1().Nodes().Delete(t.Context(), node, metav1.DeleteOptions{})
}

// kubectlDelete deletes a node and returns what the user sees.
func (f *fixture) kubectlDelete(t *testing.T, node string) string {
	t.Helper()
	out, err := f.Kubectl(t.Context(), "delete", "node", node, "--wait=false")
	require.NoError(t, err)
	return out
}

func (f *fixture) annotate(t *testing.T, node, key, value string) error {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{key: value}}})
	require.NoError(t, err)
	_, err = f.Client().CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// breakGlass permits the deletion of the node for ten minutes.
func (f *fixture) breakGlass(t *testing.T, node *corev1.Node) {
	t.Helper()
	glass := fmt.Sprintf(`{"uid":"%s","until":"%s","reason":"the machine is gone"}`,
		node.UID, time.Now().Add(10*time.Minute).UTC().Format(time.RFC3339))
	require.NoError(t, f.annotate(t, node.Name, quorum.BreakGlassAnnotation, glass))
}

// addSilentMember adds a node with the member of a cluster whose agent never answers, so
// that a review of its deletion waits for the agent.
func (f *fixture) addSilentMember(t *testing.T, node, name string) (*corev1.Node, *v1alpha1.EtcdCluster) {
	t.Helper()
	silent := f.addNode(t, node, etcdLabel())
	cluster := &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.EtcdClusterSpec{
		Nonce: "before", Members: []v1alpha1.Binding{{
			MemberID: "a1", Node: silent.Name, NodeUID: silent.UID, Basis: v1alpha1.BasisAddress,
		}},
	}}
	require.NoError(t, f.api.Create(t.Context(), cluster))
	return silent, cluster
}

// waitForEvent returns the message of an event on the node.
func (f *fixture) waitForEvent(t *testing.T, node *corev1.Node, reason string) (message string) {
	t.Helper()
	require.Eventually(t, func() bool {
		events, err := f.Client().CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		for _, e := range events.Items {
			if e.InvolvedObject.UID == node.UID && e.Reason == reason {
				message = e.Message
				return true
			}
		}
		return false
	}, soon, 50*time.Millisecond, reason)
	return message
}

// leader returns the holder of the Lease, or an empty string.
func (f *fixture) leader(t *testing.T) string {
	t.Helper()
	lease, err := f.Client().CoordinationV1().Leases("holdfast-system").Get(t.Context(), leaseName, metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

func (f *fixture) waitForLeader(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { return f.leader(t) != "" }, soon, 50*time.Millisecond)
}
