package ledger

import (
	"context"
	"fmt"
	"slices"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// visible is the condition that says whether anybody has seen the cluster of late. While nobody has, the numbers of the
// summary are left out: an old one would be taken for a fact.
const visible = "Visible"

// summarise writes the numbers that people see, if they have changed.
func (l *Leader) summarise(ctx context.Context, cached *v1alpha1.EtcdCluster, n census, m *memory) error {
	if m.ask == nil {
		return nil // Nothing was asked yet, and so nothing is known.
	}
	s := l.book.asker.sight(m.ask)
	placed := n.placed(s.cluster)
	sum := protect.Summarise(protect.View{
		Cluster: s.cluster, Asked: s.asked, Nodes: n.states(append(nodesOf(s.cluster), nodesAt(placed)...)), Placed: placed,
		MinRemainingTolerance: l.book.tolerance,
	})
	wanted := statusOf(sum, s.cluster.Status.Conditions, metav1.NewTime(l.o.Now()))
	have := s.cluster.Status.DeepCopy()
	have.Observations = nil
	if apiequality.Semantic.DeepEqual(*have, wanted) {
		return nil
	}
	raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&v1alpha1.EtcdCluster{Status: wanted})
	if err != nil {
		return fmt.Errorf("encoding the summary of etcd cluster %s: %w", cached.Name, err)
	}
	// Only what is named here is applied: neither the spec nor the observations are the summary's.
	apply := &unstructured.Unstructured{Object: map[string]any{"status": raw["status"]}}
	apply.SetGroupVersionKind(v1alpha1.GroupVersion().WithKind("EtcdCluster"))
	apply.SetName(cached.Name)
	err = l.book.client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(apply),
		client.ForceOwnership, client.FieldOwner(FieldManager))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("writing the summary of etcd cluster %s: %w", cached.Name, err)
	}
	return nil
}

// statusOf makes the summary's part of the status. A condition keeps its time while its status stays.
func statusOf(sum protect.Summary, before []metav1.Condition, now metav1.Time) v1alpha1.EtcdClusterStatus {
	status := v1alpha1.EtcdClusterStatus{Conditions: slices.Clone(before)}
	condition := metav1.Condition{
		Type: visible, Status: metav1.ConditionFalse, Reason: string(protect.CannotSee), Message: sum.Message, LastTransitionTime: now,
	}
	if sum.Known {
		condition.Status, condition.Reason = metav1.ConditionTrue, "MemberListConfirmed"
		status.Voters, status.Healthy = count(sum.Voters), count(sum.Healthy)
		status.Quorum, status.MayLose = count(sum.Quorum), count(sum.MayLose)
	}
	meta.SetStatusCondition(&status.Conditions, condition)
	return status
}

func count(n int) *int32 {
	c := int32(n) // A member list has at most twenty entries.
	return &c
}
