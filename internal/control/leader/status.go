package leader

import (
	"context"
	"maps"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
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

// writeSummary writes the numbers of the cluster and the conditions if they changed, and keeps them
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
	inputs := summaryInputs{view, s.bound, l.zones}
	if s.summarized != nil && inputs.equal(*s.summarized) {
		return nil
	}
	s.summarized = nil
	s.overview, s.zones = quorum.Inspect(view), quorum.Spread(view, inputs.zones)
	wanted := statusOf(s.overview.Summary, s.bound, c, metav1.NewTime(l.Now()))
	if !apiequality.Semantic.DeepEqual(c.Status, wanted) {
		return l.Store.ApplyStatus(ctx, cached.Name, wanted)
	}
	s.summarized = &inputs
	return nil
}

// summaryInputs are all that a summary is made from, except for the time.
type summaryInputs struct {
	quorum.View
	bound metav1.Condition
	// zones are those of all Nodes.
	zones map[string]string
}

// setZones sets the zones of the round. All summaries share one map until a zone changes: it has an
// entry for each Node.
func (l *Leader) setZones(nodes []*corev1.Node) {
	zones := make(map[string]string, len(l.zones))
	for _, n := range nodes {
		if zone := l.Store.ZoneOf(n); zone != "" {
			zones[n.Name] = zone
		}
	}
	if !maps.Equal(l.zones, zones) {
		l.zones = zones
	}
}

// equal reports whether both are for the same versions of the objects, and equal otherwise.
func (a summaryInputs) equal(b summaryInputs) bool {
	return a.Cluster.UID == b.Cluster.UID && a.Cluster.ResourceVersion == b.Cluster.ResourceVersion &&
		reflect.DeepEqual(a.Cluster.Observations, b.Cluster.Observations) &&
		a.bound == b.bound && slices.Equal(a.Nonces, b.Nonces) &&
		slices.Equal(a.PossibleNodes, b.PossibleNodes) && maps.Equal(a.zones, b.zones) && reflect.DeepEqual(a.Nodes, b.Nodes)
}

// statusOf returns the part of the status that the leader writes. A condition keeps its time
// while its status stays. The condition about claims has no type before the first probe.
func statusOf(
	summary quorum.Summary, bound metav1.Condition, c *v1alpha1.EtcdCluster, now metav1.Time,
) v1alpha1.EtcdClusterStatus {
	status := v1alpha1.EtcdClusterStatus{Conditions: slices.Clone(c.Status.Conditions)}
	condition := metav1.Condition{
		Type: visibleCondition, Status: metav1.ConditionFalse, Reason: string(quorum.CannotSee),
		Message: words.Summary(summary), LastTransitionTime: now,
	}
	if summary.Known {
		condition.Status, condition.Reason = metav1.ConditionTrue, "MemberListConfirmed"
		status.Voters, status.Healthy = count(summary.Voters), count(summary.Healthy)
		status.Quorum, status.MayLose = count(summary.Quorum), count(summary.MayLose)
	}
	meta.SetStatusCondition(&status.Conditions, condition)
	if c.Spec.Observers != "" {
		roles := metav1.Condition{
			Type: rolesCondition, Status: metav1.ConditionFalse, Reason: string(c.Spec.Observers),
			Message: observation.DescribeObservers(c), LastTransitionTime: now,
		}
		if c.Spec.Observers == v1alpha1.NodesWithRole {
			roles.Status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&status.Conditions, roles)
	}
	if bound.Type != "" {
		bound.LastTransitionTime = now
		meta.SetStatusCondition(&status.Conditions, bound)
	}
	return status
}

func count(n int) *int32 { return new(int32(n)) } // A member list has at most twenty entries.
