package membership

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// ResolveEvidence is what Resolve needs besides the View.
type ResolveEvidence struct {
	Now time.Time
	// Opened is when the last door of the grant was opened, or when its Node was first seen to be
	// gone, by whichever clock is later.
	Opened time.Time
	// ProvenSince is the start of each member's current series of proofs. Since then, every probe by
	// the agent of the Node to which the member is bound has proven it healthy (SelfProven).
	ProvenSince map[v1alpha1.MemberID]time.Time
	// Ending is why a controller is already ending the machine of the Node. It is empty if none does.
	Ending string
	// Return is what is known about the return of the node, if the grant is for a drain.
	Return NodeReturn
}

// age returns for how long the machine has been able to leave.
func (e ResolveEvidence) age() time.Duration { return e.Now.Sub(e.Opened) }

const noListWhy = "no observer has answered with a confirmed member list"

// HeldSince returns since when every probe has shown the reason for which a grant may end: this
// probe, or the proof that came last, if each member has returned with the drained node.
func HeldSince(v quorum.View, g v1alpha1.Grant, e ResolveEvidence) time.Time {
	if len(quorum.Doors(g)) > 1 {
		return e.Now
	}
	var last time.Time
	for _, id := range quorum.NewSnapshot(v).GivenUpBy(g) {
		since, isProven := e.Return.provenSince[id]
		if !isProven {
			return e.Now
		}
		last = slices.MaxFunc([]time.Time{last, since}, time.Time.Compare)
	}
	return last
}

// Resolve reports whether a grant has ended, because all of its doors are shut, and why, or what is
// still awaited. The caller removes the grant only when the reason has held for a while, so the
// text of a reason does not change from round to round. Silent observers resolve nothing. The Nodes
// must come from reads without a cache.
func Resolve(v quorum.View, g v1alpha1.Grant, e ResolveEvidence) (isResolved bool, why string) {
	s := quorum.NewSnapshot(v)
	// The kubelet of such a machine may have registered again, or may do so as long as it exists.
	n := s.Nodes[g.Node]
	if e.Ending != "" && !quorum.IsReplaced(g, n) {
		return false, e.Ending
	}
	if n.Known && n.UID == g.NodeUID {
		return resolvePresent(s, g, e)
	}
	return resolveGone(s, g, e)
}

// resolvePresent reports whether all doors of a grant are shut whose Node exists. That a deletion
// of the Node or its machine is over does not mean that a drain is, and the reverse.
func resolvePresent(s quorum.Snapshot, g v1alpha1.Grant, e ResolveEvidence) (isResolved bool, why string) {
	var shut []string
	for _, door := range []struct {
		wasOpened bool
		resolve   func(quorum.Snapshot, v1alpha1.Grant, ResolveEvidence) (how string, isShut bool)
	}{{quorum.AllowsDeletion(g), resolveDeletion}, {g.Remove != nil, resolveRemoval}, {g.Drain != nil, resolveDrain}} {
		if !door.wasOpened {
			continue
		}
		how, isShut := door.resolve(s, g, e)
		if !isShut {
			return false, how
		}
		shut = append(shut, how)
	}
	return true, strings.Join(shut, "; ")
}

// resolveDeletion reports whether no deletion of the Node or of its machine is in progress any
// more.
func resolveDeletion(s quorum.Snapshot, g v1alpha1.Grant, e ResolveEvidence) (how string, isShut bool) {
	deletion, n := g, s.Nodes[g.Node]
	deletion.Drain, deletion.Remove = nil, nil
	switch {
	case n.Deleting:
		return fmt.Sprintf("node %s is being deleted", g.Node), false
	case quorum.IsVoid(deletion, n):
		return fmt.Sprintf("node %s was written after its deletion was allowed, so each DELETE of it is reviewed again",
			g.Node), true
	case e.age() >= quorum.ResolvePresentAfter:
		return fmt.Sprintf("node %s still exists more than %s after its deletion was last allowed",
			g.Node, quorum.ResolvePresentAfter), true
	}
	return fmt.Sprintf("the deletion of node %s was allowed less than %s ago, and may be in progress",
		g.Node, quorum.ResolvePresentAfter), false
}

// resolveRemoval reports whether the update of the Node that marks its member for the removal is no
// longer in progress. If it was carried out, the mark on the Node makes the member lost from then
// on, until it has left (departure.OfOthers). An EtcdMember of k0s marks no Node: k0s may remove
// the member at any time.
func resolveRemoval(s quorum.Snapshot, g v1alpha1.Grant, e ResolveEvidence) (how string, isShut bool) {
	if quorum.IsByEtcdMember(g) {
		return resolveRemoved(s, g)
	}
	if e.age() < quorum.ResolvePresentAfter {
		return fmt.Sprintf("the removal of the member of node %s was allowed less than %s ago, and may be in progress",
			g.Node, quorum.ResolvePresentAfter), false
	}
	return fmt.Sprintf("node %s still exists more than %s after the removal of its member was last allowed",
		g.Node, quorum.ResolvePresentAfter), true
}

