package plugin

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/report"
)

// zone puts a Node in a zone.
func (c *reviewedCluster) zone(node *corev1.Node, zone string) {
	c.t.Helper()
	c.patch(node, fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, defaultZoneLabel, zone))
}

func whatIf(t *testing.T, c *reviewedCluster) {
	etcd := func(i int) string { return c.Nodes[i].Name }
	require.NotContains(t, c.run("status").out, "ZONE")
	without := c.run("what-if", "--zone", "a")
	require.Equal(t, 2, without.code)
	require.Contains(t, without.errOut, "no node has the label topology.kubernetes.io/zone, so no zone is known")

	c.zone(c.Nodes[0], "a")
	c.zone(c.Nodes[1], "a")
	c.zone(c.worker(t, "worker-1"), "b")
	requireGolden(t, "status-zones.txt", c.run("status").out)
	kept := c.run("what-if", etcd(0))
	require.Equal(t, 0, kept.code, kept.out)
	requireGolden(t, "what-if-yes.txt", kept.out)
	lost := c.run("what-if", "--zone=a")
	require.Equal(t, 1, lost.code, lost.out)
	requireGolden(t, "what-if-no.txt", lost.out)
	encoded := c.run("what-if", "--zone=a", "-o", "json")
	require.Equal(t, 1, encoded.code)
	requireGolden(t, "what-if.json", encoded.out)
	require.Equal(t, "no etcd member is known on zone b (worker-1)\nnote: without the label "+
		"topology.kubernetes.io/zone, and so in no zone: "+etcd(2)+"\n", c.run("what-if", "--zone=b").out)
	require.Equal(t, 1, c.run("what-if", "-l", "holdfast.dev/etcd-member=true").code)

	// The end of the command line and the flag of the webhook name another label.
	c.patch(c.Nodes[2], `{"metadata":{"labels":{"example.com/rack":"r7"}}}`)
	require.Equal(t, 0, c.run("what-if", "--zone=r7", "--zone-label=example.com/rack").code)
	require.Contains(t, c.run("status", "--zone-label=example.com/rack").out, "r7")
	require.Contains(t, c.run("plan", etcd(2), "--zone-label=example.com/rack").out, "as a voter in zone r7")
	c.setWebhookArgs(`["--zone-label=example.com/rack"]`)
	require.Equal(t, 0, c.run("what-if", "--zone=r7").code)
	c.setWebhookArgs(`[]`)

	c.setHealth(1, false)
	require.Equal(t, 1, c.run("what-if", etcd(0)).code)
	c.withoutAgents()
	unknown := c.run("what-if", etcd(0))
	require.Equal(t, 2, unknown.code)
	requireGolden(t, "what-if-unknown.txt", unknown.out)

	for name, bad := range map[string]struct {
		args []string
		text string
	}{
		"unknown node":   {[]string{"etcd-9"}, "there is no node etcd-9"},
		"unknown zone":   {[]string{"--zone=z"}, "topology.kubernetes.io/zone=z; the nodes have the zones a, b"},
		"empty selector": {[]string{"-l", "pool=none"}, "no node has the labels pool=none"},
	} {
		t.Run(name, func(t *testing.T) {
			r := c.run(append([]string{"what-if"}, bad.args...)...)
			require.Equal(t, 2, r.code)
			require.Contains(t, r.errOut, bad.text)
		})
	}
}

func TestWhatIfTitle(t *testing.T) {
	r := report.WhatIf{Answer: quorum.Unknown, Zone: "a", Nodes: strings.Fields("n1 n2 n3 n4 n5 n6 n7 n8 n9 n10")}
	require.Equal(t, "it is not known whether quorum is kept without zone a (n1, n2, n3, n4, n5, n6, n7, n8, and 2 more)",
		whatIfTitle(r))
}
