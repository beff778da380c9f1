package membership

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// maxLookGap is the longest time between two looks at a node that returns. After a longer one, the
// series of proofs starts again, because the machine may have restarted meanwhile.
const maxLookGap = 2 * quorum.ResolveReturnedAfter

// A NodeReturn is what the leader has seen of the return of a drained node. The zero value means
// that the node was closed at the last look, or that there was none.
type NodeReturn struct {
	// granted is the time of the grant. A renewed grant starts again.
	granted metav1.Time
	// looked is the time of the last look.
	looked time.Time
	// provenSince is the first look of the series in which the member's own agent has proven it
	// healthy at every look, after a look at which the node was open already.
	provenSince map[v1alpha1.MemberID]time.Time
}

// Next returns the NodeReturn after another look. The View has the observations and the live Nodes
// of that look.
//
// The node may have been opened between the observations and the read of the Node, for example by a
// program that does not wait until the machine has restarted. So proofs count only from the look
// after the one that first found the node open.
func (r NodeReturn) Next(v quorum.View, g v1alpha1.Grant, now time.Time) NodeReturn {
	n := v.Nodes[g.Node]
	if g.Drained == nil || !n.Known || n.UID != g.NodeUID || n.Closed() != "" {
		return NodeReturn{}
	}
	next := NodeReturn{granted: g.Time, looked: now}
	if !r.granted.Equal(&g.Time) || now.Sub(r.looked) > maxLookGap {
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

// resolveDrained reports whether the grant of a drain has ended whose Node still exists. The
// existence of the Node shows nothing: the machine of a drained node restarts or goes before its
// Node does. The grant ends when the node is open again, and each of its members is proven healthy
// there, or has left the member list. A deletion of the Node that was allowed as well must be
// over. So must the eviction itself, if an override allowed it: that may be for a node that is
// open, which then shows no end of a drain.
func resolveDrained(s quorum.Snapshot, g v1alpha1.Grant, e ResolveEvidence) (isResolved bool, why string) {
	if closed := e.Node.Closed(); closed != "" {
		return false, fmt.Sprintf("node %s was drained, and %s", g.Node, closed)
	}
	if g.Reason != v1alpha1.GrantDrain && e.Now.Sub(g.Time.Time) < quorum.ResolvePresentAfter {
		return false, fmt.Sprintf("the deletion of node %s was allowed as well, less than %s ago, and may be in progress",
			g.Node, quorum.ResolvePresentAfter)
	}
	if g.BreakGlass && e.Now.Sub(g.Time.Time) < quorum.ResolvePresentAfter {
		return false, fmt.Sprintf("the drain of node %s was forced less than %s ago, and may not have begun",
			g.Node, quorum.ResolvePresentAfter)
	}
	if len(s.Lists) == 0 {
		return false, noListWhy
	}
	ended, awaited := resolveMembers(s, g, e, resolveReturned)
	if len(awaited) > 0 {
		return false, strings.Join(awaited, "; ")
	}
	return true, strings.Join(append([]string{fmt.Sprintf("node %s is open again", g.Node)}, ended...), "; ")
}

// resolveReturned reports whether one member of a drained node counts again.
func resolveReturned(
	s quorum.Snapshot, id v1alpha1.MemberID, g v1alpha1.Grant, e ResolveEvidence,
) (how string, isEnded bool) {
	switch {
	case !observation.IsListedByAny(s.Lists, id):
		return resolveUnlisted(s, id)
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
