package spcapi_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/internal/control/spcapi"
	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/pkg/spc"
	"github.com/holdfast-dev/holdfast/test/spcserver"
)

// The tests share an API server, which takes seconds to start.
func TestPublisher(t *testing.T) {
	server := apiserver.NewInstalled(t)
	for name, test := range map[string]func(*testing.T, *fixture){
		"agents read the inventory":  testAgentsRead,
		"agents read their part":     testAgentsReadTheirPart,
		"large inventory":            testLargeInventory,
		"machine without a node":     testMachineWithoutNode,
		"nodes without a machine":    testNodesWithoutMachine,
		"list that is not published": testNotPublished,
		"groups with templates":      testGroups,
		"no output contains a token": testTokenStaysSecret,
	} {
		t.Run(name, func(t *testing.T) { test(t, newFixture(t, server)) })
	}
}

// testAgentsRead publishes with the shipped RBAC of the webhook and reads with that of an
// agent.
func testAgentsRead(t *testing.T, s *fixture) {
	_, _, err := s.AddNode(t.Context(), apiserver.NodeSpec{Name: "worker-1"})
	require.NoError(t, err)
	changes := &atomic.Int32{}
	reader := s.reader(t, "worker-1")
	require.Nil(t, reader.Latest(), "an unread list is not an empty list")
	runUntilTestEnds(t, s.publisher(t).Run, func(ctx context.Context) error {
		return reader.Run(ctx, func() { changes.Add(1) })
	})

	first := spc.Record{PK: 1, Cluster: 23391, InstanceID: "worker-1", State: "building"}
	s.spc.SetNodes(first)
	waitForRecord(t, reader, first)
	ready := spc.Record{PK: 1, Cluster: 23391, InstanceID: "worker-1", State: "running"}
	s.spc.SetNodes(ready)
	waitForRecord(t, reader, ready)

	changesBefore, requestsBefore := changes.Load(), s.agentRequests.Load()
	s.waitForRefreshes(t, 5)
	require.Equal(t, changesBefore, changes.Load(), "an unchanged list was written again")
	require.Equal(t, requestsBefore, s.agentRequests.Load(), "an agent sent a request although the list had not changed")

	// A new Node makes AsOf later, and nothing makes it earlier.
	before := s.published(t).AsOf
	young, _, err := s.AddNode(t.Context(), apiserver.NodeSpec{Name: "worker-2"})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		at := s.published(t).AsOf
		return !at.Before(young.CreationTimestamp.Time) && !at.Before(before)
	}, soon, 5*time.Millisecond)
	require.NoError(t, s.Client().CoreV1().Nodes().Delete(t.Context(), "worker-2", metav1.DeleteOptions{}))
	s.waitForRefreshes(t, 3)
	require.False(t, s.published(t).AsOf.Before(young.CreationTimestamp.Time), "AsOf became earlier")

	s.spc.Fail(spcserver.Failures()["500"])
	require.Eventually(t, func() bool {
		return strings.Contains(s.status(t)["problem"], "responded with 500")
	}, soon, 5*time.Millisecond)
	waitForRecord(t, reader, ready)

	// The agents keep the list when its ConfigMaps are deleted.
	configMaps, names := s.Client().CoreV1().ConfigMaps(namespace), []string{inventory, reader.Name}
	for _, name := range names {
		require.NoError(t, configMaps.Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	waitForRecord(t, reader, ready)
	s.spc.Fail(nil)
	for _, name := range names {
		require.Eventually(t, func() bool {
			_, err := configMaps.Get(t.Context(), name, metav1.GetOptions{})
			return err == nil && s.status(t)["problem"] == ""
		}, soon, 5*time.Millisecond)
	}
}

// waitForRecord waits until the reader has exactly this record.
func waitForRecord(t *testing.T, r *spcapi.Reader, want spc.Record) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		got := r.Latest().Inventory()
		require.NotNil(c, got)
		require.Equal(c, []spc.Record{want}, got.Records)
	}, soon, 5*time.Millisecond)
}

