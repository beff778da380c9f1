//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// commandTimeout limits one command. The longest are the creation of the cluster and the wait for
// the Job that uninstalls.
const commandTimeout = 15 * time.Minute

// longWait is the shortest wait that is logged.
const longWait = 5 * time.Second

// tool returns the path of a program on PATH, or of the one that the Makefile builds.
func (c *kindCluster) tool(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	return filepath.Join(c.tools, name)
}

// tryRun runs a command and returns its output.
func (c *kindCluster) tryRun(ctx context.Context, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	command := exec.CommandContext(ctx, name, args...)
	command.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig)
	out, err := command.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("running %s %s: %w:\n%s", filepath.Base(name), strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// run runs a command that must succeed.
func (c *kindCluster) run(t *testing.T, name string, args ...string) string {
	t.Helper()
	defer logWait(t, filepath.Base(name)+" "+strings.Join(args, " "), time.Now())
	out, err := c.tryRun(t.Context(), name, args...)
	require.NoError(t, err)
	return out
}

// kubectl runs kubectl, which must succeed.
func (c *kindCluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return c.run(t, c.tool("kubectl"), args...)
}

// kubectlFails runs kubectl, which must fail, and returns its output.
func (c *kindCluster) kubectlFails(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.tryRun(t.Context(), c.tool("kubectl"), args...)
	require.Error(t, err, "kubectl %s must fail", strings.Join(args, " "))
	return out
}

// waitForRefusal runs kubectl until its error matches all patterns. Other errors are possible
// after the deletion of a replica's Node, during an election, and for dry runs while agents
// observe. The test fails if kubectl succeeds.
func (c *kindCluster) waitForRefusal(t *testing.T, patterns []string, args ...string) {
	t.Helper()
	var all []*regexp.Regexp
	for _, words := range patterns {
		all = append(all, regexp.MustCompile(words))
	}
	c.waitFor(t, "a refusal of kubectl "+strings.Join(args, " "), longTimeout, func(context.Context) (bool, string) {
		answer := c.kubectlFails(t, args...)
		return !slices.ContainsFunc(all, func(words *regexp.Regexp) bool { return !words.MatchString(answer) }), answer
	})
}

// logWait logs what took a long time, to show where the time of a scenario goes.
func logWait(t *testing.T, what string, since time.Time) {
	t.Helper()
	if took := time.Since(since); took > longWait {
		what, _, _ = strings.Cut(what, "\n")
		t.Logf("%.0f s: %s", took.Seconds(), what)
	}
}

// runOn runs a shell script on a node.
func (c *kindCluster) runOn(t *testing.T, node, script string) string {
	t.Helper()
	return c.run(t, "docker", "exec", node, "sh", "-ec", script)
}

// waitForRollout waits until the rollout of a workload is complete.
func (c *kindCluster) waitForRollout(t *testing.T, namespace, workload string) {
	t.Helper()
	c.kubectl(t, "-n", namespace, "rollout", "status", workload, "--timeout", longTimeout.String())
}

// waitFor waits until check returns true. The string that check returns describes the state.
func (c *kindCluster) waitFor(t *testing.T, what string, limit time.Duration,
	check func(context.Context) (bool, string),
) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	defer logWait(t, what, time.Now())
	for {
		checking, stop := context.WithTimeout(t.Context(), shortTimeout)
		ok, state := check(checking)
		stop()
		if ok {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			require.FailNow(t, "timeout after "+limit.String()+" waiting for "+what, state)
		}
	}
}

// poll waits until check returns no error.
func poll(ctx context.Context, what string, check func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, longTimeout, true,
		func(ctx context.Context) (bool, error) {
			last = check(ctx)
			return last == nil, nil
		})
	if err != nil {
		return fmt.Errorf("waiting for %s: %w: %w", what, err, last)
	}
	return nil
}

// waitForNode waits until check returns true for a Node, and returns the Node.
func (c *kindCluster) waitForNode(t *testing.T, name, what string, limit time.Duration,
	check func(*corev1.Node) bool,
) *corev1.Node {
	t.Helper()
	var found *corev1.Node
	c.waitFor(t, "node "+name+" "+what, limit, func(ctx context.Context) (bool, string) {
		n, err := c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		found = n
		return check(n), describe(n)
	})
	return found
}

// describe returns a description of a Node for a test failure.
func describe(n *corev1.Node) string {
	lines := []string{fmt.Sprintf("node %s: unschedulable=%t taints=%v", n.Name, n.Spec.Unschedulable, n.Spec.Taints)}
	for _, entries := range []map[string]string{n.Labels, n.Annotations} {
		for key, value := range entries {
			if strings.Contains(key, "holdfast.dev") || strings.Contains(key, "autoscal") {
				lines = append(lines, key+"="+value)
			}
		}
	}
	for _, c := range n.Status.Conditions {
		lines = append(lines, fmt.Sprintf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message))
	}
	return strings.Join(lines, "\n")
}
