package spcapi_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	clienttesting "k8s.io/client-go/testing"

	"github.com/holdfast-dev/holdfast/internal/control/spcapi"
	"github.com/holdfast-dev/holdfast/pkg/spc"
	"github.com/holdfast-dev/holdfast/test/spcserver"
)

func TestPublisher(t *testing.T) {
	for name, test := range map[string]func(*testing.T, *fixture){
		"list of machines":           testPublished,
		"parts":                      testParts,
		"large inventory":            testLargeInventory,
		"machine without a node":     testMachineWithoutNode,
		"many problems":              testManyProblems,
		"machine of an old list":     testMachineOfOldList,
		"nodes without a machine":    testNodesWithoutMachine,
		"list that is not published": testNotPublished,
		"groups with templates":      testGroups,
		"pools that hang":            testPoolsHang,
		"no output contains a token": testTokenStaysSecret,
	} {
		t.Run(name, func(t *testing.T) { inBubble(t, test) })
	}
}

func testPublished(t *testing.T, s *fixture) {
	s.addNode(t, "worker-1", "192.0.2.1")
	record := spc.Record{PK: 1, Cluster: 23391, InstanceID: "worker-1", State: "running"}
	s.spc.SetNodes(record)
	s.lead(t, s.publisher(t))
	require.Equal(t, []spc.Record{record}, s.published(t).Records)
	part, err := s.configMaps().Get(t.Context(), spcapi.PartName(inventory, "worker-1"), metav1.GetOptions{})
	require.NoError(t, err)
	list, err := spcapi.Decode(part)
	require.NoError(t, err)
	require.Equal(t, []spc.Record{record}, list.Records)

	s.api.ClearActions()
	s.waitForRefresh(t)
	for _, name := range s.written() {
		require.Equal(t, inventory+spcapi.StatusSuffix, name, "an unchanged list was written again")
	}
	s.spc.Fail(spcserver.Failures()["500"])
	s.waitForRefresh(t)
	require.Contains(t, s.status(t)["problem"], "responded with 500")
	require.Equal(t, []spc.Record{record}, s.published(t).Records)
	for _, name := range []string{inventory, part.Name} {
		require.NoError(t, s.configMaps().Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	s.spc.Fail(nil)
	s.waitForRefresh(t)
	require.Empty(t, s.status(t)["problem"])
	require.Equal(t, []spc.Record{record}, s.published(t).Records)
	_, err = s.configMaps().Get(t.Context(), part.Name, metav1.GetOptions{})
	require.NoError(t, err)
}

// written returns the names of the ConfigMaps that were created or updated.
func (s *fixture) written() (names []string) {
	for _, a := range s.api.Actions() {
		if w, isWrite := a.(clienttesting.CreateAction); isWrite { // also an update
			names = append(names, w.GetObject().(*corev1.ConfigMap).Name)
		}
	}
	return names
}

// optionsReader records the options of a Reader's requests.
type optionsReader struct {
	typedcorev1.ConfigMapInterface
	list, watch metav1.ListOptions
}

func (r *optionsReader) List(ctx context.Context, o metav1.ListOptions) (*corev1.ConfigMapList, error) {
	r.list = o
	return r.ConfigMapInterface.List(ctx, o)
}

func (r *optionsReader) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	r.watch = o
	if o.SendInitialEvents != nil { // as an API server that does not stream lists
		return nil, apierrors.NewInvalid(schema.GroupKind{}, "", nil)
	}
	return r.ConfigMapInterface.Watch(ctx, o)
}

// TestReader follows one part. A part that is unreadable or deleted does not change the machines.
func TestReader(t *testing.T) {
	inBubble(t, func(t *testing.T, s *fixture) {
		configMaps, changes := &optionsReader{ConfigMapInterface: s.configMaps()}, 0
		r := &spcapi.Reader{ConfigMaps: configMaps, Name: "part", Log: slog.New(slog.DiscardHandler)}
		require.Nil(t, r.Latest(), "an unread list is not an empty list")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx, func() { changes++ }) }()
		record := spc.Record{PK: 1, Cluster: 23391, InstanceID: "worker-1", State: "running"}
		packed, err := spcapi.Encode(&spc.Inventory{Records: []spc.Record{record}})
		require.NoError(t, err)
		part := configMap(packed)
		part.Name = "part"
		synctest.Wait()
		_, err = s.configMaps().Create(t.Context(), part, metav1.CreateOptions{})
		require.NoError(t, err)
		part = part.DeepCopy()
		part.BinaryData = nil
		synctest.Wait()
		_, err = s.configMaps().Update(t.Context(), part, metav1.UpdateOptions{})
		require.NoError(t, err)
		require.NoError(t, s.configMaps().Delete(t.Context(), "part", metav1.DeleteOptions{}))
		synctest.Wait()
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-1"}}
		require.Equal(t, &record, r.Latest().Find(node).Record)
		require.Equal(t, 1, changes)
		require.Equal(t, "metadata.name=part", configMaps.list.FieldSelector)
		require.Equal(t, "metadata.name=part", configMaps.watch.FieldSelector, "an agent reads more than its part")
		require.GreaterOrEqual(t, *configMaps.watch.TimeoutSeconds, int64(4*time.Hour/time.Second))
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
	})
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
			Created: time.Date(1999, 1, 1, 0, 0, i, i*7919, time.UTC).Format(time.RFC3339Nano),
		})
	}
	return machines
}