// resolveRemoved reports whether the members that an EtcdMember removes have left. A member that
// has joined on the host since is not among them.
func resolveRemoved(s quorum.Snapshot, g v1alpha1.Grant) (how string, isShut bool) {
	if len(s.Lists) == 0 {
		return noListWhy, false
	}
	for _, id := range g.Members {
		if observation.IsListedByAny(s.Lists, id) {
			return fmt.Sprintf("member %s is still in the member list, and may be removed at any time, unless its EtcdMember "+
				"no longer requests that", id), false
		}
	}
	return fmt.Sprintf("member %s has left the member list", observation.JoinIDs(g.Members, ", ")), true
}

// resolveGone reports whether the machine of a grant can no longer return whose Node is gone.
func resolveGone(s quorum.Snapshot, g v1alpha1.Grant, e ResolveEvidence) (isResolved bool, why string) {
	if len(s.Lists) == 0 {
		return false, noListWhy
	}
	ended, awaited := resolveMembers(s, g, e, resolveMember)
	how, isEnded := resolveMachine(s, g, e)
	if !isEnded {
		awaited = append(awaited, how)
	}
	if len(awaited) > 0 {
		return false, strings.Join(awaited, "; ")
	}
	return true, strings.Join(append(ended, how), "; ")
}

// resolveMembers returns why members of a grant are no longer lost, and what is awaited of the
// others.
func resolveMembers(
	s quorum.Snapshot, g v1alpha1.Grant, e ResolveEvidence,
	resolve func(quorum.Snapshot, v1alpha1.MemberID, v1alpha1.Grant, ResolveEvidence) (how string, isEnded bool),
) (ended, awaited []string) {
	for _, id := range s.GivenUpBy(g) {
		how, isEnded := resolve(s, id, g, e)
		if isEnded {
			ended = append(ended, how)
		} else {
			awaited = append(awaited, how)
		}
	}
	return ended, awaited
}

// resolveMachine reports whether no member that joins again can be on the machine that the grant
// gives up. Either another machine has the name of its Node, or the time has passed in which a
// machine is removed after the deletion of its Node.
func resolveMachine(s quorum.Snapshot, g v1alpha1.Grant, e ResolveEvidence) (how string, isEnded bool) {
	switch n := s.Nodes[g.Node]; {
	case quorum.IsReplaced(g, n):
		return fmt.Sprintf("node %s is another machine now", g.Node), true
	case !n.Known:
		return fmt.Sprintf("node %s is not known to be gone", g.Node), false
	case e.age() < quorum.ResolveMovedAfter:
		return fmt.Sprintf("the machine of node %s may join again until %s", g.Node,
			e.Opened.Add(quorum.ResolveMovedAfter).UTC().Format(time.RFC3339)), false
	}
	return fmt.Sprintf("node %s was gone, and %s have passed", g.Node, quorum.ResolveMovedAfter), true
}

// resolveMember reports whether one member of a grant is no longer lost with its Node, because it
// has left every list or because it runs on another Node, and how.
func resolveMember(
	s quorum.Snapshot, id v1alpha1.MemberID, g v1alpha1.Grant, e ResolveEvidence,
) (how string, isEnded bool) {
	if !observation.IsListedByAny(s.Lists, id) {
		return fmt.Sprintf("member %s has left the member list", id), true
	}
	b := s.Bindings[id]
	if b.NodeUID == g.NodeUID || quorum.NodeProblem(b.NodeUID, s.Nodes[b.Node]) != quorum.NoProblem {
		return fmt.Sprintf("member %s is still in the member list, and no other Node is known to run it", id), false
	}
	since := e.ProvenSince[id]
	if since.IsZero() || !isSelfProven(s, id) {
		return fmt.Sprintf("member %s is bound to node %s, whose agent does not prove it healthy", id, b.Node), false
	}
	if since.Before(e.Opened) {
		since = e.Opened // proofs from before the deletion do not show what happens after it
	}
	proven := e.Now.Sub(since)
	if proven < quorum.ResolveMovedAfter {
		return fmt.Sprintf("member %s has been proven healthy on node %s for %s of the required %s",
			id, b.Node, max(0, proven).Round(time.Minute), quorum.ResolveMovedAfter), false
	}
	return fmt.Sprintf("member %s has been proven healthy on node %s for more than %s",
		id, b.Node, quorum.ResolveMovedAfter), true
}