// manyMachines returns this many machines with a value in every field.
func manyMachines(count int) []spc.Record {
	var machines []spc.Record
	for i := range count {
		machines = append(machines, spc.Record{
			PK: int64(90000 + i), Cluster: 23391, Pool: 1224, PoolName: "Default Worker Pool", Role: "worker",
			InstanceID:     fmt.Sprintf("netatt9dgn-worker-%d", i),
			ProviderNodeID: fmt.Sprintf("i-0%016x", uint64(i)*0x9e3779b97f4a7c15), GroupName: "autoscaling-netatt9dgn-pool-1",
			PrivateIP: fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255),
			PublicIP:  fmt.Sprintf("198.%d.%d.%d", i*7919>>16&255, i*7919>>8&255, i*7919&255),
			Location:  "us-west-2:us-west-2a", Zone: "us-west-2a", Size: "c4.xlarge", State: "running",
			Created: time.Date(2019, 1, 1, 0, 0, i, i*7919, time.UTC).Format(time.RFC3339Nano),
		})
	}
	return machines
}

// A cluster of 15,000 machines fits into one ConfigMap, whose limit is 1 MiB, and reaches
// the next leader completely.
func testLargeInventory(t *testing.T, s *fixture) {
	_, _, err := s.AddNode(t.Context(), apiserver.NodeSpec{Name: "worker-1"})
	require.NoError(t, err)
	machines := manyMachines(15000)
	s.spc.SetNodes(machines...)
	runUntilTestEnds(t, s.publisher(t).Run)
	require.Eventually(t, func() bool {
		list := s.published(t)
		return list != nil && len(list.Records) == len(machines)
	}, 2*soon, 20*time.Millisecond)
	got := s.published(t).Records[14999]
	want := machines[14999]
	want.Created = ""
	require.Equal(t, want, got)
	stored, err := s.Client().CoreV1().ConfigMaps(namespace).Get(t.Context(), inventory, metav1.GetOptions{})
	require.NoError(t, err)
	size := len(stored.BinaryData[spcapi.InventoryKey])
	t.Logf("%d KiB for %d machines", size>>10, len(machines))
	require.Less(t, size, 600<<10)
	require.Eventually(t, func() bool {
		return strings.Contains(s.status(t)["machines-without-a-node"], "and 14900 more")
	}, soon, 20*time.Millisecond)
	require.Less(t, len(fmt.Sprint(s.status(t))), 64<<10)
}

// testAgentsReadTheirPart counts what the API server sends to agents after a change of one machine
// out of 3,000. The API server has the Nodes of three agents only. The whole inventory has 75 KiB.
func testAgentsReadTheirPart(t *testing.T, s *fixture) {
	machines := manyMachines(3000)
	var nodes []*corev1.Node
	agentsOf := map[int]int{}
	for i, m := range machines {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("ip-%d", i), UID: types.UID(m.InstanceID)}}
		n.Spec.ProviderID = "aws:///us-west-2a/" + m.ProviderNodeID
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: m.PrivateIP}}
		nodes = append(nodes, n)
		agentsOf[spc.PartOf(n.Name)]++
	}
	changed, same, other := nodes[0], 1, 1
	for spc.PartOf(nodes[same].Name) != spc.PartOf(changed.Name) {
		same++
	}
	for spc.PartOf(nodes[other].Name) == spc.PartOf(changed.Name) {
		other++
	}
	s.spc.SetNodes(machines...)
	publisher := s.publisher(t)
	publisher.Nodes = func(context.Context) ([]*corev1.Node, error) { return nodes, nil }
	parts := []func(context.Context) error{publisher.Run}
	var readers []*spcapi.Reader
	for _, n := range []*corev1.Node{changed, nodes[same], nodes[other]} {
		_, _, err := s.AddNode(t.Context(), apiserver.NodeSpec{Name: n.Name})
		require.NoError(t, err)
		reader := s.reader(t, n.Name)
		readers = append(readers, reader)
		parts = append(parts, func(ctx context.Context) error { return reader.Run(ctx, func() {}) })
	}
	runUntilTestEnds(t, parts...)
	stateOf := func(r *spcapi.Reader, i int) string {
		if m := r.Latest().Find(nodes[i]); m.Outcome == spc.Matched {
			return m.Record.State
		}
		return ""
	}
	for at, i := range []int{0, same, other} {
		require.Eventually(t, func() bool { return stateOf(readers[at], i) == "running" }, 2*soon, 20*time.Millisecond)
	}
	s.waitForRefreshes(t, 2)
	before := s.agentBytes.Load()
	machines[0].State = "deleting"
	s.spc.SetNodes(machines...)
	for i := range readers[:2] {
		require.Eventually(t, func() bool {
			return readers[i].Latest().Find(nodes[0]).Outcome == spc.Missing
		}, 2*soon, 20*time.Millisecond)
	}
	s.waitForRefreshes(t, 3)
	perAgent := (s.agentBytes.Load() - before) / 2
	agents := agentsOf[spc.PartOf(changed.Name)]
	all := perAgent * int64(agents)
	t.Logf("one change: %d agents read %d bytes each, %d KiB in all", agents, perAgent, all>>10)
	require.Positive(t, perAgent)
	require.Less(t, perAgent, int64(16<<10), "an agent reads more than its part, or the third agent reads as well")
	require.Less(t, all, int64(8<<20))
}

