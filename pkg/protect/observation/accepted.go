// Package observation reads what the agents report about etcd: the annotations on their Nodes, and
// their EtcdObservations, which Join puts into the EtcdCluster in memory.
//
// ParseAnnouncement and ParseUnverified parse the annotations of a Node, FormatAnnouncement and
// FormatUnverified produce them. Accepted returns the observations that a decision may use, Ignored
// lists the others, and ignored parts, with the reason. NodesAt finds the Nodes at the addresses of
// a member.
//
// All functions are pure. Accepted trusts an observation only if a binding makes its Node an
// observer, because any agent can publish an observation of any cluster.
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
// Ignored returns the reasons for the others.
func Accepted(c *v1alpha1.EtcdCluster) []v1alpha1.Observation {
	found := make([]v1alpha1.Observation, 0, len(c.Observations))
	for _, o := range c.Observations {
		if ignoredReason(c, o) == "" && IsValid(o) {
			found = append(found, o)
		}
	}
	slices.SortFunc(found, func(a, b v1alpha1.Observation) int { return strings.Compare(a.Node, b.Node) })
	return found
}

// AcceptedWithNonce returns the accepted observations that carry one of these nonces.
func AcceptedWithNonce(c *v1alpha1.EtcdCluster, nonces []string) []v1alpha1.Observation {
	return slices.DeleteFunc(Accepted(c), func(o v1alpha1.Observation) bool { return !IsAnswer(o, nonces) })
}

// IsAnswer reports whether the observation answers a probe request with one of these nonces. One
// with an empty nonce answers none.
func IsAnswer(o v1alpha1.Observation, nonces []string) bool {
	return o.Nonce != "" && slices.Contains(nonces, o.Nonce)
}

// IsFrom reports whether the Node of the binding published the observation.
func IsFrom(o v1alpha1.Observation, b v1alpha1.Binding) bool {
	return o.Node == b.Node && o.NodeUID == b.NodeUID
}

// SilentAfter is the age of an observation after which its agent counts as silent where no probe
// can be requested. An agent publishes at least once a minute.
const SilentAfter = 3 * time.Minute

