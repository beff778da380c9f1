package leader

import (
	"context"
	"fmt"
	"reflect"
	"slices"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/clusterstore"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// visibleCondition is the type of the condition that reports whether an agent has observed the
// cluster recently. Otherwise the summary has no numbers, because old numbers would mislead.
const visibleCondition = "Visible"

// writeSummary writes the numbers of the cluster and the conditions if they changed, and keeps them
// for the metrics.
func (l *Leader) writeSummary(
	ctx context.Context, cached *v1alpha1.EtcdCluster, index nodeIndex, s *clusterState,
) error {
	if s.probe == nil {
		return nil // There is no answer yet.
	}
	result := s.probe.Result()
	if l.Now().Sub(s.probedAt) > observation.SilentAfter {
		// No newer nonce could be written. Nothing proves that the answers still hold.
		result.Nonces = nil
	}
	if isIncomplete(result) {
		return nil // The rest of the answer follows. Until then its members only look unhealthy.
	}
	possible := index.possibleNodes(result.Cluster)
	names := append(clusterstore.NodeNames(result.Cluster), clusterstore.BoundNodeNames(possible)...)
	view := quorum.View{
		Cluster: result.Cluster, Nonces: result.Nonces,
		Nodes: l.Store.StatesOf(index.cachedNodes(names)), PossibleNodes: possible,
	}
	inputs := summaryInputs{view, s.bound}
	if s.summarized != nil && inputs.equal(*s.summarized) {
		return nil
	}
	s.summarized = nil
	s.overview = quorum.Inspect(view)
	wanted := statusOf(s.overview.Summary, s.bound, result.Cluster.Status.Conditions, metav1.NewTime(l.Now()))
	existing := result.Cluster.Status.DeepCopy()
	existing.Observations = nil
	if !apiequality.Semantic.DeepEqual(*existing, wanted) {
		return l.Store.ApplyStatus(ctx, cached.Name, wanted)
	}
	s.summarized = &inputs
	return nil
}

// isIncomplete reports whether an observer has answered, and still waits for members.
func isIncomplete(result clusterstore.ProbeResult) bool {
	return slices.ContainsFunc(observation.AcceptedWithNonce(result.Cluster, result.Nonces),
		func(o v1alpha1.Observation) bool { return o.Incomplete })
}

// summaryInputs are all that a summary is made from, except for the time.
type summaryInputs struct {
	quorum.View
	bound metav1.Condition
}

// equal reports whether both are for the same version of the object, and equal otherwise.
func (a summaryInputs) equal(b summaryInputs) bool {
	return a.Cluster == b.Cluster && a.bound == b.bound && slices.Equal(a.Nonces, b.Nonces) &&
		slices.Equal(a.PossibleNodes, b.PossibleNodes) && reflect.DeepEqual(a.Nodes, b.Nodes)
}

// statusOf returns the part of the status that the leader writes. A condition keeps its time
// while its status stays. The condition about claims has no type before the first probe.
func statusOf(
	summary quorum.Summary, bound metav1.Condition, before []metav1.Condition, now metav1.Time,
) v1alpha1.EtcdClusterStatus {
	status := v1alpha1.EtcdClusterStatus{Conditions: slices.Clone(before)}
	condition := metav1.Condition{
		Type: visibleCondition, Status: metav1.ConditionFalse, Reason: string(quorum.CannotSee),
		Message: summary.Message, LastTransitionTime: now,
	}
	if summary.Known {
		condition.Status, condition.Reason = metav1.ConditionTrue, "MemberListConfirmed"
		status.Voters, status.Healthy = count(summary.Voters), count(summary.Healthy)
		status.Quorum, status.MayLose = count(summary.Quorum), count(summary.MayLose)
	}
	meta.SetStatusCondition(&status.Conditions, condition)
	if bound.Type != "" {
		bound.LastTransitionTime = now
		meta.SetStatusCondition(&status.Conditions, bound)
	}
	return status
}

func count(n int) *int32 { return new(int32(n)) } // A member list has at most twenty entries.

// removeObservations removes the observations of Nodes that are gone. The agent that owns such
// an entry is gone as well, and the schema allows a hundred entries. The observation of a
// bound Node stays, because it contains where members were.
func (l *Leader) removeObservations(ctx context.Context, c *v1alpha1.EtcdCluster, index nodeIndex) error {
	var names []string
	for _, o := range c.Status.Observations {
		if _, exists := index[o.Node]; !exists && !isFromBoundNode(c, o) {
			names = append(names, o.Node)
		}
	}
	if len(names) == 0 {
		return nil
	}
	states := l.Store.LiveStates(ctx, names) // The cache may lack a Node that has just registered.
	ops := []clusterstore.Operation{{Op: "test", Path: "/metadata/uid", Value: c.UID}}
	var gone []string
	// A removal moves later entries, so the last entry is removed first.
	for i, o := range slices.Backward(c.Status.Observations) {
		if s := states[o.Node]; !s.Known || s.UID != "" || isFromBoundNode(c, o) {
			continue
		}
		entry := fmt.Sprintf("/status/observations/%d", i)
		ops = append(ops, clusterstore.Operation{Op: "test", Path: entry + "/node", Value: o.Node},
			clusterstore.Operation{Op: "test", Path: entry + "/nodeUID", Value: o.NodeUID},
			clusterstore.Operation{Op: "remove", Path: entry})
		gone = append(gone, o.Node)
	}
	if len(gone) == 0 {
		return nil
	}
	err := l.Store.PatchStatus(ctx, c, ops)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsInvalid(err), apierrors.IsConflict(err):
		return nil // The object has changed. The cache will deliver the new version.
	case err != nil:
		return fmt.Errorf("removing observations of nodes that are gone from etcd cluster %s: %w", c.Name, err)
	}
	l.Log.Info("removed the observations of nodes that are gone", "etcd_cluster", c.Name, "nodes", gone)
	return nil
}

// isFromBoundNode reports whether a member is bound to the Node of the observation, whether or
// not the Node exists.
func isFromBoundNode(c *v1alpha1.EtcdCluster, o v1alpha1.Observation) bool {
	return slices.ContainsFunc(c.Spec.Members, func(b v1alpha1.Binding) bool {
		return observation.IsFrom(o, b)
	})
}
