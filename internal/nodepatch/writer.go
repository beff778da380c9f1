package nodepatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// Patcher is the client that a Writer writes through.
type Patcher interface {
	Patch(ctx context.Context, name string, kind types.PatchType, body []byte, o metav1.PatchOptions, subresources ...string) (*corev1.Node, error)
}

// Writer writes Nodes. It never reads one and never tries again: on a conflict its caller decides anew.
type Writer struct {
	nodes   Patcher
	manager string
	now     func() time.Time
}

// NewWriter returns a Writer that writes through nodes, as the agent of a node (readiness.FieldManager).
func NewWriter(nodes Patcher) *Writer { return NewWriterAs(readiness.FieldManager, nodes) }

// NewWriterAs is NewWriter under another name in managedFields.
func NewWriterAs(manager string, nodes Patcher) *Writer {
	return &Writer{nodes: nodes, manager: manager, now: time.Now}
}

// Apply makes the Node as desired, in at most one write to the Node and one to its status, and returns it as the server
// last answered; if there is nothing to write that is the Node as given. With an error it returns the Node after the last
// write that succeeded. A conflict (apierrors.IsConflict) says that the Node has moved since it was read, and that what
// was not written yet must be decided again.
func (w *Writer) Apply(ctx context.Context, node *corev1.Node, d Desired) (*corev1.Node, error) {
	patches, err := Plan(node, d, w.now())
	if err != nil {
		return node, err
	}
	newest := node
	for _, patch := range patches {
		if patch.Subresource == "" && newest != node {
			if patch, err = rebased(node, newest, d); err != nil {
				return newest, err
			}
		}
		answer, err := w.send(ctx, node.Name, patch)
		if err != nil {
			return newest, err
		}
		newest = answer
	}
	return newest, nil
}

func (w *Writer) send(ctx context.Context, name string, patch Patch) (*corev1.Node, error) {
	var subresources []string
	if patch.Subresource != "" {
		subresources = []string{patch.Subresource}
	}
	node, err := w.nodes.Patch(ctx, name, patch.Type, patch.Body, metav1.PatchOptions{FieldManager: w.manager}, subresources...)
	if isOtherNode(err) {
		err = conflict(name, err)
	}
	if err != nil {
		return nil, fmt.Errorf("patching node %q: %w", name, err)
	}
	return node, nil
}

// isOtherNode says that the Node of this name is not the one that the patch was planned for. The API server calls that an
// invalid change of the UID; for us it is a conflict like any other.
func isOtherNode(err error) bool {
	var status *apierrors.StatusError
	if !errors.As(err, &status) || status.ErrStatus.Details == nil {
		return false
	}
	return slices.ContainsFunc(status.ErrStatus.Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
}

func conflict(name string, why error) error {
	return apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, name, why)
}

// rebased plans the write to the Node again on the answer to our own write of its status, which has raised the
// resourceVersion. The decision was made from the Node as it was before, and so it is carried over only if nothing but the
// status has moved since.
func rebased(decided, newest *corev1.Node, d Desired) (Patch, error) {
	if !onlyStatusMoved(decided, newest) {
		return Patch{}, fmt.Errorf("patching node %q: %w", decided.Name,
			conflict(decided.Name, errors.New("it was changed while its status was written")))
	}
	patches, err := mainPatch(newest, d)
	if err != nil {
		return Patch{}, fmt.Errorf("planning patch of node %q again: %w", decided.Name, err)
	}
	return patches[0], nil
}

func onlyStatusMoved(a, b *corev1.Node) bool {
	return a.DeletionTimestamp.Equal(b.DeletionTimestamp) &&
		equality.Semantic.DeepEqual(a.Labels, b.Labels) &&
		equality.Semantic.DeepEqual(a.Annotations, b.Annotations) &&
		equality.Semantic.DeepEqual(a.Spec, b.Spec)
}
