package plugin

import (
	"bytes"
	"encoding/json"
	"fmt"
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
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/internal/cli"
	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
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

func newChangeFixture(t *testing.T) *changeFixture {
	t.Helper()
	f := &changeFixture{Server: apiserver.NewInstalled(t), kubeconfigs: map[string]string{"admin": ""}}
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
	require.Eventually(t, func() bool { // the authorizer reads bindings through a watch
		_, err := f.KubectlAs(t.Context(), f.kubeconfigs[name], "get", "etcdclusters")
		return err == nil
	}, 20*time.Second, 20*time.Millisecond)
}

// run runs a command line as a user, and returns its exit code and everything that it printed. The
// answer is typed at a terminal; without one, the input is not a terminal.
func (f *changeFixture) run(t *testing.T, user, answer string, args ...string) (code int, out string) {
	t.Helper()
	var printed bytes.Buffer
	streams := Streams{In: strings.NewReader(""), Out: &printed, ErrOut: &printed}
	if answer != "" {
		streams.In = openTerminal(t, answer)
	}
	code = Execute(t.Context(), streams, "test", append([]string{"--kubeconfig=" + f.kubeconfigs[user]}, args...))
	return code, printed.String()
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
	_, err = f.Client().CoreV1().Nodes().Patch(t.Context(), name, types.StrategicMergePatchType,
		[]byte(`{"status":{"conditions":[{"type":"NetworkUnavailable","status":"False","reason":"ReleasedByHoldfast"}]}}`),
		metav1.PatchOptions{}, "status")
	require.NoError(t, err)
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

// compareOutput compares an output with a file in testdata, without UIDs, times and ages.
func compareOutput(t *testing.T, name, out string) {
	t.Helper()
	for pattern, word := range map[string]string{
		`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`: "UID",
		`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`:                              "TIME",
		`dial tcp [^ ]+: [^\n]+`:                                       "CONNECTION",
	} {
		out = regexp.MustCompile(pattern).ReplaceAllString(out, word)
	}
	file := filepath.Join("testdata", name+".txt")
	if os.Getenv("UPDATE_GOLDEN") != "" {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(file, []byte(out), 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), out)
}

// TestChanges runs the commands that change something against one API server.
func TestChanges(t *testing.T) {
	f := newChangeFixture(t)
	t.Run("usage", func(t *testing.T) { testChangeUsage(t, f) })
	t.Run("confirmation", func(t *testing.T) { testConfirmation(t, f) })
	t.Run("rights", func(t *testing.T) { testRights(t, f) })
	t.Run("break-glass", func(t *testing.T) { testBreakGlass(t, f) })
	t.Run("hold and release", func(t *testing.T) { testHoldAndRelease(t, f) })
	t.Run("settle", func(t *testing.T) { testSettle(t, f) })
	t.Run("uninstall", func(t *testing.T) { testUninstallRights(t, f) })
	t.Run("completion", func(t *testing.T) { testNameCompletion(t, f) })
}

func testChangeUsage(t *testing.T, f *changeFixture) {
	f.addOpenNode(t, "usage-1")
	long := strings.Repeat("x", 5000)
	for name, test := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no node":         {[]string{"break-glass", "--reason=x"}, cli.ExitUsage, "name a node"},
		"two nodes":       {[]string{"release", "a", "b"}, cli.ExitUsage, `unexpected argument "b"`},
		"unknown flag":    {[]string{"hold", "usage-1", "--force"}, cli.ExitUsage, "unknown flag: --force"},
		"unknown node":    {[]string{"hold", "nowhere", "--yes"}, cli.ExitFailure, `there is no node "nowhere"; to list`},
		"no reason":       {[]string{"break-glass", "usage-1"}, cli.ExitUsage, "--reason is missing"},
		"blank reason":    {[]string{"break-glass", "usage-1", "--reason= "}, cli.ExitUsage, "--reason is missing"},
		"long reason":     {[]string{"break-glass", "usage-1", "--reason=" + long}, cli.ExitUsage, "longer than 4096 bytes"},
		"too long":        {[]string{"break-glass", "usage-1", "--reason=x", "--for=61m"}, cli.ExitUsage, "more than 1h0m0s"},
		"no time":         {[]string{"break-glass", "usage-1", "--reason=x", "--for=0s"}, cli.ExitUsage, "--for=0s is not"},
		"nothing held":    {[]string{"release", "usage-1", "--yes"}, cli.ExitFailure, "node usage-1, and it is open"},
		"no grant at all": {[]string{"settle", "usage-1", "--yes"}, cli.ExitFailure, "there is no open grant in this"},
	} {
		t.Run(name, func(t *testing.T) {
			code, out := f.run(t, operator, "", test.args...)
			require.Contains(t, out, test.want)
			require.Equal(t, test.code, code)
		})
	}
}

// testConfirmation checks that nothing is written without a yes.
func testConfirmation(t *testing.T, f *changeFixture) {
	f.addOpenNode(t, "confirm-1")
	before := f.node(t, "confirm-1").ResourceVersion
	for name, test := range map[string]struct {
		answer string
		args   []string
		code   int
		want   string
	}{
		"no terminal": {"", nil, cli.ExitUsage, "its input is not a terminal; add --yes, or --dry-run"},
		"no":          {"n", nil, cli.ExitFailure, "not confirmed; nothing was changed"},
		"enter":       {" ", nil, cli.ExitFailure, "not confirmed"},
		"dry run":     {"", []string{"--dry-run", "--yes"}, cli.ExitSuccess, "kubectl cordon confirm-1"},
	} {
		t.Run(name, func(t *testing.T) {
			code, out := f.run(t, operator, test.answer, append([]string{"hold", "confirm-1"}, test.args...)...)
			require.Contains(t, out, test.want)
			require.Equal(t, test.code, code)
			require.Equal(t, before, f.node(t, "confirm-1").ResourceVersion)
		})
	}
	code, out := f.run(t, operator, "y", "hold", "confirm-1")
	require.Equal(t, cli.ExitSuccess, code, out)
	require.Contains(t, out, "Proceed? [y/N] node confirm-1: kept closed")
	require.True(t, f.node(t, "confirm-1").Spec.Unschedulable)
}

// testRights runs the commands as a user who may only read.
func testRights(t *testing.T, f *changeFixture) {
	_, _, err := f.AddNode(t.Context(), apiserver.NodeSpec{Name: "rights-1", Ready: true})
	require.NoError(t, err)
	for name, test := range map[string]struct {
		args []string
		want []string
	}{
		"break-glass": {
			[]string{"break-glass", "rights-1", "--reason=x", "--and-delete"},
			[]string{
				"to breakglass etcdclusters.holdfast.dev; an administrator grants it: kubectl create clusterrolebinding",
				"to patch nodes", "to delete nodes",
			},
		},
		"release": {[]string{"release", "rights-1"}, []string{"to patch nodes", "to patch nodes/status"}},
		"hold":    {[]string{"hold", "rights-1"}, []string{"to patch nodes"}},
	} {
		t.Run(name, func(t *testing.T) {
			code, out := f.run(t, reader, "", append(test.args, "--yes")...)
			require.Equal(t, cli.ExitFailure, code)
			for _, want := range test.want {
				require.Contains(t, out, "you have no permission "+want)
			}
			code, out = f.run(t, reader, "", append(test.args, "--dry-run")...)
			require.Equal(t, cli.ExitSuccess, code, "the commands may be for another user")
			require.Contains(t, out, "# you have no permission "+test.want[0])
			require.Contains(t, out, "\nkubectl ")
		})
	}
}

func testBreakGlass(t *testing.T, f *changeFixture) {
	const announced = `{"metadata":{"annotations":{"holdfast.dev/etcd":"[]"}}}`
	f.addOpenNode(t, "worker-1")
	f.addOpenNode(t, "etcd-1", announced, `{"metadata":{"labels":{"holdfast.dev/etcd-member":"true"}}}`)
	f.addOpenNode(t, "etcd-2", announced)
	glassOf := func(name string) quorum.BreakGlass {
		node := f.node(t, name)
		glass, err := quorum.ParseBreakGlass(node.Annotations[quorum.BreakGlassAnnotation], node.UID, time.Now())
		require.NoError(t, err)
		return glass
	}
	for _, test := range []struct{ name, node string }{
		{"break-glass-no-reason", "worker-1"}, {"break-glass-no-answer", "etcd-1"}, {"break-glass-no-label", "etcd-2"},
	} {
		t.Run(test.name, func(t *testing.T) {
			code, out := f.run(t, operator, "",
				"break-glass", test.node, "--reason=the machine's gone", "--and-delete", "--dry-run")
			require.Equal(t, cli.ExitSuccess, code)
			compareOutput(t, test.name, out)
			requireScript(t, out)
		})
	}
	t.Run("override only", func(t *testing.T) {
		code, out := f.run(t, operator, "", "break-glass", "worker-1", "--reason= it's gone ", "--for=50m", "--yes")
		require.Equal(t, cli.ExitSuccess, code, out)
		require.Contains(t, out, "to delete it: kubectl delete node worker-1")
		glass := glassOf("worker-1")
		require.Equal(t, "it's gone", glass.Reason)
		require.WithinDuration(t, time.Now().Add(50*time.Minute), glass.Until, time.Minute)
	})
	for _, name := range []string{"etcd-1", "etcd-2"} {
		t.Run("delete "+name, func(t *testing.T) {
			code, out := f.run(t, operator, "y", "break-glass", name, "--reason=x", "--and-delete")
			require.Equal(t, cli.ExitSuccess, code, out)
			compareOutput(t, "break-glass-delete-"+name, out)
			_, err := f.Client().CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
			require.ErrorContains(t, err, "not found")
		})
	}
}

// requireScript checks that an output of --dry-run has only comments and kubectl commands.
func requireScript(t *testing.T, out string) {
	t.Helper()
	for line := range strings.Lines(out) {
		isScript := strings.HasPrefix(line, "# ") || line == "#\n" || strings.HasPrefix(line, "kubectl ")
		require.True(t, isScript, line)
	}
}

func testHoldAndRelease(t *testing.T, f *changeFixture) {
	// The policy holds this node.
	_, kubelet, err := f.AddNode(t.Context(), apiserver.NodeSpec{Name: "born-1", Ready: true})
	require.NoError(t, err)
	require.NoError(t, apiserver.Heartbeat(t.Context(), kubelet, "born-1", true))
	f.addOpenNode(t, "open-1")
	f.addOpenNode(t, "cordoned-1", `{"spec":{"unschedulable":true}}`)
	f.addOpenNode(t, "tainted-1", `{"metadata":{"annotations":{"holdfast.dev/hold":
		"{\"state\":\"held\",\"reason\":\"NewNode\",\"taint\":\"readiness.k8s.io/network\"}"}},
		"spec":{"taints":[{"key":"readiness.k8s.io/network","effect":"NoSchedule"},{"key":"mine","effect":"NoSchedule"}]}}`)
	f.addOpenNode(t, "broken-1", `{"metadata":{"annotations":{"holdfast.dev/hold":"{"}}}`)

	t.Run("foreign cordon", func(t *testing.T) {
		code, out := f.run(t, operator, "", "release", "cordoned-1", "--yes")
		require.Equal(t, cli.ExitFailure, code)
		require.Contains(t, out, "the cordon is not Holdfast's; if it may take pods: kubectl uncordon cordoned-1")
	})
	t.Run("unreadable record", func(t *testing.T) {
		code, out := f.run(t, operator, "", "release", "broken-1", "--yes")
		require.Equal(t, cli.ExitFailure, code)
		require.Contains(t, out, "kubectl annotate node broken-1 holdfast.dev/hold-")
	})
	t.Run("kept by hand", func(t *testing.T) {
		f.golden(t, "hold-held", "hold", "born-1", "--reason=it's a test")
		f.golden(t, "hold-again", "hold", "born-1", "--yes")
		f.golden(t, "hold-open", "hold", "open-1")
		node := f.node(t, "open-1")
		require.True(t, node.Spec.Unschedulable)
		require.Equal(t, "true", node.Annotations[readiness.KeepCordonedAnnotation])
		f.golden(t, "release-kept", "release", "open-1")
		node = f.node(t, "open-1")
		require.False(t, node.Spec.Unschedulable)
		require.NotContains(t, node.Annotations, readiness.KeepCordonedAnnotation)
	})
	t.Run("born held", func(t *testing.T) {
		require.True(t, f.node(t, "born-1").Spec.Unschedulable)
		f.golden(t, "release-born-held", "release", "born-1")
		node := f.node(t, "born-1")
		require.False(t, node.Spec.Unschedulable)
		requireReleasedByHand(t, node)
		// The agent records the override.
		d := readiness.Decide(node, readiness.Facts{BootID: node.Status.NodeInfo.BootID}, readiness.Policy{}, time.Now())
		require.Equal(t, readiness.Overridden, d.Record.State)
		require.Equal(t, readiness.EndedByHand, d.Record.Reason)
		require.False(t, d.Held)
	})
	t.Run("taint", func(t *testing.T) {
		f.golden(t, "release-taint", "release", "tainted-1")
		left := []corev1.Taint{{Key: "mine", Effect: corev1.TaintEffectNoSchedule}}
		require.Equal(t, left, f.node(t, "tainted-1").Spec.Taints)
	})
}

// golden runs a command as the operator, as a dry run and then with the question, and compares the
// outputs.
func (f *changeFixture) golden(t *testing.T, name string, args ...string) {
	t.Helper()
	code, script := f.run(t, operator, "", append(args, "--dry-run")...)
	require.Equal(t, cli.ExitSuccess, code, script)
	code, out := f.run(t, operator, "y", args...)
	require.Equal(t, cli.ExitSuccess, code, out)
	compareOutput(t, name, script+"----\n"+out)
}

func requireReleasedByHand(t *testing.T, node *corev1.Node) {
	t.Helper()
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeNetworkUnavailable {
			require.Equal(t, corev1.ConditionFalse, c.Status)
			require.Equal(t, readiness.ReleasedByHand, c.Reason)
			return
		}
	}
	require.Fail(t, "no condition")
}

