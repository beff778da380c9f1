//go:build e2e

package e2e_test

import (
	"bufio"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// scenarioChart installs the chart of an earlier state on the cluster from which the manifests
// were removed, upgrades it to this one from a registry, goes back without the earlier
// CustomResourceDefinition, upgrades it again, and uninstalls it. helm waits for the pods each
// time. The Job of helm uninstall cleans the nodes.
func scenarioChart(t *testing.T, c *kindCluster) {
	previous := c.loadPrevious(t)
	chart := c.publishChart(t)
	c.helm(t, append([]string{"install", "holdfast", "--create-namespace"}, previous...)...)
	c.waitForHealthy(t, 3)
	before, etcd := c.webhook(t), c.etcdCluster(t)

	c.whileProtected(t, func() {
		// Without --version, helm takes no release candidate.
		c.helm(t, "upgrade", "holdfast", chart, "--version", strings.TrimPrefix(c.version(t), "v"), "--plain-http",
			"--reset-values", "--set", "drains.enabled=false,uninstall.enabled=true")
	})
	upgraded := c.webhook(t)
	require.Contains(t, upgraded, "--guard-drains=false")
	require.Contains(t, upgraded, "holdfast-webhook:"+c.version(t))
	c.waitForWebhook(t)
	c.requireSameMembers(t, etcd)

	definition := c.definition(t)
	c.whileProtected(t, func() {
		c.helm(t, append([]string{"upgrade", "holdfast", "--reset-values", "--set", "crds.install=false"}, previous...)...)
	})
	require.Equal(t, before, c.webhook(t))
	require.Equal(t, definition, c.definition(t))
	c.waitForRollout(t, namespace, "deployment/holdfast-webhook")
	now := c.etcdCluster(t)
	require.Equal(t, etcd.UID, now.UID)
	require.Equal(t, places(etcd), places(now))
	// Agents from before EtcdObservations cannot publish with this definition. All that they protect
	// stays.
	c.waitForRefusal(t, []string{"holdfast"}, "delete", "node", c.worker(1), "--dry-run=server")

	c.whileProtected(t, func() { c.helm(t, "rollback", "holdfast", "2") })
	require.Equal(t, upgraded, c.webhook(t))
	c.waitForWebhook(t)
	c.requireSameMembers(t, etcd)

	c.helm(t, "uninstall", "holdfast")
	c.requireClean(t, "")
	require.Equal(t, definition, c.definition(t))
	c.run(t, "env", "KUBECTL="+c.tool("kubectl"), "make", "-C", c.root, "--no-print-directory", "uninstall")
}

// publishChart pushes the chart of this state to a registry, and returns its reference.
func (c *kindCluster) publishChart(t *testing.T) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), c.tool("crane"), "registry", "serve", "--address", "127.0.0.1:0")
	log, err := command.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	t.Cleanup(func() { _ = command.Wait() }) // it ends with the context of the test
	line, err := bufio.NewReader(log).ReadString('\n')
	require.NoError(t, err)
	_, port, found := strings.Cut(strings.TrimSpace(line), "serving on port ")
	require.True(t, found, line)

	dir := t.TempDir()
	c.run(t, c.tool("helm"), "package", filepath.Join(c.root, "charts", "holdfast"), "--destination", dir)
	packed, err := filepath.Glob(filepath.Join(dir, "holdfast-*.tgz"))
	require.NoError(t, err)
	require.Len(t, packed, 1)
	registry := "oci://127.0.0.1:" + port + "/charts"
	c.run(t, c.tool("helm"), "push", packed[0], registry, "--plain-http")
	return registry + "/holdfast"
}

// loadPrevious loads the images of the earlier state, and returns the arguments of helm for its
// chart.
func (c *kindCluster) loadPrevious(t *testing.T) []string {
	t.Helper()
	dir := filepath.Join(c.tools, "previous")
	arguments := []string{filepath.Join(dir, "holdfast")}
	for _, program := range []string{"agent", "webhook"} {
		c.run(t, c.tool("kind"), "load", "image-archive", filepath.Join(dir, "holdfast-"+program+".tar"), "--name", c.name)
		arguments = append(arguments, "--set", program+".image.tag=previous")
	}
	return arguments
}

// whileProtected runs a function, and checks that the nodes with etcd keep their marks meanwhile.
func (c *kindCluster) whileProtected(t *testing.T, do func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var checks errgroup.Group
	checks.Go(func() error {
		for {
			for i := range 3 {
				n, err := c.client.CoreV1().Nodes().Get(ctx, c.worker(i+1), metav1.GetOptions{})
				if ctx.Err() != nil {
					return nil
				}
				if err == nil && !isMarked(n) {
					return fmt.Errorf("node %s has lost its protection: %s", n.Name, describe(n))
				}
			}
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
				return nil
			}
		}
	})
	do()
	cancel()
	require.NoError(t, checks.Wait())
}

// requireSameMembers waits until all members are healthy, and checks that the EtcdCluster and its
// bindings are those of before.
func (c *kindCluster) requireSameMembers(t *testing.T, before *v1alpha1.EtcdCluster) {
	t.Helper()
	c.waitForHealthy(t, 3)
	now := c.etcdCluster(t)
	require.Equal(t, before.UID, now.UID)
	require.Equal(t, places(before), places(now))
}

// places returns the bindings of an EtcdCluster without what earlier states recorded differently:
// the identities of the machines, and what the bindings rest on.
func places(c *v1alpha1.EtcdCluster) []v1alpha1.Binding {
	var found []v1alpha1.Binding
	for _, b := range c.Spec.Members {
		found = append(found, v1alpha1.Binding{MemberID: b.MemberID, Node: b.Node, NodeUID: b.NodeUID})
	}
	return found
}

// helm runs helm in the namespace of Holdfast, and waits. It must succeed.
func (c *kindCluster) helm(t *testing.T, args ...string) {
	t.Helper()
	c.run(t, c.tool("helm"), append(args, "--namespace", namespace, "--wait", "--timeout", longTimeout.String())...)
}

// definition returns the UID and the generation of the CustomResourceDefinition.
func (c *kindCluster) definition(t *testing.T) string {
	t.Helper()
	return c.kubectl(t, "get", "customresourcedefinitions", "etcdclusters.holdfast.dev", "-o",
		"jsonpath={.metadata.uid} {.metadata.generation}")
}

// webhook returns the image and the arguments of the webhook.
func (c *kindCluster) webhook(t *testing.T) []string {
	t.Helper()
	out := c.kubectl(t, "-n", namespace, "get", "deployment", "holdfast-webhook", "-o",
		`jsonpath={.spec.template.spec.containers[0].image}{range .spec.template.spec.containers[0].args[*]}{"\n"}{@}{end}`)
	return strings.Split(out, "\n")
}
