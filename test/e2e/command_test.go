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
)

// patience is how long one command may take; the longest are the creation of the cluster, and make uninstall, which builds.
const patience = 15 * time.Minute

// tool returns a program: that of PATH, or the one that the Makefile builds.
func (c *cluster) tool(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	return filepath.Join(c.tools, name)
}

// try runs a command and returns all that it says.
func (c *cluster) try(ctx context.Context, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	command := exec.CommandContext(ctx, name, args...)
	command.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig)
	out, err := command.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("running %s %s: %w:\n%s", filepath.Base(name), strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// run runs a command that has to succeed.
func (c *cluster) run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := c.try(t.Context(), name, args...)
	require.NoError(t, err)
	return out
}

// kubectl runs kubectl, which has to succeed; refused runs one that has not to.
func (c *cluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return c.run(t, c.tool("kubectl"), args...)
}

func (c *cluster) refused(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.try(t.Context(), c.tool("kubectl"), args...)
	require.Error(t, err, "kubectl %s was to be refused", strings.Join(args, " "))
	return out
}

// denied runs kubectl, which has to be refused, until the refusal says all that these expressions match. Others are heard
// while a replica has gone with the Node that was deleted just before, during an election, and by dry runs while the agents
// are being asked. A deletion that is allowed fails at once.
func (c *cluster) denied(t *testing.T, said []string, args ...string) {
	t.Helper()
	var all []*regexp.Regexp
	for _, words := range said {
		all = append(all, regexp.MustCompile(words))
	}
	c.eventually(t, "a verdict on kubectl "+strings.Join(args, " "), long, func(context.Context) (bool, string) {
		heard := c.refused(t, args...)
		return !slices.ContainsFunc(all, func(words *regexp.Regexp) bool { return !words.MatchString(heard) }), heard
	})
}

// on runs a shell script on a node.
func (c *cluster) on(t *testing.T, node, script string) string {
	t.Helper()
	return c.run(t, "docker", "exec", node, "sh", "-ec", script)
}

// rolledOut waits until a workload is as it should be.
func (c *cluster) rolledOut(t *testing.T, namespace, workload string) {
	t.Helper()
	c.kubectl(t, "-n", namespace, "rollout", "status", workload, "--timeout", long.String())
}

// eventually waits until the check says yes. The check says what it saw instead.
func (c *cluster) eventually(t *testing.T, what string, limit time.Duration, check func(context.Context) (bool, string)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		looking, stop := context.WithTimeout(t.Context(), soon)
		ok, saw := check(looking)
		stop()
		if ok {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			require.FailNow(t, "waited "+limit.String()+" for this in vain: "+what, saw)
		}
	}
}

// until waits until a Node is as the check wants it, and returns it.
func (c *cluster) until(t *testing.T, name, what string, limit time.Duration, check func(*corev1.Node) bool) *corev1.Node {
	t.Helper()
	var found *corev1.Node
	c.eventually(t, "node "+name+" "+what, limit, func(ctx context.Context) (bool, string) {
		n, err := c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		found = n
		return check(n), describe(n)
	})
	return found
}

// describe is what there is to know of a Node in a test that fails.
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
