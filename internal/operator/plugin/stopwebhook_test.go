package plugin

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/internal/control/clusterstore/storetest"
	"github.com/holdfast-dev/holdfast/internal/operator/cli"
	"github.com/holdfast-dev/holdfast/internal/testenv/process"
	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// A stuckCluster is a reviewedCluster whose webhook answers, and can write no EtcdCluster, because
// a policy of others refuses that. Its webhook ends with its pod when its Deployment is scaled to
// 0.
type stuckCluster struct {
	*reviewedCluster
	etcd string // a Node with a member, which has the label
	web  *httptest.Server
}

// newStuckCluster returns the cluster of the i-th Node, with a webhook that answers.
func newStuckCluster(t *testing.T, c *reviewedCluster, i int) *stuckCluster {
	t.Helper()
	s := &stuckCluster{c, c.Nodes[i].Name, c.serveWebhook()}
	_, err := c.server.Client().CoreV1().Pods(guard.Namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: replica, Labels: map[string]string{podNameLabel: webhookName}},
		Spec: corev1.PodSpec{
			ServiceAccountName: webhookName, Containers: []corev1.Container{{Name: "webhook", Image: "holdfast"}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.endReplica(context.WithoutCancel(t.Context()))) })
	return s
}

// replica is the name of the only pod of the webhook.
const replica = "replica"

