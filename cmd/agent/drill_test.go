package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// webhookIsDown is the drill of the README, with its own commands: nobody serves the webhook here, and the agent runs.
func webhookIsDown(t *testing.T, s site) {
	etcd := testenv.NewEtcd(t, testenv.EtcdOptions{TLS: true, BootID: bootID})
	name := "drill-1"
	_, _, err := s.AddNode(t.Context(), testenv.NodeSpec{Name: name, BootID: bootID(1)})
	require.NoError(t, err)
	s.run(name, etcd.Member(1).Root, "--tick=1s")
	guarded := func(n *corev1.Node) bool {
		return n.Labels[protect.EtcdMemberLabel] == "true" && is(n, protect.EtcdMemberCondition).Status == corev1.ConditionTrue
	}
	s.until(name, "guarded", guarded)
	config, err := s.User("breaker")
	require.NoError(t, err)
	breaker := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, testenv.WriteKubeconfig(breaker, config))
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	nodes := client.CoreV1().Nodes()
	mayBreakGlass(t, s, "breaker")
	require.Eventually(t, func() bool { // the authorizer learns of bindings by a watch
		_, err := nodes.Get(t.Context(), name, metav1.GetOptions{})
		return err == nil
	}, soon, 20*time.Millisecond)

	require.ErrorContains(t, nodes.Delete(t.Context(), name, metav1.DeleteOptions{}), "etcd-nodes.holdfast.dev", "the webhook fails closed")
	_, err = nodes.Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"labels":{"holdfast.dev/etcd-member":null}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	s.until(name, "guarded again, for the label alone is no decision", guarded)

	kubectl, err := testenv.Binary("kubectl")
	require.NoError(t, err)
	commands := drill(t)
	shell := func(line string) {
		line = strings.NewReplacer("NAME", name, "WHY", "the webhook cannot be had").Replace(line)
		cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
		cmd.Env = []string{"KUBECONFIG=" + breaker, "HOME=" + t.TempDir(), "PATH=" + filepath.Dir(kubectl) + ":" + os.Getenv("PATH")}
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s: %s", line, out)
	}
	shell(commands[0])
	shell(commands[1])
	s.until(name, "the agent says why there is no label", func(n *corev1.Node) bool {
		return n.Labels[protect.EtcdMemberLabel] == "" && strings.Contains(is(n, protect.EtcdMemberCondition).Message, "the webhook cannot be had")
	})
	require.Never(t, func() bool { return guarded(s.node(name)) }, 3*time.Second, 50*time.Millisecond, "the agent has looked at it again and again")
	shell(commands[2])
	_, err = s.Client().CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	require.ErrorContains(t, err, "not found")
}

// drill returns the commands of the README's section on a webhook that is down.
func drill(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "**The webhook is down.**")
	require.True(t, found)
	_, section, _ = strings.Cut(section, "```sh\n")
	section, _, _ = strings.Cut(section, "\n```")
	commands := strings.Split(section, "\n")
	require.Len(t, commands, 3)
	return commands
}

// mayBreakGlass gives a user the shipped role, and the rights to Nodes of somebody who operates them.
func mayBreakGlass(t *testing.T, s site, user string) {
	t.Helper()
	rbac := s.Client().RbacV1()
	_, err := rbac.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "operator"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "watch", "patch", "delete"}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	for _, role := range []string{"holdfast-breakglass", "operator"} {
		_, err := rbac.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: user + "-" + role},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
}
