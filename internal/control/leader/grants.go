package leader

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore"
	"github.com/holdfast-dev/holdfast/pkg/protect/membership"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// maxAhead is how far the time of a grant may be ahead of the time at which the leader first
// read it. Clocks that are synchronized differ by less.
const maxAhead = time.Minute

// A healthProof is an unbroken series of probes in which the agent of a member's own Node
// proved it healthy. last is the latest one.
type healthProof struct {
	node        types.UID
	since, last time.Time
}

// A grantRecord is what the leader knows of a grant since it first read it with these doors, all
// times by the leader's clock.
type grantRecord struct {
	doors []quorum.OpenDoor
	first time.Time
	// gone is when the leader first read that the grant's Node is gone. A finalizer may keep the Node
	// long after the deletion was allowed, and its machine may join again when the Node is gone. A new
	// leader starts again.
	gone time.Time
	// why is the reason to end that every probe since then has found. It is empty without one.
	why   string
	since time.Time
}

// addProofs adds the observations of the last probe to the series of proofs. An answer of the
// member's own agent that does not prove it healthy ends the series. A missing answer does not,
// because an agent may restart or be late, until it is missing for longer than maxGap.
func (s *clusterState) addProofs(v quorum.View, now time.Time, maxGap time.Duration) {
	proven := map[v1alpha1.MemberID]healthProof{}
	healthy := membership.SelfProven(v)
	for _, b := range v.Cluster.Spec.Members {
		p, ok := s.proven[b.MemberID]
		isUnbroken := ok && p.node == b.NodeUID && now.Sub(p.last) <= maxGap
		switch {
		case slices.Contains(healthy, b.MemberID):
			if !isUnbroken {
				p = healthProof{node: b.NodeUID, since: now}
			}
			p.last = now
			proven[b.MemberID] = p
		case isUnbroken && !hasAnswered(v, b):
			proven[b.MemberID] = p
		}
	}
	s.proven, s.probedAt = proven, now
}

func (s *clusterState) addReturns(v quorum.View, now time.Time) {
	returns := make(map[types.UID]membership.NodeReturn, len(v.Cluster.Spec.Grants))
	for _, g := range v.Cluster.Spec.Grants {
		returns[g.NodeUID] = s.returns[g.NodeUID].Next(v, g, now)
	}
	s.returns = returns
}

// isReturning reports whether a drained node is about to be back.
func (s *clusterState) isReturning() bool {
	for _, r := range s.returns {
		if r.IsUnderWay() {
			return true
		}
	}
	return false
}

func hasAnswered(v quorum.View, b v1alpha1.Binding) bool {
	return slices.ContainsFunc(v.Cluster.Observations, func(o v1alpha1.Observation) bool {
		return observation.IsFrom(o, b) && observation.IsAnswer(o, v.Nonces)
	})
}

// noteGrants records when each grant was first seen as it is now, and its Node to be gone. The time
// in the grant is by the clock of the replica that wrote it, which may be far behind the leader's.
func (s *clusterState) noteGrants(
	grants []v1alpha1.Grant, nodes map[string]observation.NodeState, now time.Time,
) {
	records := make(map[types.UID]grantRecord, len(grants))
	for _, g := range grants {
		record, ok := s.grants[g.NodeUID]
		if doors := quorum.Doors(g); !ok || !quorum.AreSame(record.doors, doors) {
			record = grantRecord{doors: doors, first: now}
		}
		switch node := nodes[g.Node]; {
		case !node.Known:
		case node.UID == g.NodeUID:
			record.gone = time.Time{}
		case record.gone.IsZero():
			record.gone = now
		}
		records[g.NodeUID] = record
	}
	s.grants = records
}

// allowedAt returns when the last door of a grant was opened, by the clock of the replica that
// wrote it, which outlives a change of leaders. If that is further ahead than a write takes, the
// time or the leader's clock is wrong. The grant existed when the leader first read it, so its age
// counts from there: the leader's clock is monotonic while the process lives.
func (s *clusterState) allowedAt(g v1alpha1.Grant) time.Time {
	opened, first := quorum.LastOpened(g).Time, s.grants[g.NodeUID].first
	if !first.IsZero() && opened.Sub(first) > maxAhead {
		return first
	}
	return opened
}

// openedAt returns allowedAt, or when the leader first read the grant, if that is later. So a
// duration counted from it has passed by either clock.
func (s *clusterState) openedAt(g v1alpha1.Grant) time.Time {
	return latest(s.allowedAt(g), s.grants[g.NodeUID].first)
}

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

