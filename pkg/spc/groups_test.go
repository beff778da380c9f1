package spc_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/holdfast-dev/holdfast/pkg/spc"
)

const poolGroup = "autoscaling-netatt9dgn-pool-1"

func pool(change func(*spc.Pool)) spc.Pool {
	p := spc.Pool{
		PK: 108, Name: "Default Worker Pool", InstanceID: "netatt9dgn-pool-1", Size: "c4.xlarge", Role: "worker",
		Autoscaled: true, MinCount: 1, MaxCount: 5,
	}
	if change != nil {
		change(&p)
	}
	return p
}

// groupNode returns a Ready Node of the record with this suffix of its address and ID.
func groupNode(suffix string, change func(*corev1.Node)) *corev1.Node {
	n := registeredNode("worker-"+suffix, "10.0.0."+suffix, true)
	n.Labels = map[string]string{
		"kubernetes.io/arch": "amd64", "kubernetes.io/hostname": n.Name, "team": "a", "stackpoint.io/node_id": suffix,
		"holdfast.dev/drain-guard": "never",
	}
	n.Status.Capacity = amounts("4", "8Gi", "50Gi")
	n.Status.Allocatable = amounts("3900m", "7Gi", "45Gi")
	if change != nil {
		change(n)
	}
	return n
}

func amounts(cpu, memory, disk string) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
		corev1.ResourceEphemeralStorage: resource.MustParse(disk),
	}
}

func groupRecord(pk int64, group, size string) spc.Record {
	suffix := strconv.FormatInt(pk, 10)
	return spc.Record{
		PK: pk, InstanceID: "instance-" + suffix, GroupName: group, Size: size, State: "running",
		PrivateIP: "10.0.0." + suffix,
	}
}

// nodeGroups returns the groups of a cluster with the records 1 and 2 of the group, and 3 of
// another group whose machines have the same size.
func nodeGroups(pools []spc.Pool, nodes []*corev1.Node, before map[string]spc.NodeGroup) map[string]spc.NodeGroup {
	x := spc.NewIndex(&spc.Inventory{Organization: 6, Cluster: 504, AsOf: noon(), Records: []spc.Record{
		groupRecord(1, poolGroup, "c4.xlarge"), groupRecord(2, poolGroup, "c4.xlarge"),
		groupRecord(3, "other", "c4.xlarge"), groupRecord(4, poolGroup, "c4.large"),
	}})
	return spc.NodeGroups(x, pools, nodes, before)
}

// TestNodeGroups: each group has a template of its own machines, also after it has become empty.
func TestNodeGroups(t *testing.T) {
	smaller := groupNode("2", func(n *corev1.Node) {
		n.Status.Capacity, n.Status.Allocatable = amounts("4", "8191Mi", "40Gi"), amounts("3800m", "7Gi", "35Gi")
		n.Labels["team"] = "b"
		n.Spec.Taints = []corev1.Taint{{Key: "node.kubernetes.io/unschedulable", Effect: "NoSchedule"}}
	})
	filled := nodeGroups([]spc.Pool{pool(nil)}, []*corev1.Node{groupNode("1", nil), smaller}, nil)
	one, elsewhere := []*corev1.Node{groupNode("1", nil)}, []*corev1.Node{groupNode("3", nil)}
	two := []*corev1.Node{groupNode("1", nil), smaller}
	notReady := groupNode("1", func(n *corev1.Node) { n.Status.Conditions = nil })
	unreported := groupNode("1", func(n *corev1.Node) { n.Status.Allocatable = nil })
	larger := pool(func(p *spc.Pool) { p.Size = "c4.2xlarge" })
	known := pool(func(p *spc.Pool) { p.CPU, p.Memory, p.RootDiskSize = 2, 4096, 50 })
	const ofGroup, ofSize, noTemplate = "Nodes of the group", "Nodes of the same size", "no template"
	arch := map[string]string{"kubernetes.io/arch": "amd64"}
	archAndTeam := map[string]string{"kubernetes.io/arch": "amd64", "team": "a"}
	for name, c := range map[string]struct {
		pool   spc.Pool
		nodes  []*corev1.Node
		before map[string]spc.NodeGroup
		from   string
		// sizes are cpu, memory and disk of the capacity, and cpu and memory of the allocatable. It is
		// empty for no template.
		sizes  string
		labels map[string]string
	}{
		"smallest of the group":             {pool(nil), two, nil, ofGroup, "4 8191Mi 40Gi 3800m 7Gi", arch},
		"one Node":                          {pool(nil), one, nil, ofGroup, "4 8Gi 50Gi 3900m 7Gi", archAndTeam},
		"empty, as it was":                  {pool(nil), elsewhere, filled, ofGroup, "4 8191Mi 40Gi 3800m 7Gi", arch},
		"always empty, same size elsewhere": {pool(nil), elsewhere, nil, ofSize, "4 8Gi 50Gi 3900m 7Gi", arch},
		"empty, of another size now":        {larger, one, filled, noTemplate, "", nil},
		"always empty, by the pool":         {known, nil, nil, "cpu and memory of the pool", "2 4Gi 50Gi 2 4Gi", nil},
		"unknown":                           {pool(nil), nil, nil, noTemplate, "", nil},
		"not ready":                         {pool(nil), []*corev1.Node{notReady}, nil, noTemplate, "", nil},
		"resources not reported":            {pool(nil), []*corev1.Node{unreported}, nil, noTemplate, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := nodeGroups([]spc.Pool{c.pool}, c.nodes, c.before)
			require.Len(t, got, 1)
			g := got[poolGroup]
			require.Equal(t, poolGroup, g.ID)
			require.Equal(t, []int{1, 5}, []int{*g.MinSize, *g.MaxSize})
			require.Contains(t, g.Debug, c.from)
			if c.sizes == "" {
				require.Nil(t, g.Template)
				return
			}
			has, mayUse := g.Template.Status.Capacity, g.Template.Status.Allocatable
			require.Equal(t, c.sizes, fmt.Sprint(has.Cpu(), has.Memory(), has.StorageEphemeral(), mayUse.Cpu(), mayUse.Memory()))
			want := map[string]string{
				"kubernetes.io/hostname": "template-of-" + poolGroup, "stackpoint.io/node_group": poolGroup,
				"stackpoint.io/node_pool": "Default-Worker-Pool", "stackpoint.io/cluster_id": "504",
				"stackpoint.io/role": "worker", "stackpoint.io/size": "c4.xlarge",
			}
			maps.Copy(want, c.labels)
			require.Equal(t, want, g.Template.Labels)
			require.Empty(t, g.Template.Spec.Taints)
		})
	}
}

