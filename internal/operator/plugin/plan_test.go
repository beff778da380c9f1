package plugin

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func plan(t *testing.T, c *reviewedCluster) {
	c.worker(t, "worker-1")
	etcd := func(i int) string { return c.Nodes[i].Name }
	c.setHealth(1, false)
	replaced := c.run("plan", "-l", "holdfast.dev/etcd-member=true")
	require.Equal(t, 0, replaced.code, replaced.out)
	requireGolden(t, "plan-replaced.txt", replaced.out)
	require.Equal(t, 0, c.run("can-remove", etcd(1)).code, "the webhook refuses the first step")
	require.Equal(t, 1, c.run("can-remove", etcd(0)).code, "the webhook allows another first step")

	shrunk := c.run("plan", etcd(1), etcd(0), "worker-1", "--without-replacement")
	require.Equal(t, 1, shrunk.code)
	requireGolden(t, "plan-stopped.txt", shrunk.out)
	encoded := c.run("plan", etcd(1), "--without-replacement", "-o", "json")
	require.Equal(t, 0, encoded.code)
	requireGolden(t, "plan.json", encoded.out)

	c.setWebhookArgs(`["--min-remaining-tolerance=1"]`)
	require.Equal(t, 1, c.run("plan", etcd(1)).code, "the flags of the webhook count")
	c.setWebhookArgs(`["--doomed-taint=$(KEY)"]`)
	withoutFlags := c.run("plan", etcd(1))
	require.Equal(t, 2, withoutFlags.code, "a voter may go without the flags of the webhook")
	require.Contains(t, withoutFlags.out, "the flags of the webhook are not known")
	require.Contains(t, c.run("status").out, "the flags of the webhook are not known")
	c.setWebhookArgs(`[]`)

	c.withoutAgents()
	unknown := c.run("plan", etcd(0))
	require.Equal(t, 2, unknown.code)
	require.Contains(t, unknown.out, "It is not known whether these nodes may go.")

	missing := c.run("plan", "etcd-9")
	require.Equal(t, 2, missing.code)
	require.Contains(t, missing.errOut, "there is no node etcd-9")
	require.Contains(t, c.run("plan", "-l", "pool=none").errOut, "no node has the labels pool=none")
}