// endReplica ends the webhook and its pod.
func (s *stuckCluster) endReplica(ctx context.Context) error {
	s.web.Close()
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
	err := s.server.Client().CoreV1().Pods(guard.Namespace).Delete(ctx, replica, now)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// runKubelet ends the replica when its Deployment is scaled to 0.
func (s *stuckCluster) runKubelet(t *testing.T) {
	t.Helper()
	deployments := s.server.Client().AppsV1().Deployments(guard.Namespace)
	changes, err := deployments.Watch(t.Context(), metav1.SingleObject(metav1.ObjectMeta{Name: webhookName}))
	require.NoError(t, err)
	ctx, ended := context.WithoutCancel(t.Context()), make(chan error, 1)
	go func() {
		for change := range changes.ResultChan() {
			if d, ok := change.Object.(*appsv1.Deployment); ok && *d.Spec.Replicas == 0 {
				ended <- s.endReplica(ctx)
				return
			}
		}
		ended <- nil
	}()
	t.Cleanup(func() {
		changes.Stop()
		require.NoError(t, <-ended)
	})
}

// replicas returns how many replicas the webhook is to have.
func (s *stuckCluster) replicas() int32 {
	s.t.Helper()
	d, err := s.server.Client().AppsV1().Deployments(guard.Namespace).Get(s.t.Context(), webhookName, metav1.GetOptions{})
	require.NoError(s.t, err)
	return *d.Spec.Replicas
}

// breakGlass deletes the Node as the administrator. typed are the lines of its input.
func (s *stuckCluster) breakGlass(ctx context.Context, typed string, args ...string) (code int, out string) {
	s.t.Helper()
	return runTyped(ctx, s.t, typed, append([]string{
		"--kubeconfig=" + s.server.Kubeconfig(), "break-glass", s.etcd, "--reason=burnt", "--and-delete",
	}, args...)...)
}

// requireKept checks that the Node still exists with its label, and that the webhook is to run.
func (s *stuckCluster) requireKept() {
	s.t.Helper()
	node, err := s.server.Client().CoreV1().Nodes().Get(s.t.Context(), s.etcd, metav1.GetOptions{})
	require.NoError(s.t, err)
	require.True(s.t, observation.IsLabelled(node))
	require.EqualValues(s.t, 2, s.replicas())
}

// requireDeleted checks that the Node is gone, and that the webhook is to run again.
func (s *stuckCluster) requireDeleted() {
	s.t.Helper()
	_, err := s.server.Client().CoreV1().Nodes().Get(s.t.Context(), s.etcd, metav1.GetOptions{})
	require.True(s.t, apierrors.IsNotFound(err), err)
	require.EqualValues(s.t, 2, s.replicas())
}

// refuse lets a policy refuse writes of a resource unless the expression is true.
func (c *reviewedCluster) refuse(name, group, resource, expression string) {
	c.t.Helper()
	create(c.t, c.server, fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: %[1]s}
spec:
  matchConstraints:
    resourceRules:
    - {operations: [CREATE, UPDATE], apiGroups: [%[2]s], apiVersions: ["*"], resources: [%[3]s]}
  validations:
  - {expression: "%[4]s", message: not by our rules}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: %[1]s}
spec: {policyName: %[1]s, validationActions: [Deny]}
`, name, group, resource, expression))
	require.NoError(c.t, c.server.WaitForPolicies(c.t.Context()))
	c.t.Cleanup(func() {
		ctx := context.WithoutCancel(c.t.Context())
		_, err := c.server.Kubectl(ctx, "delete", "validatingadmissionpolicy,validatingadmissionpolicybinding", name)
		require.NoError(c.t, err)
		require.NoError(c.t, c.server.WaitForPolicies(ctx))
	})
}

// stopWebhook deletes one Node after another. The webhook of the first one still answers after the
// tests that stop it for a moment at most.
func stopWebhook(t *testing.T, c *reviewedCluster) {
	c.refuse("refuse-etcdclusters", "holdfast.dev", "etcdclusters", "false")
	s := newStuckCluster(t, c, 0)
	t.Run("declined", func(t *testing.T) { stopDeclined(t, s) })
	t.Run("interrupted", func(t *testing.T) { stopInterrupted(t, s) })
	t.Run("asked", func(t *testing.T) { stopWhenAsked(t, s) })
	t.Run("script", func(t *testing.T) { stopScript(t, newStuckCluster(t, c, 1)) })
	t.Run("not started", func(t *testing.T) { stopNotStarted(t, newStuckCluster(t, c, 2)) })
}

func stopWhenAsked(t *testing.T, s *stuckCluster) {
	s.runKubelet(t)
	code, out := s.breakGlass(t.Context(), "y\ny")
	require.Equal(t, cli.ExitSuccess, code, out)
	compareOutput(t, "break-glass-stop-webhook.txt", out)
	s.requireDeleted()
}

func stopDeclined(t *testing.T, s *stuckCluster) {
	code, out := s.breakGlass(t.Context(), "y\nn")
	require.Equal(t, cli.ExitFailure, code, out)
	require.Contains(t, out, "the webhook was not stopped")
	s.requireKept()

	code, out = s.breakGlass(t.Context(), "", "--yes")
	require.Equal(t, cli.ExitFailure, code, out)
	require.Contains(t, out, "not by our rules")
	require.Contains(t, out, "add --stop-webhook")
	s.requireKept()
}

// stopScript runs the commands that the documents name.
func stopScript(t *testing.T, s *stuckCluster) {
	s.runKubelet(t)
	code, script := s.breakGlass(t.Context(), "", "--stop-webhook", "--dry-run")
	require.Equal(t, cli.ExitSuccess, code, script)
	compareOutput(t, "break-glass-stop-webhook-script.txt", script)
	requireScript(t, script)
	s.requireKept()
	root, err := process.RepositoryRoot()
	require.NoError(t, err)
	shell := exec.CommandContext(t.Context(), "sh", "-ec", script)
	shell.Env = append(os.Environ(), "PATH="+filepath.Join(root, "bin")+":"+os.Getenv("PATH"))
	out, err := shell.CombinedOutput()
	require.NoError(t, err, string(out))
	s.requireDeleted()
}

// stopInterrupted interrupts the command while the replica ends.
func stopInterrupted(t *testing.T, s *stuckCluster) {
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	type result struct {
		code int
		out  string
	}
	ended := make(chan result, 1)
	go func() {
		code, out := s.breakGlass(ctx, "", "--yes", "--stop-webhook")
		ended <- result{code, out}
	}()
	require.Eventually(t, func() bool { return s.replicas() == 0 }, storetest.WaitTimeout, storetest.PollInterval)
	interrupt()
	r := <-ended
	require.Equal(t, cli.ExitFailure, r.code, r.out)
	require.Contains(t, r.out, "deployment holdfast-webhook: scaled to 2 again")
	s.requireKept()
}

// stopNotStarted lets a policy refuse that the webhook starts again.
func stopNotStarted(t *testing.T, s *stuckCluster) {
	s.refuse("refuse-start", "apps", "deployments/scale", "!has(object.spec.replicas)")
	s.runKubelet(t)
	code, out := s.breakGlass(t.Context(), "", "--yes", "--stop-webhook")
	require.Equal(t, cli.ExitFailure, code, out)
	require.Contains(t, out, "the webhook is still stopped; start it: kubectl --kubeconfig='"+s.server.Kubeconfig()+
		"' -n holdfast-system scale deployment holdfast-webhook --replicas=2\n")
	require.EqualValues(t, 0, s.replicas())
}
