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

// provider is what the SPC provider of cluster-autoscaler does with labels and records, in its three known behaviours
// (cluster-autoscaler/cloudprovider/spc of 2016 to 0.4.0, of 0.4.1 to 0.4.3, and of 1.0.3.a to 1.1.0.c).
type provider struct {
	groups  []string
	records []spc.Record
}

// groupForNode is NodeGroupForNode. An empty group is nil: the node is not the autoscaler's business.
func (p provider) groupForNode(n *corev1.Node, release string) (string, error) {
	group, there := n.Labels["stackpoint.io/node_group"]
	known := slices.Contains(p.groups, group)
	switch {
	case known:
		return group, nil
	case release == "0.4.3":
		return "", errors.New("no such group")
	case release == "1.1.0" && !there && n.Labels["kubernetes.io/hostname"] == "":
		return "", errors.New("no label and no host name")
	}
	return "", nil
}

// deletes is DeleteNodes: the label's instance, by whatever record a table by instance ID ends up with, and of that the pk.
func (p provider) deletes(n *corev1.Node) (pks []int64) {
	instance := n.Labels["stackpoint.io/instance_id"]
	for _, r := range p.records {
		if instance != "" && r.InstanceID == instance {
			pks = append(pks, r.PK)
		}
	}
	slices.Sort(pks)
	return slices.Compact(pks)
}

