package leader

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore"
	"github.com/holdfast-dev/holdfast/pkg/printable"
	"github.com/holdfast-dev/holdfast/pkg/protect/membership"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// writeTombstones writes grants for Nodes that are gone without one: the members of a deleted
// Node are lost, whether or not a review allowed the deletion.
func (l *Leader) writeTombstones(ctx context.Context, v quorum.View) (*v1alpha1.EtcdCluster, error) {
	tombstones := membership.Tombstones(v)
	if len(tombstones) == 0 {
		return v.Cluster, nil
	}
	grants := v.Cluster.Spec.Grants
	for _, g := range tombstones {
		if g.Gone != nil && g.Gone.Time.IsZero() {
			g.Gone.Time.Time = l.Now()
		}
		grants = clusterstore.WithGrant(grants, g)
	}
	made, err := l.Store.Patch(ctx, v.Cluster, clusterstore.ReplaceGrants(v.Cluster, grants))
	if err == nil {
		made, err = l.Store.WithObservations(ctx, made)
	}
	if err != nil {
		return nil, err
	}
	for _, g := range tombstones {
		message := tombstoneMessage(g)
		l.Log.Warn("node is gone without a review; its members count as lost",
			"etcd_cluster", v.Cluster.Name, "node", g.Node, "node_uid", g.NodeUID, "members", g.Members, "message", message)
		l.recordEvent(made, corev1.EventTypeWarning, "Tombstone", message)
	}
	return made, nil
}

// writeBindings writes the bindings that follow from the observations and the announcements, which
// Nodes are observers, and which members are distinct servers.
func (l *Leader) writeBindings(
	ctx context.Context, v quorum.View, nodes []observation.AnnouncingNode, s *clusterState,
) (*v1alpha1.EtcdCluster, error) {
	c := v.Cluster
	bindings, refused := membership.Bind(c, nodes, v.Nonces, l.Now())
	s.bound = boundConditionOf(bindings, refused, s.unobserved)
	if s.logged.Changed("refused", s.bound.Message) && len(refused) > 0 {
		l.Log.Warn("refused a node's claim to a member", "etcd_cluster", c.Name, "reason", s.bound.Message)
	}
	observers := membership.ObserversOf(c, nodes)
	areSame := slices.Equal(bindings, c.Spec.Members) && observers == c.Spec.Observers
	distinct := membership.DistinctServers(v, nodes)
	if areSame && apiequality.Semantic.DeepEqual(distinct, c.Spec.DistinctServers) {
		return c, nil
	}
	ops := slices.Concat(
		clusterstore.ReplaceBindings(c, bindings, observers), clusterstore.ReplaceDistinctServers(c, distinct))
	made, err := l.Store.Patch(ctx, c, ops)
	if err == nil {
		made, err = l.Store.WithObservations(ctx, made)
	}
	if err != nil || areSame {
		return made, err
	}
	if observers != c.Spec.Observers {
		l.Log.Info("observers of an etcd cluster", "etcd_cluster", c.Name, "observers", observers)
	}
	if slices.EqualFunc(bindings, c.Spec.Members, isSamePlace) {
		return made, nil
	}
	l.Log.Info("bound members to nodes", "etcd_cluster", c.Name, "before", c.Spec.Members, "after", bindings)
	parts := make([]string, len(bindings))
	for i, b := range bindings {
		parts[i] = fmt.Sprintf("%s on %s", b.MemberID, b.Node)
	}
	l.recordEvent(made, corev1.EventTypeNormal, "Bound", "members by node: "+strings.Join(parts, ", "))
	return made, nil
}

// isSamePlace reports whether two bindings are the same but for the identity of the machine.
func isSamePlace(a, b v1alpha1.Binding) bool {
	return a.MemberID == b.MemberID && a.NodeUID == b.NodeUID && a.Basis == b.Basis
}

// boundConditionOf returns the condition that reports whether every claim of a Node to a member is
// bound, and the agent of every such Node may publish. Claims that are refused for the same reason
// are listed together.
func boundConditionOf(bindings []v1alpha1.Binding, refused []membership.Refusal, unobserved string) metav1.Condition {
	var reasons []string
	claims := map[string][]string{}
	for _, r := range refused {
		if claims[r.Reason] == nil {
			reasons = append(reasons, r.Reason)
		}
		claims[r.Reason] = append(claims[r.Reason], fmt.Sprintf("node %s to member %s", r.Node, r.Member))
	}
	for i, reason := range reasons {
		reasons[i] = fmt.Sprintf("not bound: the claim of %s: %s", strings.Join(claims[reason], ", of "), reason)
	}
	if unobserved != "" {
		reasons = append(reasons, unobserved)
	}
	condition := metav1.Condition{
		Type: quorum.BoundCondition, Status: metav1.ConditionFalse,
		Message: printable.Clip(strings.Join(reasons, "; "), maxConditionMessage),
	}
	switch {
	case len(refused) > 0 && len(bindings) > 0:
		condition.Reason = "ClaimRefused"
	case len(refused) > 0:
		condition.Reason = "NotBound"
	case unobserved != "":
		condition.Reason = "NotObserved"
	case len(bindings) == 0:
		condition.Reason, condition.Message = "NothingAnnounced", "no Node announces a member"
	default:
		condition.Status, condition.Reason = metav1.ConditionTrue, "MembersBound"
		condition.Message = observation.Plural(len(bindings), "member") + " bound to a Node"
	}
	return condition
}

// maxConditionMessage limits the message of a condition, which is part of refusals.
const maxConditionMessage = 2000

// tombstoneMessage describes what is known about a Node that is gone although no review allowed its
// deletion.
func tombstoneMessage(g v1alpha1.Grant) string {
	return fmt.Sprintf("node %s is gone: its deletion was not reviewed, for example because the webhook did not answer; "+
		"the audit log of the API server names the users (verbs patch and delete, nodes, %s, UID %s); %s count as lost "+
		"until they are removed from etcd or confirmed healthy on a new node",
		g.Node, g.Node, g.NodeUID, observation.JoinIDs(g.Members, ", "))
}