// A cluster of 15,000 machines, five times as many, fits into one ConfigMap, whose limit is 1 MiB.
// The list reaches the next leader completely.
func testLargeInventory(t *testing.T, s *fixture) {
	s.addNode(t, "worker-1", "192.0.2.1")
	machines := manyMachines(3000)
	s.spc.SetNodes(machines...)
	s.lead(t, s.publisher(t))
	list := s.published(t)
	require.Len(t, list.Records, len(machines))
	want := machines[2999]
	want.Created = ""
	require.Equal(t, want, list.Records[2999])
	stored, err := s.configMaps().Get(t.Context(), inventory, metav1.GetOptions{})
	require.NoError(t, err)
	size := len(stored.BinaryData[spcapi.InventoryKey])
	t.Logf("%d KiB for %d machines", size>>10, len(machines))
	require.Less(t, size, 600<<10/5)
	require.Contains(t, s.status(t)["machines-without-a-node"], "and 2900 more")
	require.Less(t, len(fmt.Sprint(s.status(t))), 64<<10)
}

// testParts changes one machine of 1,000: one part of the inventory changes. Its agents read as
// much as it has. The whole inventory has 35 KiB.
func testParts(t *testing.T, s *fixture) {
	machines := manyMachines(1000)
	var nodes []*corev1.Node
	for i, m := range machines {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("ip-%d", i), UID: types.UID(m.InstanceID)}}
		n.Spec.ProviderID = "aws:///us-west-2a/" + m.ProviderNodeID
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: m.PrivateIP}}
		nodes = append(nodes, n)
	}
	s.spc.SetNodes(machines...)
	publisher := s.publisher(t)
	publisher.Nodes = func(context.Context) ([]*corev1.Node, error) { return nodes, nil }
	s.lead(t, publisher)
	find := func(i int) spc.Match {
		part, err := s.configMaps().Get(t.Context(), spcapi.PartName(inventory, nodes[i].Name), metav1.GetOptions{})
		require.NoError(t, err)
		require.Less(t, len(part.BinaryData[spcapi.InventoryKey]), 4<<10)
		list, err := spcapi.Decode(part)
		require.NoError(t, err)
		return spc.NewIndex(list).Find(nodes[i])
	}
	for i := 0; i < len(nodes); i += 100 {
		require.Equal(t, machines[i].PK, find(i).Record.PK)
	}
	machines[0].State = "deleting"
	s.spc.SetNodes(machines...)
	s.api.ClearActions()
	<-time.After(90 * time.Second)
	synctest.Wait()
	require.Equal(t, spc.Missing, find(0).Outcome)
	require.ElementsMatch(t, []string{
		inventory, spcapi.PartName(inventory, nodes[0].Name), inventory + spcapi.StatusSuffix,
	}, s.written())
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
	node := s.addNode(t, "worker-1", "192.0.2.1")
	node.Labels[spc.NodeGroupLabel] = pool.Group()
	_, err := s.api.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{})
	require.NoError(t, err)
	s.lead(t, s.publisher(t))
	metrics := scrape(t, s.metrics)
	for _, line := range []string{
		`holdfast_spc_machines_never_nodes 1`,
		`holdfast_spc_nodes_without_machine 0`,
		`holdfast_spc_machines{cloud="alive",kubernetes="ready",spc="up"} 1`,
		`holdfast_spc_machines{cloud="none",kubernetes="none",spc="starting"} 2`,
		`holdfast_spc_group_machines{group="autoscaling-spcp-pool-1",phase="starting"} 2`,
		`holdfast_spc_group_nodes{group="autoscaling-spcp-pool-1"} 1`,
		`holdfast_spc_group_machines{group="autoscaling-spcp-pool-2",phase="up"} 0`,
		`holdfast_spc_refreshes_total{result="ok"} 1`,
	} {
		require.Contains(t, metrics, line)
	}
	require.Regexp(t, `event on holdfast-spc-inventory: SPCMachineNeverNode: SPC machine spcp-worker-2 \(node_id 2, `+
		`group autoscaling-spcp-pool-1\): state draft, no node since `, s.output.String())
	require.NotContains(t, s.output.String(), "spcp-worker-3")
	status := s.status(t)
	require.Contains(t, status["machines-without-a-node"], "spcp-worker-2")
	require.Equal(t, "Misty Fire (spci1r, aws, running)", status["cluster"])
	require.Equal(t, "autoscaling-spcp-pool-1: machines 2 starting, 1 up; nodes 1\n"+
		"autoscaling-spcp-pool-2: machines 0; nodes 0", status["groups"])
	require.Contains(t, status["places"], "starting   none       none        2")

	s.waitForRefresh(t)
	require.Equal(t, 1, strings.Count(s.output.String(), "SPCMachineNeverNode"), "the event was repeated")
	s.spc.SetNodes(up)
	s.waitForRefresh(t)
	require.Contains(t, scrape(t, s.metrics), "holdfast_spc_machines_never_nodes 0")
}

