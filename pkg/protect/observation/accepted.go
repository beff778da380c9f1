package observation

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// ClusterIDOf returns the ID of the cluster, which is the name of its object. It is empty for nil.
func ClusterIDOf(c *v1alpha1.EtcdCluster) v1alpha1.ClusterID {
	if c == nil {
		return ""
	}
	return v1alpha1.ClusterID(c.Name)
}

// Accepted returns the valid observations of observers, sorted by node. It includes old ones.
// Each list contains each member once. Ignored returns the reasons for the others.
func Accepted(c *v1alpha1.EtcdCluster) []v1alpha1.Observation {
	found := make([]v1alpha1.Observation, 0, len(c.Status.Observations))
	for _, o := range c.Status.Observations {
		if unheardReason(c, o) == "" && IsValid(o) {
			o.Members = MergeDuplicates(o.Members)
			found = append(found, o)
		}
	}
	slices.SortFunc(found, func(a, b v1alpha1.Observation) int { return strings.Compare(a.Node, b.Node) })
	return found
}

// AcceptedWithNonce returns the accepted observations that carry one of these nonces. It omits an
// observation with an empty nonce, because that observation answers no probe request.
func AcceptedWithNonce(c *v1alpha1.EtcdCluster, nonces []string) []v1alpha1.Observation {
	return slices.DeleteFunc(Accepted(c), func(o v1alpha1.Observation) bool {
		return o.Nonce == "" || !slices.Contains(nonces, o.Nonce)
	})
}

// SilentAfter is the age of an observation after which its agent counts as silent where no probe
// can be requested. An agent publishes at least once a minute.
const SilentAfter = 3 * time.Minute

// Recent returns the cluster without the observations that are older than SilentAfter by the
// reader's clock. Only answers that grant nothing depend on this time: a silent agent may have died
// together with the member that its last observation proves healthy.
func Recent(c *v1alpha1.EtcdCluster, now time.Time) *v1alpha1.EtcdCluster {
	recent := *c
	recent.Status.Observations = slices.DeleteFunc(slices.Clone(c.Status.Observations), func(o v1alpha1.Observation) bool {
		return now.Sub(o.Time.Time) > SilentAfter
	})
	return &recent
}

// IsConfirmed reports whether the observation has a member list that a quorum confirmed.
func IsConfirmed(o v1alpha1.Observation) bool { return o.Linearizable && len(o.Members) > 0 }

// Confirmed returns the observations with a confirmed member list.
func Confirmed(all []v1alpha1.Observation) []v1alpha1.Observation {
	return slices.DeleteFunc(slices.Clone(all), func(o v1alpha1.Observation) bool { return !IsConfirmed(o) })
}

// MergeDuplicates merges the entries of one member into the worst of them: a voter if one of them
// is, healthy and started only if all of them are, with the alarms of all. The API server rejects
// such lists; with this function the arithmetic is right without that check.
func MergeDuplicates(members []v1alpha1.MemberStatus) []v1alpha1.MemberStatus {
	if isSortedSet(members) {
		return members // The usual case. The members are not changed.
	}
	found := make([]v1alpha1.MemberStatus, 0, len(members))
	for _, m := range members {
		i := slices.IndexFunc(found, func(f v1alpha1.MemberStatus) bool { return f.ID == m.ID })
		if i < 0 {
			found = append(found, m)
			continue
		}
		f := &found[i]
		f.Learner, f.Healthy = f.Learner && m.Learner, f.Healthy && m.Healthy
		f.PeerURLs, f.ClientURLs = slices.Concat(f.PeerURLs, m.PeerURLs), slices.Concat(f.ClientURLs, m.ClientURLs)
		f.Alarms = slices.Concat(f.Alarms, m.Alarms)
		if m.Name == "" {
			f.Name = ""
		}
	}
	slices.SortFunc(found, compareMembers)
	return found
}

// isSortedSet reports whether the members are sorted, and each is there once.
func isSortedSet(members []v1alpha1.MemberStatus) bool {
	for i, m := range members {
		isAgain := slices.ContainsFunc(members[:i], func(f v1alpha1.MemberStatus) bool { return f.ID == m.ID })
		if isAgain || (i > 0 && compareMembers(members[i-1], m) > 0) {
			return false
		}
	}
	return true
}

func compareMembers(a, b v1alpha1.MemberStatus) int {
	return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(string(a.ID), string(b.ID)))
}

// FindMember returns the member's entry in a list.
func FindMember(o v1alpha1.Observation, id v1alpha1.MemberID) (v1alpha1.MemberStatus, bool) {
	for _, m := range o.Members {
		if m.ID == id {
			return m, true
		}
	}
	return v1alpha1.MemberStatus{}, false
}

// IsListedByAny reports whether one of the lists contains the member.
func IsListedByAny(lists []v1alpha1.Observation, id v1alpha1.MemberID) bool {
	return slices.ContainsFunc(lists, func(o v1alpha1.Observation) bool {
		_, found := FindMember(o, id)
		return found
	})
}

// HasLeft reports whether a member has left the cluster: no binding names it, and no confirmed list
// of a founder contains it, or, without such a list, of another observer. Without a confirmed list
// this is not proven.
func HasLeft(c *v1alpha1.EtcdCluster, m v1alpha1.MemberID) bool {
	lists := OfFounders(c, Confirmed(Accepted(c)))
	return len(lists) > 0 && !IsBound(c, m) && !IsListedByAny(lists, m)
}

// IsBound reports whether the member is bound to a Node.
func IsBound(c *v1alpha1.EtcdCluster, m v1alpha1.MemberID) bool {
	return slices.ContainsFunc(c.Spec.Members, func(b v1alpha1.Binding) bool { return b.MemberID == m })
}

// Unbound returns, sorted, the members that are bound to no Node and that a confirmed list of a
// bound observer contains.
func Unbound(c *v1alpha1.EtcdCluster) []v1alpha1.MemberID {
	found := map[v1alpha1.MemberID]bool{}
	for _, o := range Confirmed(Accepted(c)) {
		for _, m := range o.Members {
			found[m.ID] = !IsBound(c, m.ID)
		}
	}
	return SortedIDs(found)
}

// SortedIDs returns the members of a set, sorted.
func SortedIDs(set map[v1alpha1.MemberID]bool) []v1alpha1.MemberID {
	var ids []v1alpha1.MemberID
	for id, in := range set {
		if in {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}