// An autoscaler waits for a machine that stays in draft. Only Holdfast reports it.
func testMachineWithoutNode(t *testing.T, s *fixture) {
	pool := spc.Pool{PK: 108, Name: "Default Worker Pool", InstanceID: "spcp-pool-1", Autoscaled: true, MaxCount: 5}
	empty := spc.Pool{PK: 109, InstanceID: "spcp-pool-2", Autoscaled: true, MaxCount: 5}
	s.spc.SetPools(pool, empty)
	now := time.Now().UTC()
	long := now.Add(-16 * time.Minute).Format(time.RFC3339Nano)
	up := spc.Record{
		PK: 1, InstanceID: "spcp-worker-1", GroupName: pool.Group(), PrivateIP: "192.0.2.1", State: "running", Created: long,
	}
	s.spc.SetNodes(
		up,
		spc.Record{PK: 2, InstanceID: "spcp-worker-2", GroupName: pool.Group(), State: "draft", Created: long},
		spc.Record{
			PK: 3, InstanceID: "spcp-worker-3", GroupName: pool.Group(), State: "draft",
			Created: now.Format(time.RFC3339Nano),
		},
	)
	_, _, err := s.AddNode(t.Context(), apiserver.NodeSpec{
		Name: "worker-1", InternalIP: "192.0.2.1", Ready: true, Labels: map[string]string{spc.NodeGroupLabel: pool.Group()},
	})
	require.NoError(t, err)
	runUntilTestEnds(t, s.publisher(t).Run)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		metrics := scrape(c, s.metrics)
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
			require.Contains(c, metrics, line)
		}
	}, soon, 10*time.Millisecond)
	require.Regexp(t, `event on holdfast-spc-inventory: SPCMachineNeverNode: SPC machine spcp-worker-2 \(node_id 2, `+
		`group autoscaling-spcp-pool-1\): state draft, no node since `, s.output.String())
	require.NotContains(t, s.output.String(), "spcp-worker-3")
	require.Eventually(t, func() bool { return s.status(t)["places"] != "" }, soon, 10*time.Millisecond)
	status := s.status(t)
	require.Contains(t, status["machines-without-a-node"], "spcp-worker-2")
	require.Equal(t, "Misty Fire (spci1r, aws, running)", status["cluster"])
	require.Equal(t, "autoscaling-spcp-pool-1: machines 2 starting, 1 up; nodes 1\n"+
		"autoscaling-spcp-pool-2: machines 0; nodes 0", status["groups"])
	require.Contains(t, status["places"], "starting   none       none        2")

	s.waitForRefreshes(t, 2)
	require.Equal(t, 1, strings.Count(s.output.String(), "SPCMachineNeverNode"), "the event was repeated")
	s.spc.SetNodes(s.spc.Nodes()[0])
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		require.Contains(c, scrape(c, s.metrics), "holdfast_spc_machines_never_nodes 0")
	}, soon, 10*time.Millisecond)
}

// One Node matches no machine, and two Nodes match the same one.
func testNodesWithoutMachine(t *testing.T, s *fixture) {
	s.spc.SetNodes(spc.Record{PK: 1, InstanceID: "a", PrivateIP: "192.0.2.1", State: "running"})
	for name, ip := range map[string]string{"old-name": "192.0.2.1", "new-name": "192.0.2.1", "unlisted": "192.0.2.9"} {
		_, _, err := s.AddNode(t.Context(), apiserver.NodeSpec{Name: name, InternalIP: ip})
		require.NoError(t, err)
	}
	_, err := s.Kubectl(t.Context(), "label", "node", "unlisted", spc.InstanceIDLabel+"=b")
	require.NoError(t, err)
	runUntilTestEnds(t, s.publisher(t).Run)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		metrics := scrape(c, s.metrics)
		require.Contains(c, metrics, "holdfast_spc_machines_with_several_nodes 1")
		require.Contains(c, metrics, "holdfast_spc_nodes_without_machine 1")
		output := s.output.String()
		require.Contains(c, output, "SPCMachineDoubled: several Nodes match SPC instance a: new-name, old-name")
		require.Contains(c, output, "SPCNodeWithoutMachine: node unlisted: its machine no longer exists in SPC, instance b: "+
			"it is no longer in the list")
	}, soon, 10*time.Millisecond)
	require.Eventually(t, func() bool {
		return s.status(t)["machines-with-several-nodes"] == "a: new-name, old-name"
	}, soon, 10*time.Millisecond)
}