// TestNodeGroupsTaints: a taint of the whole group is one of the template, and the taints that
// Kubernetes, autoscalers and holds remove again are not.
func TestNodeGroupsTaints(t *testing.T) {
	tainted := func(suffix, own string) *corev1.Node {
		return groupNode(suffix, func(n *corev1.Node) {
			for _, key := range []string{
				"stackpoint.io/node_group", own, "node.kubernetes.io/unschedulable", "holdfast.dev/held", "readiness.k8s.io/x",
				"startup-taint.cluster-autoscaler.kubernetes.io/holdfast", "DeletionCandidateOfClusterAutoscaler",
			} {
				n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Value: "v", Effect: "NoSchedule"})
			}
		})
	}
	got := nodeGroups([]spc.Pool{pool(nil)}, []*corev1.Node{tainted("1", "one"), tainted("2", "two")}, nil)
	require.Equal(t, []corev1.Taint{{Key: "stackpoint.io/node_group", Value: "v", Effect: "NoSchedule"}},
		got[poolGroup].Template.Spec.Taints)
}

// TestNodeGroupsOfPools: only autoscaled pools are groups. The API of 2016 has no pools, so the
// sizes of its groups are unknown.
func TestNodeGroupsOfPools(t *testing.T) {
	require.Empty(t, nodeGroups([]spc.Pool{pool(func(p *spc.Pool) { p.Autoscaled = false })}, nil, nil))
	require.Empty(t, nodeGroups([]spc.Pool{}, nil, nil))
	got := nodeGroups(nil, []*corev1.Node{groupNode("1", nil)}, nil)
	require.Len(t, got, 2)
	require.Nil(t, got[poolGroup].MinSize)
	require.Equal(t, "4", got[poolGroup].Template.Status.Capacity.Cpu().String())
	require.Nil(t, got["other"].Template)
}

// TestNodeGroupsAreMadeOnce: without pools, each of a group's records names it, and its template is
// made once. With 5,000 records, one template for each took 15 seconds.
func TestNodeGroupsAreMadeOnce(t *testing.T) {
	cost := func(group string) float64 {
		var records []spc.Record
		var nodes []*corev1.Node
		for pk := range int64(100) {
			records = append(records, groupRecord(pk+1, group, "c4.xlarge"))
			nodes = append(nodes, groupNode(strconv.FormatInt(pk+1, 10), nil))
		}
		x := spc.NewIndex(&spc.Inventory{AsOf: noon(), Records: records})
		return testing.AllocsPerRun(1, func() { spc.NodeGroups(x, nil, nodes, nil) })
	}
	require.Less(t, cost("one")-cost(""), 100.0)
}

// TestPoolNumbers: the fields that no sample of the API has may have any form.
func TestPoolNumbers(t *testing.T) {
	for text, want := range map[string]int64{
		`{"cpu":4}`: 4, `{"cpu":"4"}`: 4, `{"cpu":""}`: 0, `{"cpu":null}`: 0, `{"cpu":"4 cores"}`: 0, `{"cpu":-1}`: 0,
		`{"cpu":{"cores":4}}`: 0, `{}`: 0,
	} {
		var p spc.Pool
		require.NoError(t, json.Unmarshal([]byte(text), &p), text)
		require.EqualValues(t, want, p.CPU, text)
	}
}
