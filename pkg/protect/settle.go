package protect

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

const (
	// UnharmedAfter is how long after the last allow a Node that lives on shows that its deletion has failed: longer
	// than any DELETE can take, the API server's request timeout (60 s by default) and an etcd election after it included.
	UnharmedAfter = 5 * time.Minute
	// RebornAfter is how long a member must be proven on its new Node: longer than cluster-autoscaler waits before it
	// terminates an instance whose Node has vanished (--max-node-provision-time, 15 minutes by default).
	RebornAfter = 20 * time.Minute
	// ByHandAfter is how old a grant must be to be settled by hand: the API server's request timeout (60 s by default). An
	// operator who names a younger one may mean an earlier deletion of the Node, while this one is under way.
	ByHandAfter = time.Minute
)

// SettleEvidence is what settling a grant rests on besides the View.
type SettleEvidence struct {
	Now time.Time
	// Node is the state of the grant's Node, by a read that no cache answered.
	Node NodeState
	// ProvenSince is since when each member is proven healthy at every look, without a gap, by the agent of the very
	// Node that it is bound to (SelfProven).
	ProvenSince map[v1alpha1.MemberID]time.Time
}

// Settle says whether a grant has ended, and why, or else what is awaited. The caller lets a reason hold at two looks
// before it takes the grant away; the words of a reason stay the same from look to look. Silence settles nothing.
func Settle(v View, g v1alpha1.Grant, e SettleEvidence) (settled bool, why string) {
	if v.Cluster == nil {
		return false, "there is no EtcdCluster to settle it in"
	}
	s := newSight(v)
	if e.Node.Known && e.Node.UID == g.NodeUID && !e.Node.Deleting {
		if e.Now.Sub(g.Time.Time) >= UnharmedAfter {
			return true, fmt.Sprintf("node %s still lives, more than %s after its deletion was last allowed", g.Node, UnharmedAfter)
		}
	}
	members := slices.Clone(g.Members)
	for _, b := range s.bindings {
		if b.NodeUID == g.NodeUID && !slices.Contains(members, b.MemberID) {
			members = append(members, b.MemberID)
		}
	}
	slices.Sort(members)
	if len(s.lists) == 0 {
		return false, "no confirmed member list answers"
	}
	var ended, awaited []string
	for _, id := range members {
		how, done := s.ended(id, g, e)
		if done {
			ended = append(ended, how)
		} else {
			awaited = append(awaited, how)
		}
	}
	if len(awaited) > 0 {
		return false, strings.Join(awaited, "; ")
	}
	if len(ended) == 0 {
		return true, "it names no member"
	}
	return true, strings.Join(ended, "; ")
}

// ended says whether one member of a grant is no longer lost with its Node: it has left every list, or it lives on
// another Node.
func (s sight) ended(id v1alpha1.MemberID, g v1alpha1.Grant, e SettleEvidence) (how string, done bool) {
	switch {
	case listedByAny(s.lists, id):
	case s.conclusive():
		return fmt.Sprintf("member %s has left the member list", id), true
	default:
		return fmt.Sprintf("member %s has left the list of node %s, and nobody else has answered", id, s.lists[0].Node), false
	}
	b, bound := s.bindings[id]
	if !bound || b.NodeUID == g.NodeUID || gone(b.Node, b.NodeUID, s.nodes[b.Node]) != "" {
		return fmt.Sprintf("member %s is still in the member list, and on no other Node", id), false
	}
	since := e.ProvenSince[id]
	if since.IsZero() || !s.selfProven(id) {
		return fmt.Sprintf("member %s is bound to node %s, whose agent does not prove it healthy", id, b.Node), false
	}
	if since.Before(g.Time.Time) {
		since = g.Time.Time // what came before the deletion says nothing about what follows it
	}
	proven := e.Now.Sub(since)
	if proven < RebornAfter {
		return fmt.Sprintf("member %s has been proven healthy on node %s for %s of %s", id, b.Node, max(0, proven).Round(time.Minute), RebornAfter), false
	}
	return fmt.Sprintf("member %s has been proven healthy on node %s for more than %s", id, b.Node, RebornAfter), true
}

// SelfProven returns the members that the agent of the very Node they are bound to proves healthy in answer to this
// question, sorted: what SettleEvidence.ProvenSince is fed with.
func SelfProven(v View) []v1alpha1.MemberID {
	found := map[v1alpha1.MemberID]bool{}
	s := newSight(v)
	for id := range s.bindings {
		found[id] = s.selfProven(id)
	}
	return sorted(found)
}

func (s sight) selfProven(id v1alpha1.MemberID) bool {
	b := s.bindings[id]
	return s.alarmsRead && !s.corrupt[id] && slices.ContainsFunc(s.answers, func(o v1alpha1.Observation) bool {
		m, found := listed(o, id)
		return o.Node == b.Node && o.NodeUID == b.NodeUID && found && m.Healthy
	})
}