// If the list cannot be published, the agents still use the published list. The age is that of the
// published list.
func testNotPublished(t *testing.T, s *fixture) {
	old := spc.Record{PK: 1, Cluster: 23391, InstanceID: "a", State: "building"}
	packed, err := spcapi.Encode(&spc.Inventory{Organization: 111, Cluster: 23391, Records: []spc.Record{old}})
	require.NoError(t, err)
	immutable := configMap(packed)
	immutable.Immutable = new(true)
	succeeded := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	configMaps := s.Client().CoreV1().ConfigMaps(namespace)
	for _, m := range []*corev1.ConfigMap{immutable, {
		ObjectMeta: metav1.ObjectMeta{Name: inventory + spcapi.StatusSuffix}, Data: map[string]string{"succeeded": succeeded},
	}} {
		_, err := configMaps.Create(t.Context(), m, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	s.spc.SetNodes(spc.Record{PK: 1, Cluster: 23391, InstanceID: "a", State: "running"})
	runUntilTestEnds(t, s.publisher(t).Run)
	require.Eventually(t, func() bool {
		return strings.Contains(s.status(t)["problem"], "field is immutable when `immutable` is set")
	}, soon, 5*time.Millisecond)
	require.Regexp(t, `^1h0m\d+s old$`, s.status(t)["age"])
	require.Equal(t, succeeded, s.status(t)["succeeded"])
	require.Regexp(t, `(?m)^holdfast_spc_inventory_age_seconds 36\d\d\.`, scrape(t, s.metrics))
	require.Regexp(t, `event on holdfast-spc-inventory: SPCNotRefreshed: failed to refresh the list of machines; `+
		`the last list stays in use \(1h0m\d+s old\): publishing the SPC inventory: `, s.output.String())

	require.NoError(t, configMaps.Delete(t.Context(), inventory, metav1.DeleteOptions{}))
	require.Eventually(t, func() bool {
		status := s.status(t)
		return status["problem"] == "" && !strings.HasPrefix(status["age"], "1h")
	}, soon, 5*time.Millisecond)
}

// No failure makes the token appear in logs, events, metrics or ConfigMaps.
func testTokenStaysSecret(t *testing.T, s *fixture) {
	s.spc.SetNodes(spc.Record{PK: 1, InstanceID: "a", State: "draft", Created: "2016-09-27T22:09:57.091286Z"})
	runUntilTestEnds(t, s.publisher(t).Run)
	require.Eventually(t, func() bool { return strings.HasSuffix(s.status(t)["age"], " old") }, soon, 5*time.Millisecond)
	failures := spcserver.Failures()
	for _, name := range []string{"echo", "redirect", "401", "html", "truncated", "types", "500"} {
		s.spc.Fail(failures[name])
		before := s.spc.Requests()
		require.Eventually(t, func() bool { return s.spc.Requests() > before+1 }, soon, 5*time.Millisecond)
	}
	for _, text := range []string{"", token + " " + token} {
		require.NoError(t, os.WriteFile(s.options.TokenFile, []byte(text), 0o600))
		reports := func() int { return strings.Count(s.output.String(), "the SPC token's file") }
		before := reports()
		require.Eventually(t, func() bool { return reports() > before }, soon, 5*time.Millisecond)
	}
	all := s.output.String() + scrape(t, s.metrics)
	maps, err := s.Client().CoreV1().ConfigMaps(namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, m := range maps.Items {
		all += m.String()
		if m.Name == inventory {
			list, err := spcapi.Decode(&m)
			require.NoError(t, err)
			require.Len(t, list.Records, 1, "the last good list was lost")
		}
	}
	require.Contains(t, all, "<the token>", "no failure quoted the token")
	require.Contains(t, all, "SPCNotRefreshed")
	require.NotContains(t, all, token)
	require.NotContains(t, all, token[:16])
	require.Regexp(t, `holdfast_spc_inventory_age_seconds [0-9.e-]+`, all)
	require.Contains(t, s.status(t), "age")
}
