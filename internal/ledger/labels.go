package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// restoreLabels puts the label back on Nodes that hold a bound member. Without it the deletion of the Node is judged by
// an entry that may be ignored.
func (l *Leader) restoreLabels(ctx context.Context, c *v1alpha1.EtcdCluster, n census) error {
	var errs []error
	for _, b := range c.Spec.Members {
		node, ok := n[b.Node]
		if !ok || node.UID != b.NodeUID || node.DeletionTimestamp != nil || labelled(node.Node) {
			continue
		}
		// The UID makes it fail on a Node that registered anew under this name.
		body, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"uid": b.NodeUID, "labels": map[string]string{protect.EtcdMemberLabel: protect.EtcdMemberLabelValue},
		}})
		if err == nil {
			target := &corev1.Node{}
			target.Name = b.Node
			err = l.book.client.Patch(ctx, target, client.RawPatch(types.MergePatchType, body), client.FieldOwner(FieldManager))
		}
		switch {
		case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		case err != nil:
			errs = append(errs, fmt.Errorf("restoring the label of node %q: %w", b.Node, err))
		default:
			l.log.Warn("put the label back on a node that holds a member", "node", b.Node, "etcd_cluster", c.Name, "member", b.MemberID)
			l.o.Tell(c, "LabelRestored", fmt.Sprintf("node %s holds member %s and had lost the label %s", b.Node, b.MemberID, protect.EtcdMemberLabel))
		}
	}
	return errors.Join(errs...)
}