// nodes is Nodes() of a group: 0.4 goes by the API's members and looks for their nodes by instance ID, 1.x by the label.
func (p provider) nodes(group, release string, all []*corev1.Node) (found []*corev1.Node) {
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

// machine is a virtual machine as it really is, with the Nodes that it made.
type machine struct {
	record spc.Record
	clean  bool // nothing in the list or on its Node casts doubt on it
	nodes  []*corev1.Node
}

// world is one random cluster with the list that SPC gives of it.
type world struct {
	*rand.Rand
	machines []*machine
	list     spc.Inventory
	pools    []spc.Pool
}

func randomWorld(seed uint64) *world {
	w := &world{Rand: rand.New(rand.NewPCG(seed, 5)), list: spc.Inventory{Organization: 6, Cluster: 504, AsOf: noon()}} //nolint:gosec // a test's
	for i := range 1 + w.IntN(3) {
		w.pools = append(w.pools, spc.Pool{PK: int64(i + 1), InstanceID: fmt.Sprintf("spcq-pool-%d", i+1), Autoscaled: true})
	}
	for i := range 1 + w.IntN(8) {
		w.machines = append(w.machines, w.machine(i))
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

func (w *world) one(of ...string) string { return of[w.IntN(len(of))] }

// machine is one that lives, has registered, and is listed rightly.
func (w *world) machine(i int) *machine {
	r := spc.Record{
		PK: int64(100 + i), Cluster: 504, InstanceID: fmt.Sprintf("spcq-worker-%d", i), Role: "worker",
		State: w.one("running", "provisioned", "building", "failed"), PrivateIP: fmt.Sprintf("10.0.0.%d", i+1), Size: "2gb",
		Location: w.one("", "us-west-2:us-west-2a"),
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
	m := &machine{record: r, clean: true}
	m.nodes = append(m.nodes, w.node(m, i))
	if w.IntN(6) == 0 { // it was renamed, and its old Node is still there
		m.nodes = append(m.nodes, w.node(m, i))
	}
	return m
}

func (w *world) node(m *machine, i int) *corev1.Node {
	name := w.one(m.record.InstanceID, strings.ToUpper(m.record.InstanceID), fmt.Sprintf("ip-10-0-0-%d", i+1), fmt.Sprintf("host-%d", w.IntN(99)))
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(noon().Add(-time.Hour)), Labels: map[string]string{
		corev1.LabelHostname: name, corev1.LabelTopologyZone: "us-west-2a",
	}}}
	for _, a := range w.internal(i) {
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

// internal are the addresses of a machine of both families, in one of their spellings.
func (w *world) internal(i int) []string {
	return []string{w.one(fmt.Sprintf("10.0.0.%d", i+1), fmt.Sprintf("::ffff:10.0.0.%d", i+1)), w.one(fmt.Sprintf("fd00::%d", i+1), fmt.Sprintf("FD00:0:0::%d", i+1))}
}

// disturb does one of the things to the list, or to the machine's Nodes, that have been seen or must be feared.
func (w *world) disturb(m *machine) {
	other := m.record
	other.PK += 1000
	add := func() { w.list.Records = append(w.list.Records, other) }
	switch w.IntN(14) {
	case 0: // the machine before had the same address, and is on its way out
		other.InstanceID, other.ProviderNodeID, other.State = "spcq-old-"+other.InstanceID, "i-0old", w.one("deleting", "deleted")
		add()
	case 1: // the machine before had it too, and SPC has not noticed that it is gone
		other.InstanceID, other.ProviderNodeID = "spcq-old-"+other.InstanceID, ""
		m.clean = false
		add()
	case 2: // and does not know the new one's address either
		other.InstanceID, other.ProviderNodeID, other.PublicIP = "spcq-old-"+other.InstanceID, "i-0old", ""
		m.record.PrivateIP, m.record.PublicIP, m.record.State, m.clean = "", "", "building", false
		for _, n := range m.nodes {
			n.Spec.ProviderID = "aws:///us-west-2a/i-0new"
		}
		m.record.ProviderNodeID = ""
		add()
	case 3: // two records of one instance ID, of which one may be gone
		other.PrivateIP, other.PublicIP, other.ProviderNodeID, other.State = "", "", "", w.one("running", "deleting", "draft")
		m.clean = false
		add()
	case 4: // listed twice
		w.list.Records = append(w.list.Records, m.record)
	case 5: // a draft beside it
		other.InstanceID, other.PrivateIP, other.PublicIP, other.ProviderNodeID, other.State = "spcq-next-"+other.InstanceID, "", "", "", "draft"
		add()
	case 6: // on its way out itself
		m.record.State, m.clean = "deleting", false
	case 7: // its Node was another machine's before, and carries that one's labels
		for _, n := range m.nodes {
			n.Labels["stackpoint.io/instance_id"], n.Labels["stackpoint.io/node_id"] = "spcq-worker-77", "177"
		}
		m.clean = false
	case 8: // the list was asked for before the Node was there, and shows who had its address then
		other.InstanceID, other.ProviderNodeID = "spcq-old-"+other.InstanceID, ""
		m.record.PrivateIP, m.record.PublicIP, m.record.ProviderNodeID, m.record.State, m.clean = "", "", "", "building", false
		for _, n := range m.nodes {
			n.CreationTimestamp = metav1.NewTime(noon().Add(time.Minute))
		}
		add()
	case 9: // a group that no label can hold, and that would be another's if it were made to fit
		m.record.GroupName, m.clean = strings.ReplaceAll(w.pools[0].Group(), "-", " "), false
	case 10: // an instance ID of that kind
		m.record.InstanceID, m.clean = strings.ReplaceAll(m.record.InstanceID, "-", " "), false
	}
}

// Every node that Holdfast labels is one that the SPC provider resolves, to the machine that the node really is and the
// group that the API has it in; and every node that nothing casts doubt on is labelled.
func TestTheSPCProviderResolvesEveryLabelledNode(t *testing.T) {
	labelled, resolved, left := 0, 0, 0
	for seed := range uint64(10_000) {
		w := randomWorld(seed)
		x := spc.NewIndex(&w.list)
		p := provider{records: w.list.Records}
		for _, pool := range w.pools {
			p.groups = append(p.groups, pool.Group())
		}
		var all []*corev1.Node
		truth := map[*corev1.Node]*machine{}
		for _, m := range w.machines {
			for _, n := range m.nodes {
				report, err := spc.Reported(n, x.Find(n), spc.Terms{Now: noon()})
				require.NoError(t, err)
				before := stackpoint(n)
				*n = *written(n, report)
				for key, value := range before {
					require.Equal(t, value, n.Labels[key], "never over another value")
				}
				all, truth[n] = append(all, n), m
				if len(stackpoint(n)) == len(before) {
					require.False(t, m.clean, "seed %d: %s: %s", seed, n.Name, x.Find(n).Message)
					left++
					continue
				}
				labelled++
				if n.Labels["stackpoint.io/instance_id"] == "" {
					require.False(t, m.clean)
					require.Empty(t, p.deletes(n))
					continue
				}
				resolved++
				require.Equal(t, []int64{m.record.PK}, p.deletes(n), "seed %d: %s", seed, n.Name)
				for _, release := range []string{"0.4.0", "0.4.3", "1.1.0"} {
					group, err := p.groupForNode(n, release)
					if slices.Contains(p.groups, m.record.GroupName) {
						require.NoError(t, err)
						require.Equal(t, m.record.GroupName, group, "seed %d: %s", seed, n.Name)
						require.Contains(t, p.nodes(group, release, []*corev1.Node{n}), n)
					} else {
						require.Empty(t, group, "seed %d: a group is never invented", seed)
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
	t.Logf("%d nodes labelled, %d of them resolved by instance, %d left alone for doubt", labelled, resolved, left)
	require.Greater(t, resolved, 20_000)
	require.Greater(t, left, 5_000)
}

// An autoscaled pool of size zero, and the first node that is made for it.
func TestAGroupOfSizeZeroAndItsFirstNode(t *testing.T) {
	pool := spc.Pool{PK: 108, InstanceID: "spcp19ss7c-pool-1", Autoscaled: true, MaxCount: 5}
	first := spc.Record{PK: 331, Cluster: 108, Pool: 108, InstanceID: "spcp19ss7c-worker-1", GroupName: pool.Group(), State: "draft", Created: "2026-11-20T11:58:00Z"}
	census := func(nodes []*corev1.Node, records ...spc.Record) spc.GroupCount {
		x := spc.NewIndex(&spc.Inventory{AsOf: noon(), Records: records})
		c, _ := spc.Take(x, []spc.Pool{pool}, nodes, nil, noon())
		return c.Groups["autoscaling-spcp19ss7c-pool-1"]
	}
	require.Equal(t, spc.GroupCount{Phases: map[spc.Phase]int{}}, census(nil))
	require.Equal(t, spc.GroupCount{Phases: map[spc.Phase]int{spc.Starting: 1}}, census(nil, first))

	first.State, first.PrivateIP = "provisioned", "10.138.0.3"
	n := node(address(corev1.NodeInternalIP, "10.138.0.3"))
	*n = *written(n, reported(t, n, spc.Terms{}, first))
	group, err := provider{groups: []string{pool.Group()}}.groupForNode(n, "0.4.3")
	require.NoError(t, err)
	require.Equal(t, pool.Group(), group)
	require.Equal(t, spc.GroupCount{Phases: map[spc.Phase]int{spc.Up: 1}, Nodes: 1}, census([]*corev1.Node{n}, first))
}