// SelfProven returns, sorted, the members that the agent of their own bound Node proves healthy in
// the answer to this probe request. The caller derives ResolveEvidence.ProvenSince from it.
func SelfProven(v quorum.View) []v1alpha1.MemberID {
	found := map[v1alpha1.MemberID]bool{}
	s := quorum.NewSnapshot(v)
	for id := range s.Bindings {
		found[id] = isSelfProven(s, id)
	}
	return observation.SortedIDs(found)
}

// isSelfProven reports whether the agent on the member's own Node proves it healthy, and whether
// the proof counts. The agent shows that the member runs on this Node, so it may be one whose other
// statements do not count.
func isSelfProven(s quorum.Snapshot, id v1alpha1.MemberID) bool {
	isHealthy := func(m v1alpha1.MemberStatus) bool { return m.Healthy }
	own, _ := s.OwnAnswer(s.Bindings[id])
	m, _ := observation.FindMember(own, id)
	return s.IsClean(id) && !s.Corrupt[id] && m.Healthy && s.Proves(id, isHealthy)
}

// ResolveByHand returns the grants and bindings that remain when an operator resolves the grant
// of a Node UID. The grant ends. If the Node is gone, its bindings end too: otherwise its members
// would stay lost, and Tombstones would return the grant again. From then on these members count by
// probe, like members that never had a Node. A Node that could not be read counts as existing.
func ResolveByHand(
	c *v1alpha1.EtcdCluster, uid types.UID, nodes map[string]observation.NodeState,
) (grants []v1alpha1.Grant, bindings []v1alpha1.Binding) {
	grants = slices.DeleteFunc(c.DeepCopy().Spec.Grants, func(g v1alpha1.Grant) bool { return g.NodeUID == uid })
	for _, b := range c.Spec.Members {
		n := nodes[b.Node]
		if b.NodeUID != uid || !n.Known || n.UID == uid {
			bindings = append(bindings, b)
		}
	}
	return grants, bindings
}

// Tombstones returns the grants that must be written because a bound Node is gone without one. The
// members of such a Node are lost, and they must stay lost when the binding passes to another Node.
// The writer sets the time of the door Gone where it is zero. An existing grant that lacks members,
// or that only allows a drain or a removal, is returned with them and this door: it replaces the
// grant with the same Node UID. A member that left its cluster before its Node went is not lost:
// Bind ends its binding.
//
// The states must come from reads without a cache. For a Node that could not be read, no grant is
// returned.
func Tombstones(v quorum.View) []v1alpha1.Grant {
	c, s := v.Cluster, quorum.NewSnapshot(v)
	var found []v1alpha1.Grant
	for _, b := range c.Spec.Members {
		n, left := v.Nodes[b.Node], len(s.Lists) > 0 && !observation.IsListedByAny(s.Lists, b.MemberID)
		if left || !n.Known || n.UID == b.NodeUID || observation.HasGrant(c, b) {
			continue
		}
		i := slices.IndexFunc(found, func(g v1alpha1.Grant) bool { return g.NodeUID == b.NodeUID })
		if i < 0 {
			i = len(found)
			found = append(found, tombstoneOf(c, b))
		}
		found[i].Members = append(found[i].Members, b.MemberID)
		found[i].Addresses = quorum.MachineAddresses(c, found[i].Members, found[i].Addresses)
	}
	for _, g := range c.Spec.Grants {
		isFound := slices.ContainsFunc(found, func(f v1alpha1.Grant) bool { return f.NodeUID == g.NodeUID })
		if n := v.Nodes[g.Node]; !quorum.AllowsDeletion(g) && n.Known && n.UID != g.NodeUID && !isFound {
			found = append(found, asGone(g))
		}
	}
	return found
}

// asGone returns the grant as it must be once its Node is gone. A drain does not allow the deletion
// of the Node, and its time is not the time from which the machine may join again.
func asGone(g v1alpha1.Grant) v1alpha1.Grant {
	g = *g.DeepCopy()
	if !quorum.AllowsDeletion(g) {
		g.Gone = &v1alpha1.Door{}
	}
	return g
}

// tombstoneOf returns a copy of the grant of a binding's Node, or a new grant without members.
func tombstoneOf(c *v1alpha1.EtcdCluster, b v1alpha1.Binding) v1alpha1.Grant {
	for _, g := range c.Spec.Grants {
		if g.NodeUID == b.NodeUID {
			return asGone(g)
		}
	}
	return v1alpha1.Grant{
		NodeUID: b.NodeUID, Node: b.Node, Gone: &v1alpha1.Door{},
		MachineID: b.MachineID, SystemUUID: b.SystemUUID, ProviderID: b.ProviderID,
	}
}

