package leader

import (
	"cmp"
	"context"
	"errors"
	"reflect"
	"slices"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/pkg/protect/membership"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// newClusterTime is the time after its creation in which a cluster without bindings is probed as
// often as one with open grants: bootstrap waits for a minute.
const newClusterTime = 2 * time.Minute

// returnTick is the time between two probes while a drained node returns. The drain of the next
// node waits for that.
const returnTick = 5 * time.Second

// A clusterState is what the leader keeps of one cluster between rounds. It is lost with the
// leadership. All that depends on it then starts from the beginning, and takes longer.
type clusterState struct {
	// probe is the last probe request. It stays open, so that every later nonce counts as an
	// answer to it too.
	probe *clusterstore.ProbeRequest
	// requestedAt is when it was made, and probedAt when the answers to the last one that succeeded
	// were read.
	requestedAt, probedAt time.Time
	// subject is what the last probe was about. Another one is a reason to probe immediately.
	subject []any
	// hasFailed is true if the last probe ended with an error that may last.
	hasFailed bool
	// proven holds since when the own agent of each bound member proves it healthy.
	proven map[v1alpha1.MemberID]healthProof
	// returns holds what is known about the return of drained nodes, by Node UID.
	returns map[types.UID]membership.NodeReturn
	// grants holds what is known about each open grant, by Node UID.
	grants map[types.UID]grantRecord
	// bound is the condition about claims after the last probe, without a reason before it.
	bound metav1.Condition
	// unobserved is a sentence about Nodes whose agents may not publish, or empty.
	unobserved string
	logged     loop.LogOnce
	// summary is the last one, for the metrics. The zero value is unknown.
	summary quorum.Summary
	// zones is how the voters were spread then.
	zones []quorum.ZoneShare
	// labelled holds, by Node UID, the listed members for which the leader labelled the Node.
	labelled map[types.UID]string
}

func newClusterState() *clusterState {
	return &clusterState{
		proven: map[v1alpha1.MemberID]healthProof{}, labelled: map[types.UID]string{},
	}
}

func (s *clusterState) nonces() []string {
	if s.probe == nil {
		return nil
	}
	return s.probe.Result().Nonces
}

func (l *Leader) reconcileCluster(
	ctx context.Context, c *v1alpha1.EtcdCluster, index nodeIndex, existing []*v1alpha1.EtcdObservation,
	s *clusterState,
) error {
	errs := []error{l.keepObservations(ctx, c, index, existing, s)}
	if _, isSet := c.Annotations[quorum.ResolveAnnotation]; isSet {
		errs = append(errs, l.resolveByHand(ctx, c, s))
	}
	subject, latest := subjectOf(c, index, s.nonces()), c
	if l.isProbeDue(c, subject, s) {
		read, err := l.probeAndWrite(ctx, c, index, subject, s)
		latest, errs = cmp.Or(read, c), append(errs, err)
	}
	l.reportSharedIDs(c, index, s)
	return errors.Join(append(errs, l.restoreLabels(ctx, latest, index, s), l.writeSummary(ctx, c, index, existing, s))...)
}

func (l *Leader) isProbeDue(c *v1alpha1.EtcdCluster, subject []any, s *clusterState) bool {
	if s.hasFailed {
		return l.Now().Sub(s.requestedAt) >= l.Tick // Each nonce wakes the loop.
	}
	// The first comparison is cheap, and true in most rounds.
	if s.probe == nil || !reflect.DeepEqual(subject, s.subject) && !apiequality.Semantic.DeepEqual(subject, s.subject) {
		return true
	}
	every := calmTick
	isNew := len(c.Spec.Members) == 0 && l.Now().Sub(c.CreationTimestamp.Time) < newClusterTime
	switch {
	case s.isReturning():
		every = returnTick
	case len(c.Spec.Grants) > 0 || isNew || lacksBoundMember(c, s.nonces()):
		every = l.Tick
	}
	return l.Now().Sub(s.requestedAt) >= every
}

// probeAndWrite requests a probe, and then brings grants and bindings up to date from the
// observations and from Nodes that it reads now. It returns the EtcdCluster with the observations
// that it read, or nil.
func (l *Leader) probeAndWrite(
	ctx context.Context, c *v1alpha1.EtcdCluster, index nodeIndex, subject []any, s *clusterState,
) (read *v1alpha1.EtcdCluster, err error) {
	live, err := l.Store.LiveCluster(ctx, c.Name)
	if err != nil {
		return nil, err
	}
	probe, err := l.Store.RequestProbe(ctx, live)
	if err != nil {
		return nil, err
	}
	if s.probe != nil {
		s.probe.Release()
	}
	s.probe, s.requestedAt, s.subject = probe, l.Now(), subject
	l.waitForObservations(ctx, probe, index)

	read, nonces, err := l.readAnswers(ctx, probe)
	if err != nil {
		s.hasFailed = true
		return nil, err
	}
	possible := index.possibleNodes(read)
	nodes := l.Store.LiveNodesNamed(ctx,
		slices.Concat(clusterstore.NodeNames(read), index.announcers(read), clusterstore.BoundNodeNames(possible)))
	view := quorum.View{Cluster: read, Nonces: nonces, Nodes: l.Store.StatesOf(nodes), PossibleNodes: possible}
	s.addProofs(view, l.Now(), 2*calmTick)
	s.addReturns(view, l.Now())
	if s.isReturning() {
		time.AfterFunc(returnTick, l.wake.Notify)
	}
	all, err := index.announcingNodes(nodes)
	if err == nil {
		err = l.writeSpec(ctx, view, all, s)
	}
	if err != nil {
		s.subject = nil // The next round probes again.
	}
	err = l.retryOnConflict(err)
	s.hasFailed = err != nil
	return read, err
}

// readAnswers returns the EtcdCluster with its observations as they are now, and the nonces that
// answer the request. An agent may have answered one since that the watch has not delivered, and a
// drained node needs a proof in every probe. So readAnswers reads the last one.
func (l *Leader) readAnswers(
	ctx context.Context, probe *clusterstore.ProbeRequest,
) (c *v1alpha1.EtcdCluster, nonces []string, err error) {
	c, err = l.Store.WithObservations(ctx, probe.Result().Cluster)
	if err == nil {
		_, err = l.Store.LiveCluster(ctx, c.Name)
	}
	return c, probe.Result().Nonces, err
}

func (l *Leader) waitForObservations(ctx context.Context, probe *clusterstore.ProbeRequest, index nodeIndex) {
	waiting, cancel := context.WithTimeout(ctx, l.Wait)
	defer cancel()
	for {
		result := probe.Result()
		if hasAllAnswers(result, index) || loop.Await(waiting, result.Cluster.Name, result.Changed) != nil {
			return
		}
	}
}

// writeSpec brings the object up to date. Tombstones come before bindings: a member whose Node
// is gone must have a grant before its binding may change.
func (l *Leader) writeSpec(
	ctx context.Context, v quorum.View, nodes []observation.AnnouncingNode, s *clusterState,
) (err error) {
	if v.Cluster, err = l.writeTombstones(ctx, v); err != nil {
		return err
	}
	if v.Cluster, err = l.writeBindings(ctx, v, nodes, s); err != nil {
		return err
	}
	return l.resolveGrants(ctx, v, s)
}

// retryOnConflict requests another round immediately if the error is a conflict, which is no
// failure. It returns all other errors.
func (l *Leader) retryOnConflict(err error) error {
	if errors.Is(err, clusterstore.ErrConflict) {
		l.wake.Notify()
		return nil
	}
	return err
}

// hasAllAnswers reports whether every observer with an existing Node has answered: those that are
// bound, and those that announce a member and may be bound next.
func hasAllAnswers(result clusterstore.ProbeResult, index nodeIndex) bool {
	expected := index.announcers(result.Cluster)
	for _, b := range result.Cluster.Spec.Members {
		if node, ok := index[b.Node]; ok && node.UID == b.NodeUID {
			expected = append(expected, b.Node)
		}
	}
	return !slices.ContainsFunc(expected, func(name string) bool {
		uid, hasAnswered := result.Answers[name]
		return !hasAnswered || uid != index[name].UID
	})
}

// lacksBoundMember reports whether an answer to the last probe request lacks a bound member.
func lacksBoundMember(c *v1alpha1.EtcdCluster, nonces []string) bool {
	return slices.ContainsFunc(c.Observations, func(o v1alpha1.Observation) bool {
		isMissing := func(b v1alpha1.Binding) bool { return !observation.IsListed(o, b.MemberID) }
		return o.Linearizable && observation.IsAnswer(o, nonces) && slices.ContainsFunc(c.Spec.Members, isMissing)
	})
}

// subjectOf returns everything that a probe acts on: the bindings, grants and agents of the
// cluster, the Nodes of these, and those that announce the cluster. Health, nonces and times are
// not part of it: every probe changes them, and would be the reason for the next one.
func subjectOf(c *v1alpha1.EtcdCluster, index nodeIndex, nonces []string) []any {
	parts := []any{c.Spec.Members, c.Spec.Grants, lacksBoundMember(c, nonces)}
	for _, o := range c.Observations {
		parts = append(parts, o.Node, o.NodeUID, o.LocalMember, o.NoMember)
	}
	names := append(clusterstore.NodeNames(c), index.announcers(c)...)
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if node, exists := index[name]; exists {
			// The end of a drain is a reason to probe at once.
			isCordoned := observation.IsLabelled(node.Node) && node.Spec.Unschedulable
			parts = append(parts, observation.NodeOf(node.Node), isCordoned)
		}
	}
	return parts
}
