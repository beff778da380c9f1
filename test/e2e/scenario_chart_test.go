//go:build e2e

package e2e_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// scenarioChart installs the chart on the cluster from which the manifests were removed, upgrades
// it, rolls it back and uninstalls it. helm waits for the pods each time. It uninstalls the rest as
// a user does, so that the nodes are clean.
func scenarioChart(t *testing.T, c *kindCluster) {
	chart := filepath.Join(c.root, "charts", "holdfast")
	c.helm(t, "install", "holdfast", chart, "--create-namespace", "--wait")
	c.kubectl(t, "get", "mutatingadmissionpolicies", "holdfast-born-held")
	c.waitForWebhook(t)
	before := c.webhookArgs(t)

	c.helm(t, "upgrade", "holdfast", chart, "--wait", "--set", "drains.enabled=false")
	require.Equal(t, append(before, "--guard-drains=false"), c.webhookArgs(t))
	c.waitForWebhook(t)

	c.helm(t, "rollback", "holdfast", "1", "--wait")
	require.Equal(t, before, c.webhookArgs(t))
	c.waitForWebhook(t)

	c.helm(t, "uninstall", "holdfast", "--wait")
	require.Equal(t, "customresourcedefinition.apiextensions.k8s.io/etcdclusters.holdfast.dev",
		strings.TrimSpace(c.kubectl(t, "get", "customresourcedefinitions", "etcdclusters.holdfast.dev", "-o", "name")))
	c.run(t, "env", "KUBECTL="+c.tool("kubectl"), "make", "-C", c.root, "--no-print-directory", "uninstall")
}

// helm runs helm in the namespace of Holdfast. It must succeed.
func (c *kindCluster) helm(t *testing.T, args ...string) {
	t.Helper()
	c.run(t, c.tool("helm"), append(args, "--namespace", namespace, "--timeout", longTimeout.String())...)
}

func (c *kindCluster) webhookArgs(t *testing.T) []string {
	t.Helper()
	out := c.kubectl(t, "-n", namespace, "get", "deployment", "holdfast-webhook", "-o",
		`jsonpath={range .spec.template.spec.containers[0].args[*]}{@}{"\n"}{end}`)
	return strings.Split(strings.TrimSpace(out), "\n")
}
