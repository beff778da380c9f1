package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/operator/cli"
	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// changeFixture is an API server with Holdfast's manifests and without its programs, and users
// with and without the rights of the commands.
type changeFixture struct {
	*apiserver.Server
	kubeconfigs map[string]string
}

// The users of a changeFixture.
const (
	// operator has exactly the rights that the help of the commands names.
	operator = "operator"
	// reader reads everything, and changes nothing.
	reader = "reader"
)

func newChangeFixture(t *testing.T, server *apiserver.Server) *changeFixture {
	t.Helper()
	f := &changeFixture{Server: server, kubeconfigs: map[string]string{"admin": ""}}
	f.kubeconfigs["admin"] = f.Kubeconfig()
	read := []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list"}},
		{APIGroups: []string{"holdfast.dev"}, Resources: []string{"etcdclusters"}, Verbs: []string{"get", "list"}},
	}
	f.addUser(t, reader, read)
	f.addUser(t, operator, append(read,
		rbacv1.PolicyRule{
			APIGroups: []string{""}, Resources: []string{"nodes", "nodes/status"}, Verbs: []string{"patch", "delete"},
		},
		rbacv1.PolicyRule{
			APIGroups: []string{"holdfast.dev"}, Resources: []string{"etcdclusters"}, Verbs: []string{"patch", verbBreakGlass},
		}))
	return f
}

// addUser creates a user with these rights.
func (f *changeFixture) addUser(t *testing.T, name string, rules []rbacv1.PolicyRule) {
	t.Helper()
	_, err := f.Client().RbacV1().ClusterRoles().Create(t.Context(),
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = f.Client().RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: name}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	config, err := f.User(name)
	require.NoError(t, err)
	f.kubeconfigs[name] = filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, apiserver.WriteKubeconfig(f.kubeconfigs[name], config))
	user, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	require.Eventually(t, func() bool { // the authorizer reads bindings through a watch
		return user.RESTClient().Get().AbsPath("/apis/holdfast.dev/v1alpha1/etcdclusters").Do(t.Context()).Error() == nil
	}, 20*time.Second, 20*time.Millisecond)
}

// run runs a command line as a user, and returns its exit code and everything that it printed. The
// answer is typed at a terminal; without one, the input is not a terminal.
func (f *changeFixture) run(t *testing.T, user, answer string, args ...string) (code int, out string) {
	t.Helper()
	return runTyped(t.Context(), t, answer, append([]string{"--kubeconfig=" + f.kubeconfigs[user]}, args...)...)
}

// runTyped runs a command line, and returns its exit code and everything that it printed. The lines
// are typed at a terminal; without one, the input is not a terminal.
func runTyped(ctx context.Context, t *testing.T, typed string, args ...string) (code int, out string) {
	t.Helper()
	var printed bytes.Buffer
	streams := Streams{In: strings.NewReader(""), Out: &printed, ErrOut: &printed}
	if typed != "" {
		streams.In = openTerminal(t, typed)
	}
	code = Execute(ctx, streams, "test", args)
	return code, printed.String()
}

// create creates the objects of a manifest as the administrator.
func create(t *testing.T, server *apiserver.Server, manifest string) {
	t.Helper()
	objects, err := client.New(server.Admin(), client.Options{})
	require.NoError(t, err)
	for documents := yaml.NewYAMLOrJSONDecoder(strings.NewReader(manifest), 4096); ; {
		object := &unstructured.Unstructured{}
		err := documents.Decode(object)
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
		require.NoError(t, objects.Create(t.Context(), object))
	}
}

// openTerminal opens a terminal at which a line was typed.
func openTerminal(t *testing.T, line string) *os.File {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	_, err = master.WriteString(line + "\n")
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, terminal.Close())
		require.NoError(t, master.Close())
	})
	return terminal
}

// node returns a Node as it is now.
func (f *changeFixture) node(t *testing.T, name string) *corev1.Node {
	t.Helper()
	node, err := f.Client().CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return node
}

// addOpenNode registers a Node that is in service: its first hold has ended.
func (f *changeFixture) addOpenNode(t *testing.T, name string, patches ...string) {
	t.Helper()
	_, _, err := f.AddNode(t.Context(), apiserver.NodeSpec{Name: name, Ready: true})
	require.NoError(t, err)
	f.patch(t, name, `{"metadata":{"annotations":{"holdfast.dev/hold":
		"{\"state\":\"released\",\"reason\":\"NetworkReady\"}"}},"spec":{"unschedulable":null}}`)
	f.patchConditions(t, name, []corev1.NodeCondition{
		{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: readiness.ReleasedByHoldfast},
	})
	for _, patch := range patches {
		f.patch(t, name, patch)
	}
}

// patch writes a merge patch to a Node as the administrator.
func (f *changeFixture) patch(t *testing.T, name, patch string) {
	t.Helper()
	_, err := f.Client().CoreV1().Nodes().Patch(t.Context(), name, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{})
	require.NoError(t, err)
}

// patchConditions writes conditions of a Node as the administrator.
func (f *changeFixture) patchConditions(t *testing.T, name string, conditions []corev1.NodeCondition) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": conditions}})
	require.NoError(t, err)
	_, err = f.Client().CoreV1().Nodes().Patch(t.Context(), name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	require.NoError(t, err)
}

// compareOutput compares an output with a file in testdata, without what differs between runs.
func compareOutput(t *testing.T, name, out string) {
	t.Helper()
	for pattern, word := range map[string]string{
		`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`: "UID",
		`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`:                              "TIME",
		`dial tcp [^ ]+: [^\n]+`:                                       "CONNECTION",
		`--kubeconfig='[^']+'`:                                         "--kubeconfig=FILE",
	} {
		out = regexp.MustCompile(pattern).ReplaceAllString(out, word)
	}
	file := filepath.Join("testdata", name)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		require.NoError(t, os.WriteFile(file, []byte(out), 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), out, "to accept the output: UPDATE_GOLDEN=1 go test ./internal/operator/plugin")
}

// golden runs a command as the operator, as a dry run and then with the question, and compares the
// outputs.
func (f *changeFixture) golden(t *testing.T, name string, args ...string) {
	t.Helper()
	code, script := f.run(t, operator, "", append(args, "--dry-run")...)
	require.Equal(t, cli.ExitSuccess, code, script)
	requireScript(t, script)
	code, out := f.run(t, operator, "y", args...)
	require.Equal(t, cli.ExitSuccess, code, out)
	compareOutput(t, name+".txt", script+"----\n"+out)
}

// requireScript checks that an output of --dry-run has only comments and kubectl commands.
func requireScript(t *testing.T, out string) {
	t.Helper()
	for line := range strings.Lines(out) {
		isScript := strings.HasPrefix(line, "# ") || line == "#\n" || strings.HasPrefix(line, "kubectl ")
		require.True(t, isScript, line)
	}
}
