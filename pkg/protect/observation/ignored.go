package observation

import (
	"cmp"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

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

// The reasons. With one of the first six, the whole observation is ignored as an answer; with the
// others, only the named part. The API server already rejects most of these (manifests/base). If it
// stores one nevertheless, no verdict changes.
const (
	// NotBound: no member is bound to the Node. Every new member has this reason for some seconds.
	NotBound IgnoredReason = "NotBound"
	// OtherNode: a member is bound to another Node with the same name.
	OtherNode IgnoredReason = "OtherNode"
	// NotHeard: the binding of the Node rests on the claim of the Node alone, or is disputed.
	NotHeard IgnoredReason = "NotHeard"
	// NeverAsked: the observation carries no nonce, so it answers no probe request.
	NeverAsked IgnoredReason = "NeverAsked"
	// BadID: the ID of a listed or local member is not valid: zero, too long, or not hex.
	BadID IgnoredReason = "BadID"
	// TooManyMembers: the list has more members than an etcd cluster can have.
	TooManyMembers IgnoredReason = "TooManyMembers"
	// MemberTwice: the list contains a member twice. The worse of the two entries counts.
	MemberTwice IgnoredReason = "MemberTwice"
	// OthersMember: the observation claims a local member that is bound to another Node. Only the
	// claim is ignored.
	OthersMember IgnoredReason = "OthersMember"
	// TimeAhead: the time is in the future. No decision compares times: nonces identify answers.
	TimeAhead IgnoredReason = "TimeAhead"
)

// IgnoredReasons returns all reasons, sorted.
func IgnoredReasons() []IgnoredReason {
	all := []IgnoredReason{
		NotBound, OtherNode, NotHeard, NeverAsked, BadID, TooManyMembers, MemberTwice, OthersMember, TimeAhead,
	}
	slices.Sort(all)
	return all
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
	for _, o := range c.Status.Observations {
		for reason, applies := range map[IgnoredReason]bool{
			NotBound:       unheardReason(c, o) == NotBound,
			OtherNode:      unheardReason(c, o) == OtherNode,
			NotHeard:       unheardReason(c, o) == NotHeard,
			NeverAsked:     o.Nonce == "",
			BadID:          !hasValidIDs(o),
			TooManyMembers: len(o.Members) > maxMembers,
			MemberTwice:    len(o.Members) <= maxMembers && len(MergeDuplicates(o.Members)) < len(o.Members),
			OthersMember: slices.ContainsFunc(c.Spec.Members, func(b v1alpha1.Binding) bool {
				return b.MemberID == o.LocalMember && b.Node != o.Node
			}),
			TimeAhead: o.Time.After(now.Add(ClockSkew)),
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

// unheardReason returns the reason why the observer is not heard: NotBound, OtherNode or NotHeard.
// It returns the empty string if a binding makes the Node an observer.
func unheardReason(c *v1alpha1.EtcdCluster, o v1alpha1.Observation) IgnoredReason {
	reason := NotBound
	for _, b := range c.Spec.Members {
		switch {
		case b.Node != o.Node:
		case b.NodeUID != o.NodeUID || o.NodeUID == "":
			if reason != NotHeard {
				reason = OtherNode
			}
		case IsHeard(b):
			return ""
		default:
			reason = NotHeard
		}
	}
	return reason
}

// IsValid reports whether the member list of the observation can be one of an etcd cluster. An
// invalid observation is ignored as a whole, as if its observer were silent.
func IsValid(o v1alpha1.Observation) bool { return len(o.Members) <= maxMembers && hasValidIDs(o) }

func hasValidIDs(o v1alpha1.Observation) bool {
	return (o.LocalMember == "" || IsValidID(string(o.LocalMember))) &&
		!slices.ContainsFunc(o.Members, func(m v1alpha1.MemberStatus) bool { return !IsValidID(string(m.ID)) })
}
