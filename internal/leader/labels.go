package leader

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/clusterstore"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// restoreLabels sets the label on Nodes that hold a member and lack it. Without the label, the
// entry that fails open reviews the deletion of the Node.
func (l *Leader) restoreLabels(ctx context.Context, c *v1alpha1.EtcdCluster, index nodeIndex, s *clusterState) error {
	var errs []error
	for _, b := range c.Spec.Members {
		if node, ok := index[b.Node]; ok && node.UID == b.NodeUID && l.needsLabel(node.Node) {
			errs = append(errs, l.restoreLabel(ctx, c, node.Node, "it is bound to member "+string(b.MemberID)))
		}
	}
	for _, h := range listedHolders(c, index) {
		members := joinIDs(h.members)
		if !l.needsLabel(h.Node) || (reportsNoMember(h.Node) && s.labelled[h.UID] == members) {
			continue
		}
		err := l.restoreLabel(ctx, c, h.Node,
			"two other nodes list a member at its address, but its own agent has not announced it yet")
		if err == nil {
			s.labelled[h.UID] = members
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// needsLabel reports whether the Node must get the label. It must not while a valid break-glass
// annotation is set: users remove the label to delete a node while the webhook is not reachable.
func (l *Leader) needsLabel(node *corev1.Node) bool {
	_, err := quorum.ParseBreakGlass(node.Annotations[quorum.BreakGlassAnnotation], node.UID, l.Now())
	return node.DeletionTimestamp == nil && !isLabelled(node) && err != nil
}

// A listedHolder is a Node that holds members by the lists of other Nodes.
type listedHolder struct {
	*corev1.Node
	members []v1alpha1.MemberID
}

// listedHolders returns, sorted, the Nodes that hold a member by the lists of other Nodes, and
// whose own agents do not report it. An agent that found no member may be right; it then removes
// the label again. Or it scanned before etcd was installed, and no longer runs. Therefore the
// leader labels such a Node once for the members that are listed there.
func listedHolders(c *v1alpha1.EtcdCluster, index nodeIndex) []listedHolder {
	if len(observation.Unlocated(c)) == 0 {
		return nil // The usual case. It spares comparing the addresses of all nodes.
	}
	all := []*v1alpha1.EtcdCluster{c}
	var found []listedHolder
	for name, node := range index {
		if isLabelled(node.Node) || slices.ContainsFunc(c.Spec.Members,
			func(b v1alpha1.Binding) bool { return b.Node == name }) {
			continue
		}
		// AgentSilent is not set: one list is no reason for a label.
		req := quorum.Request{Node: name, UID: node.UID, Addresses: clusterstore.NodeAddresses(node.Node).Addresses}
		if v := quorum.DecideUnlabelled(all, req); !v.Allowed {
			found = append(found, listedHolder{Node: node.Node, members: v.Members})
		}
	}
	slices.SortFunc(found, func(a, b listedHolder) int { return strings.Compare(a.Name, b.Name) })
	return found
}

// reportsNoMember reports whether the agent of the Node found no member there.
func reportsNoMember(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == observation.EtcdMemberCondition && c.Status == corev1.ConditionFalse
	})
}

// restoreLabel sets the label on a Node, logs it and records an event.
func (l *Leader) restoreLabel(ctx context.Context, c *v1alpha1.EtcdCluster, node *corev1.Node, why string) error {
	isSet, err := l.Store.LabelNode(ctx, node)
	if err != nil || !isSet {
		return err
	}
	l.Log.Warn("restored the label on a node with a member", "node", node.Name, "etcd_cluster", c.Name, "reason", why)
	l.Event(c, "LabelRestored",
		fmt.Sprintf("node %s lacked the label %s: %s", node.Name, observation.EtcdMemberLabel, why))
	return nil
}