// testSettle has no webhook that would end the grants: cmd/webhook has that test.
func testSettle(t *testing.T, f *changeFixture) {
	f.addOpenNode(t, "settle-1")
	old, young := time.Now().Add(-2*time.Hour), time.Now().Add(-time.Minute)
	grant := func(node, uid string, at time.Time) map[string]any {
		return map[string]any{
			"node": node, "nodeUID": uid, "members": []string{"a", "b"}, "user": "alice",
			"time": at.UTC().Format(time.RFC3339),
		}
	}
	f.createCluster(t, "c1", nil, grant("settle-1", string(f.node(t, "settle-1").UID), old))
	f.createCluster(t, "c2", nil, grant("settle-2", "u2", young))
	f.createCluster(t, "c3", nil, grant("settle-3", "u3", old), grant("settle-3", "u4", old))
	f.createCluster(t, "c4", map[string]string{quorum.ResolveAnnotation: "u9"}, grant("settle-4", "u5", old))
	for name, test := range map[string]struct{ user, arg, want string }{
		"unknown":     {operator, "nowhere", `open grant for "nowhere"; nodes with an open grant: settle-1, settle-2,`},
		"too young":   {operator, "settle-2", "the grant for node settle-2 is too young"},
		"several":     {operator, "c3", `"c3" has several open grants; settle them one by one`},
		"busy":        {operator, "c4", "the webhook still has to settle another grant of etcd cluster c4 (node UID u9)"},
		"no right":    {reader, "c1", "you have no permission to patch etcdclusters.holdfast.dev"},
		"no terminal": {operator, "c1", "its input is not a terminal"},
	} {
		t.Run(name, func(t *testing.T) {
			args := []string{"settle", test.arg}
			if test.user == reader {
				args = append(args, "--yes")
			}
			code, out := f.run(t, test.user, "", args...)
			require.NotEqual(t, cli.ExitSuccess, code)
			require.Contains(t, out, test.want)
		})
	}
	code, out := f.run(t, operator, "", "settle", "settle-1", "--dry-run")
	require.Equal(t, cli.ExitSuccess, code, out)
	requireScript(t, out)
	compareOutput(t, "settle", out)
	code, out = f.run(t, operator, "", "settle", "u4", "--yes", "--timeout=10ms")
	require.Equal(t, cli.ExitFailure, code)
	require.Contains(t, out, "the webhook has not settled the grant for node settle-3 within 10ms")
	annotation, err := f.Kubectl(t.Context(), "get", "etcdcluster", "c3", "-o", "jsonpath={.metadata.annotations}")
	require.NoError(t, err)
	require.Contains(t, annotation, `"holdfast.dev/settle":"u4"`)
}