// More problems are found than one refresh may record. The next one records the others, the last of
// which is the most dangerous.
func testManyProblems(t *testing.T, s *fixture) {
	long := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	records := []spc.Record{{PK: 1, InstanceID: "a", PrivateIP: "192.0.2.1", State: "running"}}
	for i := range 12 {
		records = append(records, spc.Record{
			PK: int64(10 + i), InstanceID: fmt.Sprint("draft-", i), State: "draft", Created: long,
		})
	}
	s.spc.SetNodes(records...)
	s.addNode(t, "old-name", "192.0.2.1")
	s.addNode(t, "new-name", "192.0.2.1")
	s.lead(t, s.publisher(t))
	require.Equal(t, 10, strings.Count(s.output.String(), "event on"))
	s.waitForRefresh(t)
	s.waitForRefresh(t)
	require.Equal(t, 12, strings.Count(s.output.String(), "SPCMachineNeverNode"))
	require.Equal(t, 1, strings.Count(s.output.String(), "SPCMachineDoubled"))
}

// A machine joins while the API cannot be read. The last list is older than its Node, so it does
// not show that the machine has one.
func testMachineOfOldList(t *testing.T, s *fixture) {
	s.spc.SetNodes(spc.Record{
		PK: 1, InstanceID: "a", PrivateIP: "192.0.2.1", State: "building", Created: time.Now().UTC().Format(time.RFC3339),
	})
	stop := s.lead(t, s.publisher(t))
	s.spc.Fail(spcserver.Failures()["500"])
	<-time.After(time.Second)
	s.addNode(t, "a", "192.0.2.1")
	for range 3 {
		s.waitForRefresh(t)
	}
	stop()
	s.lead(t, s.publisher(t)) // the next leader begins with the list of this one
	s.waitForRefresh(t)
	require.NotContains(t, s.output.String(), "SPCMachineNeverNode")
	require.Contains(t, scrape(t, s.metrics), "holdfast_spc_machines_never_nodes 0")
}

