package spc_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/pkg/spc"
)

// autoscalerModel models how the SPC provider of cluster-autoscaler uses labels and records.
// There are three known variants of cluster-autoscaler/cloudprovider/spc: of 2016 to 0.4.0,
// of 0.4.1 to 0.4.3, and of 1.0.3.a to 1.1.0.c.
type autoscalerModel struct {
	groups  []string
	records []spc.Record
}

// groupForNode models NodeGroupForNode. An empty group stands for nil: the autoscaler
// ignores the node.
func (p autoscalerModel) groupForNode(n *corev1.Node, release string) (string, error) {
	group, exists := n.Labels["stackpoint.io/node_group"]
	known := slices.Contains(p.groups, group)
	switch {
	case known:
		return group, nil
	case release == "0.4.3":
		return "", errors.New("no such group")
	case release == "1.1.0" && !exists && n.Labels["kubernetes.io/hostname"] == "":
		return "", errors.New("no label and no host name")
	}
	return "", nil
}

// deletedPKs models DeleteNodes. The provider keeps one record for each instance ID and
// deletes that record's pk. It is not defined which of several records it keeps, so the
// result has all of them.
func (p autoscalerModel) deletedPKs(n *corev1.Node) (pks []int64) {
	instance := n.Labels["stackpoint.io/instance_id"]
	for _, r := range p.records {
		if instance != "" && r.InstanceID == instance {
			pks = append(pks, r.PK)
		}
	}
	slices.Sort(pks)
	return slices.Compact(pks)
}

// nodes models Nodes() of a group. Versions 0.4 find the nodes of the API's members by
// instance ID, versions 1.x by the group label.
func (p autoscalerModel) nodes(group, release string, all []*corev1.Node) (found []*corev1.Node) {
	for _, n := range all {
		if release == "1.1.0" {
			if n.Labels["stackpoint.io/node_group"] == group {
				found = append(found, n)
			}
			continue
		}
		for _, r := range p.records {
			if r.GroupName == group && n.Labels["stackpoint.io/instance_id"] == r.InstanceID {
				found = append(found, n)
				break
			}
		}
	}
	return found
}

// simulatedMachine is the true state of a virtual machine, with the Nodes that it
// registered.
type simulatedMachine struct {
	record spc.Record
	clean  bool // neither the list nor its Nodes contain conflicting evidence
	nodes  []*corev1.Node
}

// simulatedCluster is a random cluster with SPC's list of it.
type simulatedCluster struct {
	*rand.Rand
	machines []*simulatedMachine
	list     spc.Inventory
	pools    []spc.Pool
}

func newSimulatedCluster(seed uint64) *simulatedCluster {
	w := &simulatedCluster{
		Rand: rand.New(rand.NewPCG(seed, 5)), //nolint:gosec // a test does not need secure random numbers
		list: spc.Inventory{Organization: 6, Cluster: 504, AsOf: noon()},
	}
	for i := range 1 + w.IntN(3) {
		w.pools = append(w.pools, spc.Pool{PK: int64(i + 1), InstanceID: fmt.Sprintf("spcq-pool-%d", i+1), Autoscaled: true})
	}
	for i := range 1 + w.IntN(8) {
		w.machines = append(w.machines, w.newMachine(i))
	}
	for _, m := range w.machines {
		w.disturb(m)
		w.list.Records = append(w.list.Records, m.record)
	}
	w.Shuffle(len(w.list.Records), func(i, j int) {
		w.list.Records[i], w.list.Records[j] = w.list.Records[j], w.list.Records[i]
	})
	return w
}

func (w *simulatedCluster) oneOf(texts ...string) string { return texts[w.IntN(len(texts))] }