// createCluster creates an EtcdCluster with grants.
func (f *changeFixture) createCluster(
	t *testing.T, name string, annotations map[string]string, grants ...map[string]any,
) {
	t.Helper()
	body, err := json.Marshal(map[string]any{
		"apiVersion": "holdfast.dev/v1alpha1", "kind": "EtcdCluster",
		"metadata": map[string]any{"name": name, "annotations": annotations}, "spec": map[string]any{"grants": grants},
	})
	require.NoError(t, err)
	request := f.Client().RESTClient().Post().AbsPath("/apis/holdfast.dev/v1alpha1/etcdclusters").Body(body)
	require.NoError(t, request.Do(t.Context()).Error())
}

func testNameCompletion(t *testing.T, f *changeFixture) {
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"nodes":            {[]string{"release", "settle-"}, "settle-1\n:4\n"},
		"second argument":  {[]string{"release", "settle-1", ""}, ":4\n"},
		"clusters, grants": {[]string{"settle", ""}, "c1\nc2\nc3\nc4\nsettle-1\nsettle-2\nsettle-3\nsettle-4\n:4\n"},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"__complete", "--kubeconfig=" + f.kubeconfigs[reader]}, test.args...)
			var out, errOut bytes.Buffer
			code := Execute(t.Context(), Streams{In: strings.NewReader(""), Out: &out, ErrOut: &errOut}, "test", args)
			require.Equal(t, cli.ExitSuccess, code, errOut.String())
			require.Equal(t, test.want, out.String())
		})
	}
}
