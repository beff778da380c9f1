package observation

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// RoleCommand makes a Node an observer whose word counts alone.
const RoleCommand = "kubectl label node NAME node-role.kubernetes.io/etcd="

// RoleLabels returns the labels of the roles by which a Node is known to be a host of etcd. The
// admission plugin NodeRestriction refuses them to kubelets.
func RoleLabels() []string {
	return []string{
		"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/etcd", "node-role.kubernetes.io/master",
	}
}

// HasRole reports whether the Node has one of the RoleLabels, whatever its value.
func HasRole(n *corev1.Node) bool {
	return slices.ContainsFunc(RoleLabels(), func(key string) bool {
		_, isSet := n.Labels[key]
		return isSet
	})
}

// DescribeObservers tells whose word counts about the cluster, and how to make that stricter.
func DescribeObservers(c *v1alpha1.EtcdCluster) string {
	if c.Spec.Observers == v1alpha1.NodesWithRole {
		return "the word of one Node counts, if it has a role that a kubelet cannot give itself"
	}
	return "no Node that announces the etcd cluster has a role, so what two Nodes report counts, or the word of the " +
		"only one; to trust only Nodes that you choose: " + RoleCommand
}

// IsObserver reports whether the binding makes its Node an observer. If only Nodes with a role are
// observers, the live Node must also have the role still: see quorum.Snapshot.
func IsObserver(b v1alpha1.Binding) bool {
	return b.Basis == v1alpha1.BasisRole || b.Basis == v1alpha1.BasisAddress || b.Basis == v1alpha1.BasisDisputed
}

// WordsNeeded returns from how many Nodes a statement must come, so that it counts: one Node with a
// role, otherwise two. If one Node alone is known to have members, its word is enough. These are
// the observers that may exist, and the other Nodes named.
func WordsNeeded(c *v1alpha1.EtcdCluster, mayExist func(v1alpha1.Binding) bool, others ...string) int {
	if c.Spec.Observers == v1alpha1.NodesWithRole {
		return 1
	}
	nodes := slices.Clone(others)
	for _, b := range c.Spec.Members {
		if IsObserver(b) && mayExist(b) {
			nodes = append(nodes, b.Node)
		}
	}
	slices.Sort(nodes)
	if len(slices.Compact(nodes)) == 1 {
		return 1
	}
	return 2
}

// Counts reports whether a statement counts. The argument is all observations of observers that
// make it.
func Counts(statements []v1alpha1.Observation, needed int) bool {
	nodes := map[string]bool{}
	for _, o := range statements {
		nodes[o.Node] = true
	}
	return len(nodes) >= needed
}

// wordsNeeded is WordsNeeded for a reader who does not know which Nodes exist.
func wordsNeeded(c *v1alpha1.EtcdCluster) int {
	return WordsNeeded(c, func(v1alpha1.Binding) bool { return true })
}

// HasLeft reports whether a member has left the cluster: no binding names it, enough of the
// confirmed lists of observers lack it, and not enough contain it.
func HasLeft(c *v1alpha1.EtcdCluster, m v1alpha1.MemberID) bool {
	return HasLeftLists(c, Confirmed(Accepted(c)), m)
}

// HasLeftLists is HasLeft for some of the confirmed lists.
func HasLeftLists(c *v1alpha1.EtcdCluster, confirmed []v1alpha1.Observation, m v1alpha1.MemberID) bool {
	with, without := split(confirmed, func(o v1alpha1.Observation) bool { return IsListed(o, m) })
	needed := wordsNeeded(c)
	return !IsBound(c, m) && Counts(without, needed) && !Counts(with, needed)
}

// ListsWith returns the confirmed lists, however old, that show where a member runs: those of
// observers that contain it, and of these only the lists on whose addresses enough observers agree,
// if there are any. Old lists count as well, because a member does not move when its observer
// becomes silent.
func ListsWith(c *v1alpha1.EtcdCluster, id v1alpha1.MemberID) []v1alpha1.Observation {
	lists, _ := split(Confirmed(Accepted(c)), func(o v1alpha1.Observation) bool { return IsListed(o, id) })
	needed := wordsNeeded(c)
	agreed, _ := split(lists, func(o v1alpha1.Observation) bool {
		same, _ := split(lists, func(other v1alpha1.Observation) bool { return hasSameHosts(o, other, id) })
		return Counts(same, needed)
	})
	if len(agreed) == 0 {
		return lists
	}
	return agreed
}

func hasSameHosts(a, b v1alpha1.Observation, id v1alpha1.MemberID) bool {
	m, _ := FindMember(a, id)
	other, _ := FindMember(b, id)
	return slices.Equal(comparableHosts(m), comparableHosts(other))
}

func split(all []v1alpha1.Observation, is func(v1alpha1.Observation) bool) (with, without []v1alpha1.Observation) {
	for _, o := range all {
		if is(o) {
			with = append(with, o)
		} else {
			without = append(without, o)
		}
	}
	return with, without
}

// IsLocated reports whether a binding shows where the member runs. One that rests on the claim of
// its Node alone, or is disputed, shows only where the member may run: the member also counts as
// lost with every Node at its addresses.
func IsLocated(c *v1alpha1.EtcdCluster, m v1alpha1.MemberID) bool {
	return slices.ContainsFunc(c.Spec.Members, func(b v1alpha1.Binding) bool {
		return b.MemberID == m && (b.Basis == v1alpha1.BasisRole || b.Basis == v1alpha1.BasisAddress)
	})
}

// HasObserver reports whether a binding of the member makes its Node an observer: more than a claim
// shows that the member runs there.
func HasObserver(c *v1alpha1.EtcdCluster, m v1alpha1.MemberID) bool {
	return slices.ContainsFunc(c.Spec.Members, func(b v1alpha1.Binding) bool { return b.MemberID == m && IsObserver(b) })
}

// Unlocated returns, sorted, the members of which IsLocated is not true and that a confirmed list
// of an observer contains.
func Unlocated(c *v1alpha1.EtcdCluster) []v1alpha1.MemberID {
	found := map[v1alpha1.MemberID]bool{}
	for _, o := range Confirmed(Accepted(c)) {
		for _, m := range o.Members {
			found[m.ID] = !IsLocated(c, m.ID)
		}
	}
	return SortedIDs(found)
}
