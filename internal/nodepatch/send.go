package nodepatch

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Send writes patches of Plan to a Node in their order, for programs that write a Node once on
// behalf of a person. If the Node has changed since it was read, the error is a conflict.
func Send(ctx context.Context, c client.Client, node string, patches []Patch, manager string) error {
	for _, p := range patches {
		target, patch := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, client.RawPatch(p.Type, p.Body)
		var err error
		if p.Subresource == "" {
			err = c.Patch(ctx, target, patch, client.FieldOwner(manager))
		} else {
			err = c.SubResource(p.Subresource).Patch(ctx, target, patch, client.FieldOwner(manager))
		}
		if isOtherNode(err) {
			err = newConflict(node, err)
		}
		if err != nil {
			return fmt.Errorf("patching node %s: %w", node, err)
		}
	}
	return nil
}
