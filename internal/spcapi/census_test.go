package spcapi_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/internal/spcapi"
	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/pkg/spc"
	"github.com/holdfast-dev/holdfast/test/spcserver"
)

// A machine that stays in draft is one that its autoscaler waits for, and nothing in Kubernetes tells of it but this.
func testNeverANode(t *testing.T, s *site) {
	pool := spc.Pool{PK: 108, Name: "Default Worker Pool", InstanceID: "spcp-pool-1", Autoscaled: true, MaxCount: 5}
	empty := spc.Pool{PK: 109, InstanceID: "spcp-pool-2", Autoscaled: true, MaxCount: 5}
	s.spc.SetPools(pool, empty)
	long := time.Now().Add(-16 * time.Minute).UTC().Format(time.RFC3339Nano)
	s.spc.SetNodes(
		spc.Record{PK: 1, InstanceID: "spcp-worker-1", GroupName: pool.Group(), PrivateIP: "192.0.2.1", State: "running", Created: long},
		spc.Record{PK: 2, InstanceID: "spcp-worker-2", GroupName: pool.Group(), State: "draft", Created: long},
		spc.Record{PK: 3, InstanceID: "spcp-worker-3", GroupName: pool.Group(), State: "draft", Created: time.Now().UTC().Format(time.RFC3339Nano)},
	)
	_, _, err := s.AddNode(t.Context(), testenv.NodeSpec{
		Name: "worker-1", InternalIP: "192.0.2.1", Ready: true, Labels: map[string]string{spc.NodeGroupLabel: pool.Group()},
	})
	require.NoError(t, err)
	running(t, s.publisher(t, s.options).Run)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		shown := scrape(c, s.metrics)
		for _, line := range []string{
			`holdfast_spc_machines_never_nodes 1`,
			`holdfast_spc_nodes_without_machine 0`,
			`holdfast_spc_machines{cloud="alive",kubernetes="ready",spc="up"} 1`,
			`holdfast_spc_machines{cloud="none",kubernetes="none",spc="starting"} 2`,
			`holdfast_spc_group_machines{group="autoscaling-spcp-pool-1",phase="starting"} 2`,
			`holdfast_spc_group_nodes{group="autoscaling-spcp-pool-1"} 1`,
			`holdfast_spc_group_machines{group="autoscaling-spcp-pool-2",phase="up"} 0`,
			`holdfast_spc_refreshes_total{result="ok"} `,
		} {
			require.Contains(c, shown, line)
		}
	}, soon, 10*time.Millisecond)
	require.Regexp(t, `event on holdfast-spc-inventory: SPCMachineNeverNode: SPC machine spcp-worker-2 \(node_id 2, group autoscaling-spcp-pool-1\): state draft, no node since `, s.said.String())
	require.NotContains(t, s.said.String(), "spcp-worker-3")
	require.Eventually(t, func() bool { return s.status(t)["places"] != "" }, soon, 10*time.Millisecond)
	status := s.status(t)
	require.Contains(t, status["machines-without-a-node"], "spcp-worker-2")
	require.Equal(t, "Misty Fire (spci1r, aws, running)", status["cluster"])
	require.Equal(t, "autoscaling-spcp-pool-1: machines 2 starting, 1 up; nodes 1\nautoscaling-spcp-pool-2: machines 0; nodes 0", status["groups"])
	require.Contains(t, status["places"], "starting   none       none        2")

	// SPC is told to delete it, and its end is seen.
	s.refreshed(t, 2)
	require.Equal(t, 1, strings.Count(s.said.String(), "SPCMachineNeverNode"), "said once")
	s.spc.SetNodes(s.spc.Nodes()[0])
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		require.Contains(c, scrape(c, s.metrics), "holdfast_spc_machines_never_nodes 0")
	}, soon, 10*time.Millisecond)
}

// Whatever fails, and however it does, the token is in nothing that leaves the process: logs, events, metrics, ConfigMaps.
func testTheTokenIsNowhere(t *testing.T, s *site) {
	s.spc.SetNodes(spc.Record{PK: 1, InstanceID: "a", State: "draft", Created: "2016-09-27T22:09:57.091286Z"})
	running(t, s.publisher(t, s.options).Run)
	require.Eventually(t, func() bool { return strings.HasSuffix(s.status(t)["age"], " old") }, soon, 5*time.Millisecond)
	failures := spcserver.Failures()
	for _, name := range []string{"echo", "redirect", "401", "html", "truncated", "types", "500"} {
		s.spc.Fail(failures[name])
		before := s.spc.Requests()
		require.Eventually(t, func() bool { return s.spc.Requests() > before+1 }, soon, 5*time.Millisecond)
	}
	for _, text := range []string{"", token + " " + token} {
		require.NoError(t, os.WriteFile(s.options.TokenFile, []byte(text), 0o600))
		was := strings.Count(s.said.String(), "the SPC token's file")
		require.Eventually(t, func() bool { return strings.Count(s.said.String(), "the SPC token's file") > was }, soon, 5*time.Millisecond)
	}
	all := s.said.String() + scrape(t, s.metrics)
	maps, err := s.Client().CoreV1().ConfigMaps(namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, m := range maps.Items {
		all += m.String()
		if m.Name == inventory {
			list, err := spcapi.Decode(&m)
			require.NoError(t, err)
			require.Len(t, list.Records, 1, "the last good list stays")
		}
	}
	require.Contains(t, all, "<the token>", "it was quoted to us")
	require.Contains(t, all, "SPCNotRefreshed")
	require.NotContains(t, all, token)
	require.NotContains(t, all, token[:16], "nor a part of it")
	require.Regexp(t, `holdfast_spc_inventory_age_seconds [0-9.e-]+`, all)
	require.Contains(t, s.status(t), "age")
}

// A node that no machine is, and a machine with two nodes.
func testNodesWithoutAMachine(t *testing.T, s *site) {
	s.spc.SetNodes(spc.Record{PK: 1, InstanceID: "a", PrivateIP: "192.0.2.1", State: "running"})
	for name, ip := range map[string]string{"old-name": "192.0.2.1", "new-name": "192.0.2.1", "stranger": "192.0.2.9"} {
		_, _, err := s.AddNode(t.Context(), testenv.NodeSpec{Name: name, InternalIP: ip})
		require.NoError(t, err)
	}
	_, err := s.Kubectl(t.Context(), "label", "node", "stranger", spc.InstanceIDLabel+"=b")
	require.NoError(t, err)
	publisher := s.publisher(t, s.options)
	running(t, publisher.Run)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		shown := scrape(c, s.metrics)
		require.Contains(c, shown, "holdfast_spc_machines_with_several_nodes 1")
		require.Contains(c, shown, "holdfast_spc_nodes_without_machine 1")
		require.Contains(c, s.said.String(), "SPCMachineDoubled: SPC instance a is the machine of several Nodes: new-name, old-name")
		require.Contains(c, s.said.String(), "SPCNodeWithoutMachine: node stranger: its machine is gone from SPC, instance b: it is not in the list any more")
	}, soon, 10*time.Millisecond)
	require.Eventually(t, func() bool {
		return s.status(t)["machines-with-several-nodes"] == "a: new-name, old-name"
	}, soon, 10*time.Millisecond)
}