// Recent returns the cluster without the observations that are older than SilentAfter by the
// reader's clock. Only answers that grant nothing depend on this time: a silent agent may have died
// together with the member that its last observation proves healthy.
func Recent(c *v1alpha1.EtcdCluster, now time.Time) *v1alpha1.EtcdCluster {
	recent := *c
	recent.Observations = slices.DeleteFunc(slices.Clone(c.Observations), func(o v1alpha1.Observation) bool {
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

// FindMember returns the member's entry in a list.
func FindMember(o v1alpha1.Observation, id v1alpha1.MemberID) (v1alpha1.MemberStatus, bool) {
	for _, m := range o.Members {
		if m.ID == id {
			return m, true
		}
	}
	return v1alpha1.MemberStatus{}, false
}

// IsListed reports whether a list contains the member.
func IsListed(o v1alpha1.Observation, id v1alpha1.MemberID) bool {
	_, found := FindMember(o, id)
	return found
}

// IsListedByAny reports whether one of the lists contains the member.
func IsListedByAny(lists []v1alpha1.Observation, id v1alpha1.MemberID) bool {
	return slices.ContainsFunc(lists, func(o v1alpha1.Observation) bool { return IsListed(o, id) })
}

// IsBound reports whether the member is bound to a Node.
func IsBound(c *v1alpha1.EtcdCluster, m v1alpha1.MemberID) bool {
	return slices.ContainsFunc(c.Spec.Members, func(b v1alpha1.Binding) bool { return b.MemberID == m })
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

const (
	// maxMembers limits the members of a list, as the schema of v1alpha1.Observation does.
	maxMembers = 20
	// ClockSkew is how far ahead of the reader's clock the time of an observation may be before it is
	// reported as TimeAhead.
	ClockSkew = 5 * time.Minute
)

// IgnoredReason is the reason why a part of an EtcdCluster's observations is ignored. The reasons
// are a closed set, so that they can label a metric.
type IgnoredReason string

// The reasons. With one of the first five, the whole observation is ignored as an answer; with the
// others, only the named part. The API server already rejects most of these (manifests/base). If it
// stores one nevertheless, no verdict changes.
const (
	// NotBound: no member is bound to the Node. Every new member has this reason for some seconds.
	NotBound IgnoredReason = "NotBound"
	// OtherNode: a member is bound to another Node with the same name.
	OtherNode IgnoredReason = "OtherNode"
	// NotHeard: the binding of the Node rests on its claim alone, for example because it lacks a role.
	NotHeard IgnoredReason = "NotHeard"
	// NeverAsked: the observation carries no nonce, so it answers no probe request.
	NeverAsked IgnoredReason = "NeverAsked"
	// Invalid: the observation is not valid (IsValid).
	Invalid IgnoredReason = "Invalid"
	// OthersMember: the observation claims a local member that is bound to another Node. Only the
	// claim is ignored.
	OthersMember IgnoredReason = "OthersMember"
	// TimeAhead: the time is in the future. No decision compares times: nonces identify answers.
	TimeAhead IgnoredReason = "TimeAhead"
)

// IgnoredReasons returns all reasons, sorted.
func IgnoredReasons() []IgnoredReason {
	return []IgnoredReason{Invalid, NeverAsked, NotBound, NotHeard, OtherNode, OthersMember, TimeAhead}
}

// IgnoredObservation names the Node of an observation and the reason why a part of it is ignored.
type IgnoredObservation struct {
	Node   string
	Reason IgnoredReason
}

// Ignored returns the ignored parts of the cluster's observations, sorted, each reason of a Node
// once. The time is that of the reader's clock. Old answers are not among them: a decision waits
// for a silent observer, and silence is no error.
func Ignored(c *v1alpha1.EtcdCluster, now time.Time) []IgnoredObservation {
	var found []IgnoredObservation
	for _, o := range c.Observations {
		isOthers := func(b v1alpha1.Binding) bool { return b.MemberID == o.LocalMember && b.Node != o.Node }
		whole := ignoredReason(c, o)
		for reason, applies := range map[IgnoredReason]bool{
			whole:        whole != "",
			NeverAsked:   o.Nonce == "",
			Invalid:      !IsValid(o),
			OthersMember: slices.ContainsFunc(c.Spec.Members, isOthers),
			TimeAhead:    o.Time.After(now.Add(ClockSkew)),
		} {
			if applies {
				found = append(found, IgnoredObservation{Node: o.Node, Reason: reason})
			}
		}
	}
	slices.SortFunc(found, func(a, b IgnoredObservation) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Reason, b.Reason))
	})
	return slices.Compact(found)
}

// ignoredReason returns the reason why an observation is ignored: NotBound, OtherNode or NotHeard.
// It returns the empty string if a binding makes the Node an observer.
func ignoredReason(c *v1alpha1.EtcdCluster, o v1alpha1.Observation) IgnoredReason {
	reason := NotBound
	for _, b := range c.Spec.Members {
		switch {
		case b.Node != o.Node:
		case b.NodeUID != o.NodeUID:
			if reason != NotHeard {
				reason = OtherNode
			}
		case IsObserver(b):
			return ""
		default:
			reason = NotHeard
		}
	}
	return reason
}

// IsValid reports whether the observation can be about an etcd cluster: it has at most twenty
// members, each once, and all IDs are valid. An invalid observation is ignored as a whole, as if
// its observer were silent.
func IsValid(o v1alpha1.Observation) bool {
	if len(o.Members) > maxMembers || o.LocalMember != "" && !IsValidID(string(o.LocalMember)) {
		return false
	}
	for i, m := range o.Members {
		if !IsValidID(string(m.ID)) || IsListed(v1alpha1.Observation{Members: o.Members[:i]}, m.ID) {
			return false
		}
	}
	return true
}

// Finds reports whether the agent found the server or the data of a member on its host.
func Finds(o v1alpha1.Observation, id v1alpha1.MemberID) bool {
	return o.LocalMember == id && !o.NoMember && IsValid(o)
}
