// Package manifests_test tests the manifests on a real API server: they install without a
// warning, each policy allows and refuses the right writes of real identities, and the
// objects agree with each other.
package manifests_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/internal/testenv/process"
)

// full is the overlay with everything that needs no other program, for Kubernetes 1.36.
const full = "overlays/born-held"

// soon limits a wait for an event that takes milliseconds on an idle machine. Such waits
// check the state every poll.
const soon, poll = 20 * time.Second, 20 * time.Millisecond

// shipped returns the documents of the base and of more files, as the files have them.
// charts.TestSameObjects compares what kustomize makes of them with the chart.
func shipped(t *testing.T, more ...string) []string {
	t.Helper()
	var documents []string
	for _, pattern := range append(more, "base/*.yaml", "base/*/*.yaml") {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			documents = append(documents, strings.Split(string(text), "\n---\n")...)
		}
	}
	return documents
}

// kustomized returns the documents that `kubectl kustomize` prints for a directory.
func kustomized(t *testing.T, dir string) []string {
	t.Helper()
	kubectl, err := process.Binary("kubectl")
	require.NoError(t, err)
	command := exec.CommandContext(t.Context(), kubectl, "kustomize", dir)
	command.Env = []string{"HOME=" + t.TempDir(), "GOGC=400"} // a quarter less CPU
	out, err := command.Output()
	require.NoError(t, err)
	return strings.Split(string(out), "\n---\n")
}

func kind(t *testing.T, document string) metav1.PartialObjectMetadata {
	t.Helper()
	var object metav1.PartialObjectMetadata
	require.NoError(t, yaml.Unmarshal([]byte(document), &object))
	return object
}

func identity(t *testing.T, document string) string {
	t.Helper()
	object := kind(t, document)
	return object.Kind + "/" + object.Name
}

func parsed[T any](t *testing.T, document string) T {
	t.Helper()
	var object T
	require.NoError(t, yaml.UnmarshalStrict([]byte(document), &object))
	return object
}

// one returns the object of a kind and name.
func one[T any](t *testing.T, documents []string, kindName, name string) T {
	t.Helper()
	for _, document := range documents {
		if identity(t, document) == kindName+"/"+name {
			return parsed[T](t, document)
		}
	}
	require.Fail(t, "not in the manifests", "%s %s", kindName, name)
	panic("unreachable")
}

func clientOf(t *testing.T, config *rest.Config) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return client
}

// as returns a client of the administrator that impersonates another user.
func as(t *testing.T, server *apiserver.Server, user rest.ImpersonationConfig) *kubernetes.Clientset {
	t.Helper()
	config := server.Admin()
	config.Impersonate = user
	return clientOf(t, config)
}

// serviceAccount returns a client with a token of a service account of Holdfast, bound to a
// node unless node is empty.
func serviceAccount(t *testing.T, server *apiserver.Server, name, node string) *kubernetes.Clientset {
	t.Helper()
	config, err := server.ServiceAccountConfig(t.Context(), "holdfast-system", name, node)
	require.NoError(t, err)
	return clientOf(t, config)
}

// unrestrictedAgent returns a client of the agent of node own with all permissions of RBAC,
// so that only a policy can refuse its requests.
func unrestrictedAgent(t *testing.T, server *apiserver.Server) *kubernetes.Clientset {
	t.Helper()
	return as(t, server, rest.ImpersonationConfig{
		UserName: "system:serviceaccount:holdfast-system:holdfast-agent", Groups: []string{"system:masters"},
		Extra: map[string][]string{"authentication.kubernetes.io/node-name": {"own"}},
	})
}

// podToken returns a client with the token that the kubelet of a node gives to the agent's
// pod there. The token is bound to the pod.
func podToken(t *testing.T, server *apiserver.Server, node string) *kubernetes.Clientset {
	t.Helper()
	const account = "holdfast-agent"
	client := server.Client().CoreV1()
	pod, err := client.Pods("holdfast-system").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: account + "-"},
		Spec: corev1.PodSpec{
			NodeName: node, ServiceAccountName: account, Containers: []corev1.Container{{Name: "agent", Image: account}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	accounts := client.ServiceAccounts("holdfast-system")
	made, err := accounts.CreateToken(t.Context(), account, request, metav1.CreateOptions{})
	require.NoError(t, err)
	config := rest.AnonymousClientConfig(server.Admin())
	config.BearerToken = made.Status.Token
	return clientOf(t, config)
}

// createRole creates a ClusterRole with one rule.
func createRole(t *testing.T, server *apiserver.Server, name string, rule rbacv1.PolicyRule) {
	t.Helper()
	_, err := server.Client().RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{rule},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
}

// bindRole binds a ClusterRole to a subject of kind User or Group.
func bindRole(t *testing.T, server *apiserver.Server, role, subjectKind, subject string) {
	t.Helper()
	_, err := server.Client().RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: subject + "-" + role},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: subjectKind, Name: subject}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
}

