package protect

import (
	"cmp"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

const (
	// mostMembers is how many members a list may have, as in the schema of v1alpha1.Observation.
	mostMembers = 20
	// clockSkew is how far ahead of the reader's clock an observation may be before its time is remarked upon.
	clockSkew = 5 * time.Minute
)

// IgnoredReason is why something in an EtcdCluster's observations is not heard: a closed set, fit for a metric's label.
type IgnoredReason string

// The reasons. With the first five, nothing of the observation is heard as an answer; with the others, the part that is
// named. Most of this the API server refuses to store (manifests/base); what is stored all the same changes no verdict.
const (
	// NotBound: no member is bound to its Node. So it is for some seconds with every new member.
	NotBound IgnoredReason = "NotBound"
	// OtherNode: a member is bound to a Node of that name, and it is another one.
	OtherNode IgnoredReason = "OtherNode"
	// NeverAsked: it carries no nonce, and so answers no question.
	NeverAsked IgnoredReason = "NeverAsked"
	// BadID: it lists or claims a member by what is no ID: zero, too long, or no hex.
	BadID IgnoredReason = "BadID"
	// TooManyMembers: it lists more members than an etcd cluster has.
	TooManyMembers IgnoredReason = "TooManyMembers"
	// MemberTwice: it lists a member twice. The worse of the two counts.
	MemberTwice IgnoredReason = "MemberTwice"
	// OthersMember: it claims as its own a member that is bound to another Node. The claim is not heard.
	OthersMember IgnoredReason = "OthersMember"
	// TimeAhead: its time lies in the future. No decision compares it; answers are told by their nonce.
	TimeAhead IgnoredReason = "TimeAhead"
)

// IgnoredReasons returns the whole set, sorted.
func IgnoredReasons() []IgnoredReason {
	all := []IgnoredReason{NotBound, OtherNode, NeverAsked, BadID, TooManyMembers, MemberTwice, OthersMember, TimeAhead}
	slices.Sort(all)
	return all
}

// Ignored is one observation of which something is not heard.
type Ignored struct {
	Node   string
	Reason IgnoredReason
}

// Unheard returns what in the cluster's observations is not heard, each reason of a node once, sorted. The time is the
// reader's. Old answers are none of it: who is silent is waited for, and has done nothing odd.
func Unheard(c *v1alpha1.EtcdCluster, now time.Time) []Ignored {
	var found []Ignored
	for _, o := range c.Status.Observations {
		for reason, is := range map[IgnoredReason]bool{
			NotBound:       standingOf(c, o) == NotBound,
			OtherNode:      standingOf(c, o) == OtherNode,
			NeverAsked:     o.Nonce == "",
			BadID:          !validIDs(o),
			TooManyMembers: len(o.Members) > mostMembers,
			MemberTwice:    len(o.Members) <= mostMembers && len(distinct(o.Members)) < len(o.Members),
			OthersMember: slices.ContainsFunc(c.Spec.Members, func(b v1alpha1.Binding) bool {
				return b.MemberID == o.LocalMember && b.Node != o.Node
			}),
			TimeAhead: o.Time.After(now.Add(clockSkew)),
		} {
			if is {
				found = append(found, Ignored{Node: o.Node, Reason: reason})
			}
		}
	}
	slices.SortFunc(found, func(a, b Ignored) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Reason, b.Reason)) })
	return slices.Compact(found)
}

// standingOf says whether the observation is by a Node that a member is bound to: empty, NotBound or OtherNode.
func standingOf(c *v1alpha1.EtcdCluster, o v1alpha1.Observation) IgnoredReason {
	standing := NotBound
	for _, b := range c.Spec.Members {
		switch {
		case b.Node != o.Node:
		case b.NodeUID == o.NodeUID && o.NodeUID != "":
			return ""
		default:
			standing = OtherNode
		}
	}
	return standing
}

// sane says that the observation's member list can be one. One that cannot is not heard at all, as if its observer were
// silent.
func sane(o v1alpha1.Observation) bool { return len(o.Members) <= mostMembers && validIDs(o) }

func validIDs(o v1alpha1.Observation) bool {
	return (o.LocalMember == "" || validID(string(o.LocalMember))) &&
		!slices.ContainsFunc(o.Members, func(m v1alpha1.MemberStatus) bool { return !validID(string(m.ID)) })
}
