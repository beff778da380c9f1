//go:build e2e

package e2e_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// scenarioChart installs the chart of an earlier state on the cluster from which the manifests
// were removed, upgrades it to this one, goes back without the earlier CustomResourceDefinition,
// upgrades it again, and uninstalls it. helm waits for the pods each time. The Job of helm
// uninstall cleans the nodes.
func scenarioChart(t *testing.T, c *kindCluster) {
	previous := c.loadPrevious(t)
	chart := filepath.Join(c.root, "charts", "holdfast")
	c.helm(t, append([]string{"install", "holdfast", "--create-namespace"}, previous...)...)
	c.waitForHealthy(t, 3)
	before, etcd := c.webhook(t), c.etcdCluster(t)

	c.helm(t, "upgrade", "holdfast", chart, "--reset-values", "--set", "drains.enabled=false,uninstall.enabled=true")
	upgraded := c.webhook(t)
	require.Contains(t, upgraded, "--guard-drains=false")
	require.Contains(t, upgraded, "holdfast-webhook:v0.1.0")
	c.waitForWebhook(t)
	c.requireSameMembers(t, etcd)

	definition := c.definition(t)
	c.helm(t, append([]string{"upgrade", "holdfast", "--reset-values", "--set", "crds.install=false"}, previous...)...)
	require.Equal(t, before, c.webhook(t))
	require.Equal(t, definition, c.definition(t))
	c.waitForWebhook(t)
	c.requireSameMembers(t, etcd)

	c.helm(t, "rollback", "holdfast", "2")
	require.Equal(t, upgraded, c.webhook(t))
	c.waitForWebhook(t)
	c.requireSameMembers(t, etcd)

	c.helm(t, "uninstall", "holdfast")
	c.requireClean(t, "")
	require.Equal(t, definition, c.definition(t))
	c.run(t, "env", "KUBECTL="+c.tool("kubectl"), "make", "-C", c.root, "--no-print-directory", "uninstall")
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

// requireSameMembers waits until all members are healthy, and checks that the EtcdCluster and its
// bindings are those of before.
func (c *kindCluster) requireSameMembers(t *testing.T, before *v1alpha1.EtcdCluster) {
	t.Helper()
	c.waitForHealthy(t, 3)
	now := c.etcdCluster(t)
	require.Equal(t, before.UID, now.UID)
	require.Equal(t, before.Spec.Members, now.Spec.Members)
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
