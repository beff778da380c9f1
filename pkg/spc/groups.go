package spc

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeGroup describes an autoscaling group for an external provider of cluster-autoscaler
// (externalgrpc). ID, MinSize, MaxSize and Debug are the fields of the provider's NodeGroup.
type NodeGroup struct {
	ID string `json:"id"`
	// MinSize and MaxSize are nil if the API has no pools.
	MinSize *int `json:"minSize,omitempty"`
	MaxSize *int `json:"maxSize,omitempty"`
	// Debug names the origin of the template, or the reason why there is none.
	Debug string `json:"debug"`
	// Template is a new Node of the group, for NodeGroupTemplateNodeInfo. It is nil if nothing is
	// known of the group's machines.
	Template *corev1.Node `json:"template,omitempty"`
}

// The origins of a template, the best first.
const (
	fromGroup = "the template is from Ready Nodes of the group"
	fromSize  = "the template is from Ready Nodes of the same size"
	fromPool  = "the template is from cpu and memory of the pool, with nothing reserved for the system"
)

// defaultPods is the kubelet's default for --max-pods.
const defaultPods = 110

// NodeGroups returns the groups by their name, in a cluster whose API has pools those that are
// autoscaled. before are the groups of the last call: a group that has become empty keeps its
// template, unless the size of its machines has changed.
func NodeGroups(x *Index, pools []Pool, nodes []*corev1.Node, before map[string]NodeGroup) map[string]NodeGroup {
	poolOf := map[string]Pool{}
	for _, p := range pools {
		if p.Autoscaled {
			poolOf[exactLabelValue(p.Group())] = p
		}
	}
	if pools == nil { // the API of 2016
		for _, r := range x.records {
			poolOf[exactLabelValue(r.GroupName)] = Pool{}
		}
	}
	delete(poolOf, "")
	found, machines := map[string]NodeGroup{}, readyMachines(x, nodes)
	for id, p := range poolOf {
		g := newNodeGroup(id, x.inventory.Cluster, p, machines, before[id])
		if pools != nil {
			g.MinSize, g.MaxSize = &p.MinCount, &p.MaxCount
		}
		found[id] = g
	}
	return found
}

// machine is a record with its Ready Node.
type machine struct {
	record *Record
	node   *corev1.Node
}

// readyMachines returns the machines whose kubelets report, with their resources.
func readyMachines(x *Index, nodes []*corev1.Node) []machine {
	var found []machine
	for _, n := range nodes {
		if !isReady(n) || n.Status.Allocatable.Cpu().IsZero() {
			continue
		}
		if m := x.Find(n); m.Outcome == Matched {
			found = append(found, machine{m.Record, n})
		}
	}
	return found
}

func newNodeGroup(id string, cluster int64, p Pool, machines []machine, before NodeGroup) NodeGroup {
	var own, same []*corev1.Node
	for _, m := range machines {
		if m.record.GroupName == id && (p.Size == "" || m.record.Size == p.Size) {
			own = append(own, m.node)
		}
		if p.Size != "" && m.record.Size == p.Size {
			same = append(same, m.node)
		}
	}
	old := before.Template
	if old != nil && p.Size != "" && old.Labels[SizeLabel] != labelValue(p.Size) {
		old = nil
	}
	g := NodeGroup{ID: id}
	switch {
	case len(own) > 0:
		g.Debug, g.Template = fromGroup, newTemplate(own, commonLabels(own))
		g.Template.Spec.Taints = commonTaints(own)
	case old != nil && before.Debug == fromGroup:
		g.Debug, g.Template = fromGroup, old.DeepCopy()
	case len(same) > 0:
		g.Debug, g.Template = fromSize, newTemplate(same, platformLabels(same))
	case p.CPU > 0 && p.Memory > 0:
		g.Debug, g.Template = fromPool, &corev1.Node{}
		g.Template.Status.Capacity = p.resources()
		g.Template.Status.Allocatable = p.resources()
	case old != nil:
		g.Debug, g.Template = before.Debug, old.DeepCopy()
	default:
		g.Debug = fmt.Sprintf("no template: no Ready Node of the group or of size %q is known, and the pool has no cpu "+
			"and memory", p.Size)
		return g
	}
	complete(g.Template, id, cluster, p)
	return g
}