// newMachine returns a live machine that has registered and that the list describes
// correctly.
func (w *simulatedCluster) newMachine(i int) *simulatedMachine {
	r := spc.Record{
		PK: int64(100 + i), Cluster: 504, InstanceID: fmt.Sprintf("spcq-worker-%d", i), Role: "worker",
		State: w.oneOf("running", "provisioned", "building", "failed"), PrivateIP: fmt.Sprintf("10.0.0.%d", i+1), Size: "2gb",
		Location: w.oneOf("", "us-west-2:us-west-2a"),
	}
	if pool := w.IntN(len(w.pools) + 1); pool < len(w.pools) {
		r.Pool, r.GroupName = w.pools[pool].PK, w.pools[pool].Group()
	}
	if w.IntN(2) == 0 {
		r.PublicIP = fmt.Sprintf("198.51.100.%d", i+1)
	}
	if w.IntN(2) == 0 {
		r.ProviderNodeID = fmt.Sprintf("i-0%d", i)
	}
	if w.IntN(4) == 0 {
		r.PrivateIP = fmt.Sprintf("fd00::%d/64", i+1)
	}
	m := &simulatedMachine{record: r, clean: true}
	m.nodes = append(m.nodes, w.newNode(m, i))
	if w.IntN(6) == 0 { // the machine was renamed, and its old Node still exists
		m.nodes = append(m.nodes, w.newNode(m, i))
	}
	return m
}

func (w *simulatedCluster) newNode(m *simulatedMachine, i int) *corev1.Node {
	name := w.oneOf(m.record.InstanceID, strings.ToUpper(m.record.InstanceID), fmt.Sprintf("ip-10-0-0-%d", i+1),
		fmt.Sprintf("host-%d", w.IntN(99)))
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, CreationTimestamp: metav1.NewTime(noon().Add(-time.Hour)),
		Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelTopologyZone: "us-west-2a"},
	}}
	for _, a := range w.internalAddresses(i) {
		address(corev1.NodeInternalIP, a)(n)
	}
	if m.record.PublicIP != "" && w.IntN(2) == 0 {
		address(corev1.NodeExternalIP, m.record.PublicIP)(n)
	}
	if w.IntN(2) == 0 {
		n.Spec.ProviderID = fmt.Sprintf("aws:///us-west-2a/i-0%d", i)
	}
	return n
}

// internalAddresses returns the IPv4 and IPv6 addresses of a machine, each in a random
// notation.
func (w *simulatedCluster) internalAddresses(i int) []string {
	return []string{
		w.oneOf(fmt.Sprintf("10.0.0.%d", i+1), fmt.Sprintf("::ffff:10.0.0.%d", i+1)),
		w.oneOf(fmt.Sprintf("fd00::%d", i+1), fmt.Sprintf("FD00:0:0::%d", i+1)),
	}
}

// disturb changes the list or the machine's Nodes in one of the ways that occur or may
// occur in practice.
func (w *simulatedCluster) disturb(m *simulatedMachine) {
	other := m.record
	other.PK += 1000
	add := func() { w.list.Records = append(w.list.Records, other) }
	switch w.IntN(14) {
	case 0: // an earlier machine had the same address and is being deleted
		other.InstanceID, other.ProviderNodeID = "spcq-old-"+other.InstanceID, "i-0old"
		other.State = w.oneOf("deleting", "deleted")
		add()
	case 1: // an earlier machine had it, and SPC has not noticed that it is deleted
		other.InstanceID, other.ProviderNodeID = "spcq-old-"+other.InstanceID, ""
		m.clean = false
		add()
	case 2: // in addition, SPC does not know the address of the new machine
		other.InstanceID, other.ProviderNodeID, other.PublicIP = "spcq-old-"+other.InstanceID, "i-0old", ""
		m.record.PrivateIP, m.record.PublicIP, m.record.State, m.clean = "", "", "building", false
		for _, n := range m.nodes {
			n.Spec.ProviderID = "aws:///us-west-2a/i-0new"
		}
		m.record.ProviderNodeID = ""
		add()
	case 3: // two records have the same instance ID, and one of them may be deleted
		other.PrivateIP, other.PublicIP, other.ProviderNodeID = "", "", ""
		other.State = w.oneOf("running", "deleting", "draft")
		m.clean = false
		add()
	case 4: // the record is repeated
		w.list.Records = append(w.list.Records, m.record)
	case 5: // there is a draft as well
		other.InstanceID, other.State = "spcq-next-"+other.InstanceID, "draft"
		other.PrivateIP, other.PublicIP, other.ProviderNodeID = "", "", ""
		add()
	case 6: // the machine is being deleted
		m.record.State, m.clean = "deleting", false
	case 7: // the Node was that of another machine and has the labels of that machine
		for _, n := range m.nodes {
			n.Labels["stackpoint.io/instance_id"], n.Labels["stackpoint.io/node_id"] = "spcq-worker-77", "177"
		}
		m.clean = false
	case 8: // the list was requested before the Node was created and shows the earlier machine
		other.InstanceID, other.ProviderNodeID = "spcq-old-"+other.InstanceID, ""
		m.record.PrivateIP, m.record.PublicIP, m.record.ProviderNodeID = "", "", ""
		m.record.State, m.clean = "building", false
		for _, n := range m.nodes {
			n.CreationTimestamp = metav1.NewTime(noon().Add(time.Minute))
		}
		add()
	case 9: // the group is not a valid label value, and adapted it would be another group
		m.record.GroupName, m.clean = strings.ReplaceAll(w.pools[0].Group(), "-", " "), false
	case 10: // the instance ID is not a valid label value
		m.record.InstanceID, m.clean = strings.ReplaceAll(m.record.InstanceID, "-", " "), false
	}
}