// One Node matches no machine, and two Nodes match the same one.
func testNodesWithoutMachine(t *testing.T, s *fixture) {
	s.spc.SetNodes(spc.Record{PK: 1, InstanceID: "a", PrivateIP: "192.0.2.1", State: "running"})
	s.addNode(t, "old-name", "192.0.2.1")
	s.addNode(t, "new-name", "192.0.2.1")
	unlisted := s.addNode(t, "unlisted", "192.0.2.9")
	unlisted.Labels[spc.InstanceIDLabel] = "b"
	_, err := s.api.CoreV1().Nodes().Update(t.Context(), unlisted, metav1.UpdateOptions{})
	require.NoError(t, err)
	s.lead(t, s.publisher(t))
	metrics := scrape(t, s.metrics)
	require.Contains(t, metrics, "holdfast_spc_machines_with_several_nodes 1")
	require.Contains(t, metrics, "holdfast_spc_nodes_without_machine 1")
	require.Contains(t, s.output.String(), "SPCMachineDoubled: several Nodes match SPC instance a: new-name, old-name")
	require.Contains(t, s.output.String(), "SPCNodeWithoutMachine: node unlisted: its machine no longer exists in SPC, "+
		"instance b: it is no longer in the list")
	require.Equal(t, "a: new-name, old-name", s.status(t)["machines-with-several-nodes"])
}

// If the list cannot be published, the agents still use the published list. The age is that of the
// published list.
func testNotPublished(t *testing.T, s *fixture) {
	var isRepaired atomic.Bool
	s.api.PrependReactor("create", "configmaps", func(a clienttesting.Action) (bool, runtime.Object, error) {
		name := a.(clienttesting.CreateAction).GetObject().(*corev1.ConfigMap).Name
		return !isRepaired.Load() && name == inventory, nil, errors.New("not by our rules")
	})
	succeeded := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	_, err := s.configMaps().Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: inventory + spcapi.StatusSuffix}, Data: map[string]string{"succeeded": succeeded},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	s.spc.SetNodes(spc.Record{PK: 1, Cluster: 23391, InstanceID: "a", State: "running"})
	s.lead(t, s.publisher(t))
	require.Contains(t, s.status(t)["problem"], "not by our rules")
	require.Equal(t, "1h0m0s old", s.status(t)["age"])
	require.Equal(t, succeeded, s.status(t)["succeeded"])
	require.Contains(t, scrape(t, s.metrics), "holdfast_spc_inventory_age_seconds 3600\n")
	require.Contains(t, s.output.String(), "event on holdfast-spc-inventory: SPCNotRefreshed: failed to refresh the list "+
		"of machines; the last list stays in use (1h0m0s old): publishing the SPC inventory: ")

	isRepaired.Store(true)
	s.waitForRefresh(t)
	require.Empty(t, s.status(t)["problem"])
	require.Equal(t, "0s old", s.status(t)["age"])
}

// The machines are published although the API answers nothing else.
func testPoolsHang(t *testing.T, s *fixture) {
	s.spc.SetNodes(spc.Record{PK: 1, Cluster: 23391, InstanceID: "a", State: "running"})
	s.failAt("/nodepools", func(w http.ResponseWriter, r *http.Request) {
		s.failAt("/23391", spcserver.Hang)
		spcserver.Hang(w, r)
	})
	s.lead(t, s.publisher(t))
	<-time.After(31 * time.Second)
	synctest.Wait()
	require.Len(t, s.published(t).Records, 1)
	require.Contains(t, s.status(t)["problem"], "did not respond in time")
}

// No failure makes the token appear in logs, events, metrics or ConfigMaps.
func testTokenStaysSecret(t *testing.T, s *fixture) {
	s.spc.SetNodes(spc.Record{PK: 1, InstanceID: "a", State: "draft", Created: "2016-09-27T22:09:57.091286Z"})
	s.lead(t, s.publisher(t))
	failures := spcserver.Failures()
	for _, name := range []string{"echo", "redirect", "401", "html", "truncated", "types", "500"} {
		s.spc.Fail(failures[name])
		s.waitForRefresh(t)
	}
	for _, text := range []string{"", token + " " + token} {
		require.NoError(t, os.WriteFile(s.token, []byte(text), 0o600))
		s.waitForRefresh(t)
	}
	require.Contains(t, s.output.String(), "is empty")
	require.Contains(t, s.output.String(), "more than one word")
	all := s.output.String() + scrape(t, s.metrics)
	maps, err := s.configMaps().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, m := range maps.Items {
		all += m.String()
	}
	require.Len(t, s.published(t).Records, 1, "the last good list was lost")
	require.Contains(t, all, "<the token>", "no failure quoted the token")
	require.NotContains(t, all, token)
	require.NotContains(t, all, token[:16])
	require.Regexp(t, `holdfast_spc_inventory_age_seconds [0-9.e-]+`, all)
}
