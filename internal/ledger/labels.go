package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// restoreLabels puts the label on Nodes that hold a member and lack it. Without it the deletion of the Node is judged by
// an entry that may be ignored.
func (l *Leader) restoreLabels(ctx context.Context, c *v1alpha1.EtcdCluster, n census, m *memory) error {
	var errs []error
	for _, b := range c.Spec.Members {
		if r, ok := n[b.Node]; ok && r.UID == b.NodeUID && l.lacksLabel(r.Node) {
			errs = append(errs, l.label(ctx, c, r.Node, "it is bound to member "+string(b.MemberID)))
		}
	}
	for _, h := range unseenNodes(c, n) {
		key, members := "unseen/"+string(h.UID), words(h.members)
		if !l.lacksLabel(h.Node) || (saysNone(h.Node) && m.said[key] == members) {
			continue
		}
		err := l.label(ctx, c, h.Node, "two other nodes list a member at its address, and its own agent has not said so yet")
		if err == nil {
			m.said[key] = members
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// lacksLabel says whether the label is to be put on the Node. Not while somebody with the right to do so has broken the
// glass for it: taking the label off is how a node is deleted when the webhook cannot be reached.
func (l *Leader) lacksLabel(node *corev1.Node) bool {
	_, unbroken := protect.ParseBreakGlass(node.Annotations[protect.BreakGlassAnnotation], node.UID, l.o.Now())
	return node.DeletionTimestamp == nil && !labelled(node) && unbroken != nil
}

// holder is a Node that holds members by what others list.
type holder struct {
	*corev1.Node
	members []v1alpha1.MemberID
}

// unseenNodes returns, sorted, the Nodes that hold a member by what others list, before their own agents have said so. An
// agent that has looked and found nothing may know better, and takes the label off again; or it has looked before there was
// anything, and is dead. So such a Node is labelled once for the members that are listed there.
func unseenNodes(c *v1alpha1.EtcdCluster, n census) []holder {
	if len(protect.Unbound(c)) == 0 {
		return nil // Most often so, which spares comparing the addresses of all nodes.
	}
	all := []*v1alpha1.EtcdCluster{c}
	var found []holder
	for name, r := range n {
		if labelled(r.Node) || slices.ContainsFunc(c.Spec.Members, func(b v1alpha1.Binding) bool { return b.Node == name }) {
			continue
		}
		claim := addressesOf(r.Node)
		if v := protect.UnlabelledVerdict(all, protect.Request{Node: name, UID: r.UID, Addresses: claim.Addresses}); !v.Allowed {
			found = append(found, holder{Node: r.Node, members: v.Members})
		}
	}
	slices.SortFunc(found, func(a, b holder) int { return strings.Compare(a.Name, b.Name) })
	return found
}

// saysNone says whether the Node's agent has found no member there.
func saysNone(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == protect.EtcdMemberCondition && c.Status == corev1.ConditionFalse
	})
}

// otherNode says that a Node registered anew under the name: another UID is an invalid change of an immutable field. Any
// other refusal is one.
func otherNode(err error) bool {
	var refused *apierrors.StatusError
	if !errors.As(err, &refused) || refused.ErrStatus.Details == nil {
		return false
	}
	return slices.ContainsFunc(refused.ErrStatus.Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
}

// label puts the label on a Node.
func (l *Leader) label(ctx context.Context, c *v1alpha1.EtcdCluster, node *corev1.Node, why string) error {
	// The UID makes it fail on a Node that registered anew under this name.
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": node.UID, "labels": map[string]string{protect.EtcdMemberLabel: protect.EtcdMemberLabelValue},
	}})
	if err == nil {
		target := &corev1.Node{}
		target.Name = node.Name
		err = l.book.client.Patch(ctx, target, client.RawPatch(types.MergePatchType, body), client.FieldOwner(FieldManager))
	}
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err), otherNode(err):
		return nil
	case err != nil:
		return fmt.Errorf("putting the label on node %q: %w", node.Name, err)
	}
	l.log.Warn("put the label on a node that holds a member", "node", node.Name, "etcd_cluster", c.Name, "reason", why)
	l.o.Tell(c, "LabelRestored", fmt.Sprintf("node %s lacked the label %s: %s", node.Name, protect.EtcdMemberLabel, why))
	return nil
}