// resolveGrants ends the grants for which a reason to end has held long enough, in every probe
// since it was first found.
func (l *Leader) resolveGrants(ctx context.Context, v quorum.View, s *clusterState) error {
	now := l.Now()
	s.noteGrants(v.Cluster.Spec.Grants, v.Nodes, now)
	since := make(map[v1alpha1.MemberID]time.Time, len(s.proven))
	for id, p := range s.proven {
		since[id] = p.since
	}
	grants := v.Cluster.Spec.Grants
	var ended []v1alpha1.Grant
	for _, g := range v.Cluster.Spec.Grants {
		record := s.grants[g.NodeUID]
		evidence := membership.ResolveEvidence{
			Now: now, ProvenSince: since, Return: s.returns[g.NodeUID],
			Opened: latest(s.openedAt(g), record.gone),
		}
		isResolved, why := l.resolve(ctx, v, g, evidence)
		switch {
		case !isResolved:
			record.why = ""
		case record.why != why: // The time starts again for another reason, and for a renewed grant.
			record.why, record.since = why, membership.HeldSince(v, g, evidence)
		}
		s.grants[g.NodeUID] = record
		if isResolved && now.Sub(record.since) >= l.ResolveAfter {
			ended, grants = append(ended, g), clusterstore.WithoutGrant(grants, g.NodeUID)
		}
	}
	if len(ended) == 0 {
		return nil
	}
	made, err := l.Store.Patch(ctx, v.Cluster, clusterstore.ReplaceGrants(v.Cluster, grants))
	if err != nil {
		return err
	}
	for _, g := range ended {
		l.reportEnded(made, g, s.grants[g.NodeUID].why)
	}
	return nil
}

// resolve reports whether a grant may end, and why. MachineEnding reads the API server, so it is
// called only for a grant that would end without it.
func (l *Leader) resolve(
	ctx context.Context, v quorum.View, g v1alpha1.Grant, evidence membership.ResolveEvidence,
) (isResolved bool, why string) {
	if isResolved, why = membership.Resolve(v, g, evidence); !isResolved {
		return false, why
	}
	evidence.Ending = l.MachineEnding(ctx, g)
	return membership.Resolve(v, g, evidence)
}

// resolveByHand ends the grant that an operator names by its Node UID, and removes the
// annotation in the same patch. It removes the annotation of a grant that is too young as well,
// and leaves the grant: an operator who names it may mean an earlier deletion.
func (l *Leader) resolveByHand(ctx context.Context, cached *v1alpha1.EtcdCluster, s *clusterState) error {
	c, err := l.Store.LiveCluster(ctx, cached.Name)
	if err != nil {
		return err
	}
	named, ok := c.Annotations[quorum.ResolveAnnotation]
	if !ok {
		return nil
	}
	at := slices.IndexFunc(c.Spec.Grants, func(g v1alpha1.Grant) bool { return string(g.NodeUID) == named })
	states := l.Store.LiveStates(ctx, clusterstore.NodeNames(c))
	grants, bindings := membership.ResolveByHand(c, types.UID(named), states)
	now := l.Now()
	s.noteGrants(c.Spec.Grants, states, now)
	ok = at >= 0
	isYoung := ok && now.Sub(s.openedAt(c.Spec.Grants[at])) < quorum.ResolveByHandAfter
	var ops []clusterstore.Operation
	if ok && !isYoung {
		ops = slices.Concat(
			clusterstore.ReplaceGrants(c, grants), clusterstore.ReplaceBindings(c, bindings, c.Spec.Observers))
	}
	made, err := l.Store.Patch(ctx, c, append(ops, clusterstore.RemoveResolveAnnotation(named)...))
	switch {
	case err != nil:
		return l.retryOnConflict(err)
	case !ok:
		l.Log.Warn("annotation names a grant that does not exist", "etcd_cluster", c.Name, "node_uid", named)
		l.recordEvent(made, corev1.EventTypeNormal, "NoSuchGrant", fmt.Sprintf("there is no grant for node UID %q", named))
	case isYoung:
		g := c.Spec.Grants[at]
		l.Log.Warn("annotation names a grant that is too young to be resolved by hand",
			"etcd_cluster", c.Name, "node", g.Node, "node_uid", named)
		l.recordEvent(made, corev1.EventTypeNormal, "GrantTooYoung", fmt.Sprintf("the grant for node %s (UID %s) stays: "+
			"the deletion that it allows may still be in progress. "+
			"Check the node, and settle the grant again in %s: kubectl holdfast settle %s",
			g.Node, named, quorum.ResolveByHandAfter, named))
	default:
		l.reportEnded(made, c.Spec.Grants[at], "an operator named it in the annotation "+quorum.ResolveAnnotation)
	}
	return nil
}

func (l *Leader) reportEnded(c *v1alpha1.EtcdCluster, g v1alpha1.Grant, why string) {
	l.Log.Info("resolved a grant", "etcd_cluster", c.Name, "node", g.Node, "node_uid", g.NodeUID,
		"members", g.Members, "granted", quorum.LastOpened(g).Time, "reason", why)
	l.recordEvent(c, corev1.EventTypeNormal, "Settled",
		fmt.Sprintf("the grant for node %s (UID %s) has ended: %s", g.Node, g.NodeUID, why))
}