// addNodes registers Nodes, and removes them at the end of the test.
func addNodes(t *testing.T, server *apiserver.Server, names ...string) {
	t.Helper()
	for _, name := range names {
		_, _, err := server.AddNode(t.Context(), apiserver.NodeSpec{Name: name})
		require.NoError(t, err)
		t.Cleanup(func() { remove(t, server, name) })
	}
}

func remove(t *testing.T, server *apiserver.Server, node string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context()) // cleanups run after the end of the test's own context
	require.NoError(t, server.Client().CoreV1().Nodes().Delete(ctx, node, metav1.DeleteOptions{}))
}

// labels returns a patch of labels.
func labels(patch string) string { return `{"metadata":{"labels":` + patch + `}}` }

// annotations returns a patch of annotations.
func annotations(patch string) string { return `{"metadata":{"annotations":` + patch + `}}` }

// patchNode writes a merge patch to a Node as the administrator.
func patchNode(t *testing.T, server *apiserver.Server, node, patch string) {
	t.Helper()
	nodes := server.Client().CoreV1().Nodes()
	_, err := nodes.Patch(t.Context(), node, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	require.NoError(t, err)
}

// removeProtection removes the label and the announcements of a Node, as its agent does when the
// node holds no member any more.
func removeProtection(t *testing.T, server *apiserver.Server, node string) {
	t.Helper()
	patch := []byte(`{"metadata":{"labels":{"holdfast.dev/etcd-member":null},` +
		`"annotations":{"holdfast.dev/etcd":null,"holdfast.dev/etcd-unverified":null}}}`)
	agent := serviceAccount(t, server, "holdfast-agent", node).CoreV1().Nodes()
	_, err := agent.Patch(t.Context(), node, types.MergePatchType, patch, metav1.PatchOptions{})
	require.NoError(t, err)
}

// breakGlass returns a patch that sets the break-glass annotation for a Node.
func breakGlass(t *testing.T, server *apiserver.Server, node string) string {
	t.Helper()
	value, err := json.Marshal(map[string]string{
		"uid": nodeUID(t, server, node), "until": time.Now().Add(time.Hour).UTC().Format(time.RFC3339), "reason": "test",
	})
	require.NoError(t, err)
	patch, err := json.Marshal(map[string]string{"holdfast.dev/break-glass": string(value)})
	require.NoError(t, err)
	return annotations(string(patch))
}

func nodeUID(t *testing.T, server *apiserver.Server, node string) string {
	t.Helper()
	found, err := server.Client().CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
	require.NoError(t, err)
	return string(found.UID)
}

// patchDry patches a Node as a dry run, which policies evaluate as any other write. A patch of
// a subresource is a strategic merge patch, another one a merge patch.
func patchDry(
	ctx context.Context, client *kubernetes.Clientset, node, patch string, subresource ...string,
) error {
	kind := types.StrategicMergePatchType
	if len(subresource) == 0 {
		kind = types.MergePatchType
	}
	dry := metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}
	_, err := client.CoreV1().Nodes().Patch(ctx, node, kind, []byte(patch), dry, subresource...)
	return err
}

// requireVerdict checks that a write passed, if want is empty, or that a policy refused it
// with this text. Several policies may refuse one write; each is a cause.
func requireVerdict(t *testing.T, want string, err error) {
	t.Helper()
	if want == "" {
		require.NoError(t, err)
		return
	}
	require.ErrorContains(t, err, "ValidatingAdmissionPolicy")
	status := new(apierrors.StatusError)
	require.ErrorAs(t, err, &status)
	var causes []string
	for _, cause := range status.ErrStatus.Details.Causes {
		causes = append(causes, cause.Message)
	}
	require.Contains(t, strings.Join(causes, "\n"), want)
}
