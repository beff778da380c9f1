package plugin

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func why(t *testing.T, c *reviewedCluster) {
	c.setHealth(1, false)
	etcd := c.Nodes[0]
	c.patch(etcd, `{"metadata":{
		"labels":{"stackpoint.io/instance_id":"netatt-1"},
		"annotations":{"holdfast.dev/spc-problem":"SPC lists no machine for this node"}}}`)
	refused := c.run("why", etcd.Name)
	require.Equal(t, 0, refused.code, refused.errOut)
	requireGolden(t, "why-refused.txt", refused.out)
	requireGolden(t, "why.json", c.run("why", etcd.Name, "-o", "json").out)

	held := c.worker(t, "worker-1")
	c.patch(held, `{"spec":{"unschedulable":true},"metadata":{"annotations":{
		"holdfast.dev/hold":"{\"state\":\"held\",\"reason\":\"NewNode\"}"}}}`)
	requireGolden(t, "why-held.txt", c.run("why", "worker-1").out)

	missing := c.run("why", "etcd-9")
	require.Equal(t, 1, missing.code)
	require.Contains(t, missing.errOut, "there is no node etcd-9")
	require.Equal(t, 2, c.run("why").code)
	require.Equal(t, 2, c.run("why", "a", "b").code)
	completed := c.run("__complete", "why", "n")
	require.Contains(t, completed.out, etcd.Name+"\n")
	require.NotContains(t, c.run("__complete", "can-remove", etcd.Name, "").out, etcd.Name+"\n")
}