// maxProbeGap is the longest time between two probes of a node that returns. After a longer one,
// the series of proofs starts again, because the machine may have restarted meanwhile.
const maxProbeGap = 2 * quorum.ResolveReturnedAfter

// A NodeReturn is what the leader has seen of the return of a drained node. The zero value means
// that the node was closed at the last probe, or that there was none.
type NodeReturn struct {
	// doors are those of the grant. A renewed grant starts again.
	doors []quorum.OpenDoor
	// probedAt is the time of the last probe.
	probedAt time.Time
	// provenSince is the first probe of the series in which the member's own agent has proven it
	// healthy at every probe, after a probe at which the node was open already.
	provenSince map[v1alpha1.MemberID]time.Time
}

// IsUnderWay reports whether the last probe was the first one that found the node open, or whether
// a member needs more proofs. A grant may stay for longer, for another door.
func (r NodeReturn) IsUnderWay() bool {
	for _, since := range r.provenSince {
		if r.probedAt.Sub(since) < quorum.ResolveReturnedAfter {
			return true
		}
	}
	return !r.probedAt.IsZero() && r.provenSince == nil
}

// Next returns the NodeReturn after another probe. The View has the observations and the live Nodes
// of that probe.
//
// The node may have been opened between the observations and the read of the Node, for example by a
// program that does not wait until the machine has restarted. So proofs count only from the probe
// after the one that first found the node open.
func (r NodeReturn) Next(v quorum.View, g v1alpha1.Grant, now time.Time) NodeReturn {
	n := v.Nodes[g.Node]
	if g.Drain == nil || !n.Known || n.Closed() != "" {
		return NodeReturn{}
	}
	next := NodeReturn{doors: quorum.Doors(g), probedAt: now}
	if !quorum.AreSame(r.doors, next.doors) || now.Sub(r.probedAt) > maxProbeGap {
		return next
	}
	next.provenSince = map[v1alpha1.MemberID]time.Time{}
	s := quorum.NewSnapshot(v)
	for _, id := range SelfProven(v) {
		if s.Bindings[id].NodeUID != g.NodeUID {
			continue
		}
		next.provenSince[id] = now
		if since, isProven := r.provenSince[id]; isProven {
			next.provenSince[id] = since
		}
	}
	return next
}

// resolveDrain reports whether the drain of a Node that exists is over. The existence of the Node
// shows nothing: the machine of a drained node restarts or goes before its Node does. The drain is
// over when the node is open again, and each of its members is proven healthy there, or has left
// the member list. The eviction itself must be over too if an override allowed it: that may be for
// a node that is open, which then shows no end of a drain.
func resolveDrain(s quorum.Snapshot, g v1alpha1.Grant, e ResolveEvidence) (how string, isShut bool) {
	if closed := s.Nodes[g.Node].Closed(); closed != "" {
		return fmt.Sprintf("node %s was drained, and %s", g.Node, closed), false
	}
	if g.Drain.BreakGlass && e.age() < quorum.ResolvePresentAfter {
		return fmt.Sprintf("the drain of node %s was forced less than %s ago, and may not have begun",
			g.Node, quorum.ResolvePresentAfter), false
	}
	if len(s.Lists) == 0 {
		return noListWhy, false
	}
	ended, awaited := resolveMembers(s, g, e, resolveReturned)
	if len(awaited) > 0 {
		return strings.Join(awaited, "; "), false
	}
	return strings.Join(append([]string{fmt.Sprintf("node %s is open again", g.Node)}, ended...), "; "), true
}

// resolveReturned reports whether one member of a drained node counts again.
func resolveReturned(
	s quorum.Snapshot, id v1alpha1.MemberID, g v1alpha1.Grant, e ResolveEvidence,
) (how string, isEnded bool) {
	switch {
	case !observation.IsListedByAny(s.Lists, id):
		return fmt.Sprintf("member %s has left the member list", id), true
	case s.Bindings[id].NodeUID != g.NodeUID:
		return resolveMember(s, id, g, e) // It runs on another Node.
	}
	since, isProven := e.Return.provenSince[id]
	if !isProven || !isSelfProven(s, id) || e.Now.Sub(since) < quorum.ResolveReturnedAfter {
		return fmt.Sprintf("node %s is open again, but its agent has not yet proven member %s healthy twice, %s apart",
			g.Node, id, quorum.ResolveReturnedAfter), false
	}
	return fmt.Sprintf("member %s has been proven healthy there for more than %s", id, quorum.ResolveReturnedAfter), true
}
