package leader

import (
	"context"
	"slices"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

// visibleCondition is the type of the condition that reports whether an agent has observed the
// cluster recently. Otherwise the summary has no numbers, because old numbers would mislead.
const visibleCondition = "Visible"

// rolesCondition is the type of the condition that reports whether only Nodes with a role are
// observers.
const rolesCondition = "ObserversHaveRole"

// writeSummary writes the numbers of the cluster and the conditions if they differ, and keeps them
// for the metrics.
func (l *Leader) writeSummary(
	ctx context.Context, cached *v1alpha1.EtcdCluster, index nodeIndex, existing []*v1alpha1.EtcdObservation,
	s *clusterState,
) error {
	if s.probe == nil {
		return nil // There is no answer yet.
	}
	result := s.probe.Result()
	if l.Now().Sub(s.probedAt) > observation.SilentAfter {
		// No newer nonce could be written. Nothing proves that the answers still hold.
		result.Nonces = nil
	}
	if result.IsBehind(existing) {
		return nil // Until the EtcdCluster follows, the newer answers would count as none.
	}
	c := observation.Join(result.Cluster, existing)
	possible := index.possibleNodes(c)
	names := append(clusterstore.NodeNames(c), clusterstore.BoundNodeNames(possible)...)
	view := quorum.View{
		Cluster: c, Nonces: result.Nonces, Nodes: l.Store.StatesOf(index.cachedNodes(names)), PossibleNodes: possible,
	}
	s.summary = quorum.Summarize(view)
	s.zones = s.summary.Spread(l.zonesOf(index))
	wanted := statusOf(s.summary, s.bound, c, metav1.NewTime(l.Now()))
	if apiequality.Semantic.DeepEqual(c.Status, wanted) {
		return nil
	}
	return l.Store.ApplyStatus(ctx, cached.Name, wanted)
}

func (l *Leader) zonesOf(index nodeIndex) map[string]string {
	zones := map[string]string{}
	for name, node := range index {
		if zone := l.Store.ZoneOf(node.Node); zone != "" {
			zones[name] = zone
		}
	}
	return zones
}

// statusOf returns the part of the status that the leader writes. A condition keeps its time
// while its status stays. The condition about claims has no reason before the first probe.
func statusOf(
	summary quorum.Summary, bound metav1.Condition, c *v1alpha1.EtcdCluster, now metav1.Time,
) v1alpha1.EtcdClusterStatus {
	status := v1alpha1.EtcdClusterStatus{Conditions: slices.Clone(c.Status.Conditions)}
	visible := metav1.Condition{
		Type: visibleCondition, Status: metav1.ConditionFalse, Reason: string(quorum.CannotSee),
		Message: words.Summary(summary),
	}
	if summary.Known {
		visible.Status, visible.Reason = metav1.ConditionTrue, "MemberListConfirmed"
		// A member list has at most twenty entries.
		status.Voters, status.Healthy = new(int32(summary.Voters)), new(int32(summary.Healthy))
		status.Quorum, status.MayLose = new(int32(summary.Quorum)), new(int32(summary.MayLose))
	}
	roles := metav1.Condition{Type: rolesCondition, Status: metav1.ConditionFalse, Reason: string(c.Spec.Observers)}
	if c.Spec.Observers == v1alpha1.NodesWithRole {
		roles.Status = metav1.ConditionTrue
	}
	roles.Message = observation.DescribeObservers(c)
	for _, condition := range []metav1.Condition{visible, roles, bound} {
		if condition.Reason != "" { // known
			condition.LastTransitionTime = now
			meta.SetStatusCondition(&status.Conditions, condition)
		}
	}
	return status
}
