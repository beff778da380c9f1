package history

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// patchNode patches the metadata of a Node.
func (s *server) patchNode(name string, kind types.PatchType, body []byte) (*corev1.Node, error) {
	n, err := s.node(name)
	if err != nil {
		return nil, err
	}
	made, err := faceOf(n).patched(kind, body, nodeResource())
	if err != nil {
		return nil, err
	}
	return s.editNode(name, func(n *corev1.Node) {
		n.Labels, n.Annotations = made.Metadata.Labels, made.Metadata.Annotations
	})
}

// editNode is anybody's write.
func (s *server) editNode(name string, edit func(*corev1.Node)) (*corev1.Node, error) {
	n, err := s.node(name)
	if err != nil {
		return nil, err
	}
	next := n.DeepCopy()
	edit(next)
	switch {
	case equality.Semantic.DeepEqual(n, next):
		return n, nil
	case next.DeletionTimestamp != nil && len(next.Finalizers) == 0:
		s.nodes.drop(n)
		return n, nil
	}
	s.stamp(next)
	s.nodes.put(next)
	return next, nil
}

// deleteNode deletes a Node, or marks it while it has finalizers.
func (s *server) deleteNode(name string) error {
	_, err := s.editNode(name, func(n *corev1.Node) {
		if n.DeletionTimestamp == nil {
			now := metav1.NewTime(time.Now().Truncate(time.Second))
			n.DeletionTimestamp = &now
		}
	})
	return err
}