// complete sets what every Node of the group has, whatever the origin of the template.
func complete(n *corev1.Node, id string, cluster int64, p Pool) {
	n.Name = "template-of-" + id
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	for key, value := range map[string]string{
		corev1.LabelHostname: n.Name, NodeGroupLabel: id, ClusterIDLabel: strconv.FormatInt(cluster, 10),
		NodePoolLabel: labelValue(p.Name), RoleLabel: labelValue(p.Role), SizeLabel: labelValue(p.Size),
	} {
		if value != "" {
			n.Labels[key] = value
		}
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
}

// newTemplate returns a Node with the resources that all Nodes have, each with its smallest amount.
// A pod that fits there fits on each of the Nodes.
func newTemplate(like []*corev1.Node, labels map[string]string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: labels}}
	n.Status.Capacity, n.Status.Allocatable = maps.Clone(like[0].Status.Capacity), maps.Clone(like[0].Status.Allocatable)
	for _, other := range like[1:] {
		keepSmallest(n.Status.Capacity, other.Status.Capacity)
		keepSmallest(n.Status.Allocatable, other.Status.Allocatable)
	}
	return n
}

func keepSmallest(to, other corev1.ResourceList) {
	for name, amount := range to {
		if less, exists := other[name]; !exists {
			delete(to, name)
		} else if less.Cmp(amount) < 0 {
			to[name] = less
		}
	}
}

// commonLabels returns the labels that all Nodes have with the same value, without those of one
// machine and of Holdfast.
func commonLabels(nodes []*corev1.Node) map[string]string {
	found := maps.Clone(nodes[0].Labels)
	maps.DeleteFunc(found, func(key, value string) bool {
		switch key {
		case corev1.LabelHostname, InstanceIDLabel, NodeIDLabel, PrivateIPLabel:
			return true
		}
		return strings.Contains(key, "holdfast.dev/") ||
			slices.ContainsFunc(nodes, func(n *corev1.Node) bool { return n.Labels[key] != value })
	})
	return found
}

// platformLabels returns the common labels that follow from the size of a machine.
func platformLabels(nodes []*corev1.Node) map[string]string {
	found := commonLabels(nodes)
	maps.DeleteFunc(found, func(key, _ string) bool {
		return !strings.HasSuffix(key, "kubernetes.io/arch") && !strings.HasSuffix(key, "kubernetes.io/os") &&
			!strings.HasSuffix(key, "kubernetes.io/instance-type")
	})
	return found
}

// commonTaints returns the taints that all Nodes have, without those that are removed again.
func commonTaints(nodes []*corev1.Node) []corev1.Taint {
	var found []corev1.Taint
	for _, t := range nodes[0].Spec.Taints {
		isMissing := func(n *corev1.Node) bool {
			return !slices.ContainsFunc(n.Spec.Taints, func(other corev1.Taint) bool {
				return t.MatchTaint(&other) && t.Value == other.Value
			})
		}
		if !isTemporary(t.Key) && !slices.ContainsFunc(nodes, isMissing) {
			found = append(found, corev1.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect})
		}
	}
	slices.SortFunc(found, func(a, b corev1.Taint) int { return strings.Compare(a.ToString(), b.ToString()) })
	return found
}

// isTemporary reports whether a taint describes the state of one Node: those of Kubernetes, of
// autoscalers and of holds.
func isTemporary(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	return domain == "holdfast.dev" || domain == "readiness.k8s.io" || strings.HasSuffix(key, "ClusterAutoscaler") ||
		strings.HasSuffix(domain, "kubernetes.io") && domain != "node-role.kubernetes.io"
}

// number is a number in a form that is not documented: a JSON number, or a text with one. It is 0
// for everything else.
type number int64

// UnmarshalJSON never fails, because a list of pools must not fail for a field that it may lack.
func (n *number) UnmarshalJSON(text []byte) error {
	if v, err := strconv.ParseInt(strings.Trim(string(text), `"`), 10, 64); err == nil && v > 0 {
		*n = number(v)
	}
	return nil
}

func (p Pool) resources() corev1.ResourceList {
	found := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewQuantity(int64(p.CPU), resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(int64(p.Memory)<<20, resource.BinarySI),
		corev1.ResourcePods:   *resource.NewQuantity(defaultPods, resource.DecimalSI),
	}
	if p.RootDiskSize > 0 {
		found[corev1.ResourceEphemeralStorage] = *resource.NewQuantity(int64(p.RootDiskSize)<<30, resource.BinarySI)
	}
	return found
}
