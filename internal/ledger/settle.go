package ledger

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// aheadAtMost is how far a grant may be dated ahead of its first sight: clocks that are kept differ by less.
const aheadAtMost = time.Minute

// proof is an unbroken row of looks at which the agent of a member's own Node proved it healthy. Last is the last one.
type proof struct {
	node        types.UID
	since, last time.Time
}

// sighting is when the leader first saw a grant of this time, by its own clock.
type sighting struct {
	granted metav1.Time
	first   time.Time
}

// ending is a reason to end a grant, that every look since then has found.
type ending struct {
	granted metav1.Time
	why     string
	since   time.Time
}

// remember takes the answers to the last question into the rows of proofs. An answer of the member's own agent that does
// not prove it breaks its row. Silence does not, an agent may restart or come late, until it has lasted longer than gap.
func (m *memory) remember(v protect.View, now time.Time, gap time.Duration) {
	proven := map[v1alpha1.MemberID]proof{}
	healthy := protect.SelfProven(v)
	for _, b := range v.Cluster.Spec.Members {
		p, ok := m.proven[b.MemberID]
		unbroken := ok && p.node == b.NodeUID && now.Sub(p.last) <= gap
		switch {
		case slices.Contains(healthy, b.MemberID):
			if !unbroken {
				p = proof{node: b.NodeUID, since: now}
			}
			p.last = now
			proven[b.MemberID] = p
		case unbroken && !answered(v, b):
			proven[b.MemberID] = p
		}
	}
	m.proven, m.lookedAt = proven, now
}

// answered says whether the agent of the binding's Node has answered the question.
func answered(v protect.View, b v1alpha1.Binding) bool {
	return slices.ContainsFunc(v.Cluster.Status.Observations, func(o v1alpha1.Observation) bool {
		return o.Node == b.Node && o.NodeUID == b.NodeUID && slices.Contains(v.Asked, o.Nonce)
	})
}

// notice remembers when each grant was first seen as it is now. Its time is by the clock of the replica that wrote it,
// which may be far behind the leader's.
func (m *memory) notice(grants []v1alpha1.Grant, now time.Time) {
	noticed := make(map[types.UID]sighting, len(grants))
	for _, g := range grants {
		s, ok := m.noticed[g.NodeUID]
		if !ok || !s.granted.Equal(&g.Time) {
			s = sighting{granted: g.Time, first: now}
		}
		noticed[g.NodeUID] = s
	}
	m.noticed = noticed
}

// dated returns the grant with the later of its own time and that of its first sight, so that what is counted from it
// has passed by either clock. One that is dated further ahead than a write takes was written by a clock that is wrong, or
// the leader's is: it was there at its first sight, and by the leader's clock, which runs on evenly while the process lives,
// what is counted from there has passed.
func (m *memory) dated(g v1alpha1.Grant) v1alpha1.Grant {
	first := m.noticed[g.NodeUID].first
	if !first.IsZero() && (first.After(g.Time.Time) || g.Time.Sub(first) > aheadAtMost) {
		g.Time = metav1.NewTime(first)
	}
	return g
}

// settle ends the grants whose reason to end has held long enough, at every look since it was first found.
func (l *Leader) settle(ctx context.Context, v protect.View, m *memory) error {
	now := l.o.Now()
	m.notice(v.Cluster.Spec.Grants, now)
	since := make(map[v1alpha1.MemberID]time.Time, len(m.proven))
	for id, p := range m.proven {
		since[id] = p.since
	}
	grants, found := v.Cluster.Spec.Grants, map[types.UID]ending{}
	var over []v1alpha1.Grant
	for _, g := range v.Cluster.Spec.Grants {
		settled, why := protect.Settle(v, m.dated(g), protect.SettleEvidence{Now: now, Node: v.Nodes[g.Node], ProvenSince: since})
		if !settled {
			continue
		}
		e, ok := m.ending[g.NodeUID]
		if !ok || e.why != why || !e.granted.Equal(&g.Time) {
			e = ending{granted: g.Time, why: why, since: now} // Another reason, or a renewed grant, starts anew.
		}
		found[g.NodeUID] = e
		if now.Sub(e.since) >= l.o.SettleAfter {
			over, grants = append(over, g), withoutGrant(grants, g.NodeUID)
		}
	}
	m.ending = found
	if len(over) == 0 {
		return nil
	}
	made, err := l.book.patch(ctx, v.Cluster, replaceGrants(v.Cluster, grants))
	if err != nil {
		return err
	}
	for _, g := range over {
		l.settled(made, g, found[g.NodeUID].why)
		delete(m.ending, g.NodeUID)
	}
	return nil
}

// settleByHand ends the grant that an operator names by its Node UID, and takes the annotation off in the same patch. One
// that is too young it leaves, and takes the annotation off all the same: what was said before a deletion is not said of it.
func (l *Leader) settleByHand(ctx context.Context, cached *v1alpha1.EtcdCluster, m *memory) error {
	c, err := l.book.cluster(ctx, cached.Name)
	if err != nil {
		return err
	}
	named, ok := c.Annotations[protect.SettleAnnotation]
	if !ok {
		return nil
	}
	at := slices.IndexFunc(c.Spec.Grants, func(g v1alpha1.Grant) bool { return string(g.NodeUID) == named })
	grants, bindings, ok := protect.SettledByHand(c, types.UID(named), l.book.states(ctx, nodesOf(c)))
	now := l.o.Now()
	m.notice(c.Spec.Grants, now)
	young := at >= 0 && now.Sub(m.dated(c.Spec.Grants[at]).Time.Time) < protect.ByHandAfter
	var ops []operation
	if ok && !young {
		ops = slices.Concat(replaceGrants(c, grants), replaceBindings(c, bindings))
	}
	made, err := l.book.patch(ctx, c, append(ops, withoutSettlement(named)...))
	switch {
	case err != nil:
		return l.again(err)
	case !ok || at < 0:
		l.log.Warn("an operator named a grant that is not there", "etcd_cluster", c.Name, "node_uid", named)
		l.o.Tell(made, "NoSuchGrant", fmt.Sprintf("there is no grant for node UID %q", named))
	case young:
		g := c.Spec.Grants[at]
		l.log.Warn("an operator named a grant that is too young to be settled by hand", "etcd_cluster", c.Name, "node", g.Node, "node_uid", named)
		l.o.Tell(made, "GrantTooYoung", fmt.Sprintf("the grant for node %s (UID %s) stays: the deletion that it allows may be under way. "+
			"See what becomes of the node, and name the grant again in %s", g.Node, named, protect.ByHandAfter))
	default:
		l.settled(made, c.Spec.Grants[at], "an operator named it in the annotation "+protect.SettleAnnotation)
	}
	return nil
}

// withoutSettlement takes the annotation off by which an operator names a grant, on condition that it names this one.
func withoutSettlement(named string) []operation {
	annotation := "/metadata/annotations/" + strings.ReplaceAll(protect.SettleAnnotation, "/", "~1")
	return []operation{{Op: "test", Path: annotation, Value: named}, {Op: "remove", Path: annotation}}
}

// settled tells that a grant has ended.
func (l *Leader) settled(c *v1alpha1.EtcdCluster, g v1alpha1.Grant, why string) {
	l.log.Info("settled a grant", "etcd_cluster", c.Name, "node", g.Node, "node_uid", g.NodeUID,
		"members", g.Members, "granted", g.Time.Time, "reason", why)
	l.o.Tell(c, "Settled", fmt.Sprintf("the grant for node %s (UID %s) has ended: %s", g.Node, g.NodeUID, why))
}
