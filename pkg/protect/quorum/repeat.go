package quorum

import (
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// RepeatWithin is the time after a grant in which a review of the same deletion is answered by that
// grant: the request timeout of the API server (60 s by default), which limits one DELETE.
const RepeatWithin = time.Minute

// Repeat returns the verdict of a grant that an earlier review of the same deletion wrote, for a
// review that Decide refuses. The API server reviews one DELETE again if the Node was written
// meanwhile. The first review allowed the deletion, and since then its members count as lost for
// every other review. To refuse would take back what the first one promised, at the cost of a
// DELETE that fails while its members stay lost.
//
// The grant answers only for another version of the Node, for its own user, within RepeatWithin,
// and if it names every member that the deletion may lose now by any source. The voters must be
// the same: a member may have been removed because an earlier DELETE by the same user has failed,
// and nothing else tells that one from this one. If no agent has answered with a list, the grant
// answers, and the verdict is not final.
//
// A review of the same version is about another DELETE: the API server does not review one version
// twice. A tombstone has no user, and a break-glass grant follows from no decision: neither
// answers. The caller writes nothing. A grant whose time was renewed here would answer again and
// again without a decision. The API server reviews an eviction only once, so drains are always
// decided, and the grant of a drain answers no deletion. Nor does a grant whose time is that of a
// drain after the deletion.
func Repeat(v View, r Request, now time.Time) (_ Verdict, isRepeated bool) {
	c := v.Cluster
	if r.UID == "" || r.User == "" || r.Drain || r.DryRun || r.BreakGlass != nil {
		return Verdict{}, false
	}
	at := slices.IndexFunc(c.Spec.Grants, func(g v1alpha1.Grant) bool { return g.NodeUID == r.UID })
	if at < 0 {
		return Verdict{}, false
	}
	g := c.Spec.Grants[at]
	age := now.Sub(g.Time.Time)
	isRewritten := g.NodeVersion != "" && r.Version != "" && g.NodeVersion != r.Version
	isForDeletion := g.Reason != v1alpha1.GrantDrain && !g.BreakGlass && (g.Drained == nil || g.Drained.Before(&g.Time))
	if !isRewritten || !isForDeletion || g.User != r.User || age < 0 || age >= RepeatWithin {
		return Verdict{}, false
	}
	lists, voters := NewSnapshot(v).Lists, slices.Sorted(slices.Values(g.Voters))
	isChanged := func(list v1alpha1.Observation) bool { return !slices.Equal(votersOf(list), voters) }
	if slices.ContainsFunc(lists, isChanged) {
		return Verdict{}, false
	}
	// Without the states of Nodes and without fresh observations, more members are possible, and
	// never fewer.
	t := newTarget(NewSnapshot(View{Cluster: c}), r)
	t.Lists = observation.Confirmed(observation.Accepted(c))
	isNew := func(id v1alpha1.MemberID) bool { return !slices.Contains(g.Members, id) }
	if slices.ContainsFunc(slices.Concat(t.possibleMembers(), t.possibleRejoins()), isNew) {
		return Verdict{}, false
	}
	id := observation.ClusterIDOf(c)
	return Verdict{
		Allowed: true, Reason: Repeated, Cluster: id, Members: slices.Clone(g.Members), Final: len(lists) > 0,
		Message: fmt.Sprintf("etcd cluster %s: the deletion of node %s by %s was allowed at %s, "+
			"and this review repeats it", id, r.Node, g.User, g.Time.UTC().Format(time.RFC3339)),
	}, true
}
