package nodepatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/internal/shared/apiaccess"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// Patcher is the client of a Writer.
type Patcher interface {
	Patch(
		ctx context.Context, name string, kind types.PatchType, body []byte, o metav1.PatchOptions, subresources ...string,
	) (*corev1.Node, error)
}

// Writer writes Nodes. It neither reads nor retries: on a conflict, its caller decides again.
type Writer struct {
	nodes   Patcher
	manager string
}

// NewWriter returns a Writer with the field manager of an agent (readiness.FieldManager).
func NewWriter(nodes Patcher) *Writer { return NewWriterAs(readiness.FieldManager, nodes) }

// NewWriterAs returns a Writer with another field manager.
func NewWriterAs(manager string, nodes Patcher) *Writer {
	return &Writer{nodes: nodes, manager: manager}
}

// Apply makes the Node as desired, in at most one write to the Node and one to its status. It
// returns the Node from the last answer of the server, even with an error. If no write has
// succeeded, that is the given Node. A conflict (apierrors.IsConflict) means that the Node has
// changed since it was read: the caller must decide again about everything that is not written.
func (w *Writer) Apply(ctx context.Context, node *corev1.Node, d Desired) (*corev1.Node, error) {
	patches, err := Plan(node, d, time.Now())
	if err != nil {
		return node, err
	}
	newest := node
	for _, patch := range patches {
		if patch.Subresource == "" && newest != node {
			if patch, err = rebase(node, newest, d); err != nil {
				return newest, err
			}
		}
		answer, err := w.applyPatch(ctx, node.Name, patch)
		if err != nil {
			return newest, err
		}
		newest = answer
	}
	return newest, nil
}

func (w *Writer) applyPatch(ctx context.Context, name string, patch Patch) (*corev1.Node, error) {
	var subresources []string
	if patch.Subresource != "" {
		subresources = []string{patch.Subresource}
	}
	options := metav1.PatchOptions{FieldManager: w.manager}
	node, err := w.nodes.Patch(ctx, name, patch.Type, patch.Body, options, subresources...)
	if apiaccess.IsOtherObject(err) {
		err = newConflict(name, err)
	}
	if err != nil {
		return nil, fmt.Errorf("patching node %q: %w", name, err)
	}
	return node, nil
}

func newConflict(name string, cause error) error {
	return apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, name, cause)
}

// rebase plans the write to the Node again, based on the answer to the write of its status, which
// has a new resourceVersion. The decision is based on the earlier Node, so it stays valid only if
// nothing except the status has changed.
func rebase(decided, newest *corev1.Node, d Desired) (Patch, error) {
	if !hasOnlyStatusChanged(decided, newest) {
		return Patch{}, fmt.Errorf("patching node %q: %w", decided.Name,
			newConflict(decided.Name, errors.New("the Node changed during the write of its status")))
	}
	patches, err := objectPatch(newest, d)
	if err != nil {
		return Patch{}, fmt.Errorf("planning the patch of node %q again: %w", decided.Name, err)
	}
	return patches[0], nil
}

func hasOnlyStatusChanged(a, b *corev1.Node) bool {
	return a.DeletionTimestamp.Equal(b.DeletionTimestamp) &&
		equality.Semantic.DeepEqual(a.Labels, b.Labels) &&
		equality.Semantic.DeepEqual(a.Annotations, b.Annotations) &&
		equality.Semantic.DeepEqual(a.Spec, b.Spec)
}