// The SPC provider resolves every labelled Node to its true machine and to the group in the
// API. Every Node without conflicting evidence is labelled.
func TestAutoscalerResolvesLabelledNodes(t *testing.T) {
	labelled, resolved, left := 0, 0, 0
	for seed := range uint64(10_000) {
		w := newSimulatedCluster(seed)
		x := spc.NewIndex(&w.list)
		p := autoscalerModel{records: w.list.Records}
		for _, pool := range w.pools {
			p.groups = append(p.groups, pool.Group())
		}
		var all []*corev1.Node
		truth := map[*corev1.Node]*simulatedMachine{}
		for _, m := range w.machines {
			for _, n := range m.nodes {
				report, err := spc.NewReport(n, x.Find(n), spc.Terms{Now: noon()})
				require.NoError(t, err)
				before := stackpointLabels(n)
				*n = *applied(n, report)
				for key, value := range before {
					require.Equal(t, value, n.Labels[key], "an existing label changed")
				}
				all, truth[n] = append(all, n), m
				if len(stackpointLabels(n)) == len(before) {
					require.False(t, m.clean, "seed %d: %s: %s", seed, n.Name, x.Find(n).Message)
					left++
					continue
				}
				labelled++
				if n.Labels["stackpoint.io/instance_id"] == "" {
					require.False(t, m.clean)
					require.Empty(t, p.deletedPKs(n))
					continue
				}
				resolved++
				require.Equal(t, []int64{m.record.PK}, p.deletedPKs(n), "seed %d: %s", seed, n.Name)
				for _, release := range []string{"0.4.0", "0.4.3", "1.1.0"} {
					group, err := p.groupForNode(n, release)
					if slices.Contains(p.groups, m.record.GroupName) {
						require.NoError(t, err)
						require.Equal(t, m.record.GroupName, group, "seed %d: %s", seed, n.Name)
						require.Contains(t, p.nodes(group, release, []*corev1.Node{n}), n)
					} else {
						require.Empty(t, group, "seed %d: the API has no such group", seed)
					}
				}
			}
		}
		for _, group := range p.groups {
			for _, release := range []string{"0.4.0", "1.1.0"} {
				for _, n := range p.nodes(group, release, all) {
					require.Equal(t, group, truth[n].record.GroupName, "seed %d: %s is not of %s", seed, n.Name, group)
				}
			}
		}
	}
	t.Logf("%d nodes labelled, %d of them resolved by instance, %d not labelled", labelled, resolved, left)
	require.Greater(t, resolved, 20_000)
	require.Greater(t, left, 5_000)
}
