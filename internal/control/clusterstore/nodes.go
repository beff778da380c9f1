package clusterstore

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/shared/apiaccess"
	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// maxParallelReads bounds the live reads of Nodes that one verdict makes at the same time.
const maxParallelReads = 16

// A LiveNode is the result of an uncached read of a Node.
type LiveNode struct {
	// Node is nil if there is no Node of that name, or if the read failed.
	Node *corev1.Node
	Err  error
}

// State returns the properties of the Node that decisions depend on. The table has the marks that
// count.
func (l LiveNode) State(marks departure.Table) observation.NodeState {
	switch {
	case l.Err != nil:
		return observation.NodeState{}
	case l.Node == nil:
		return observation.NodeState{Known: true}
	}
	return observation.StateOf(l.Node, marks)
}

// CachedNodes returns all Nodes of the cache, or those of the API server if the watch may hang. The
// caller must not change them.
func (s *Store) CachedNodes(ctx context.Context) ([]*corev1.Node, error) {
	isCurrent := s.Nodes.IsCurrent()
	cached, err := s.Nodes.List()
	if err != nil {
		return nil, err
	}
	return currentOr(ctx, isCurrent, cached, nil, s.sharedNodes)
}

// sharedNodes is LiveNodes for all callers that wait for it. They must not change the Nodes.
func (s *Store) sharedNodes(ctx context.Context) ([]*corev1.Node, error) {
	return s.liveNodes.do(ctx, func(ctx context.Context) ([]*corev1.Node, error) { return s.LiveNodes(ctx, nil) })
}

// ZoneOf returns the zone of a Node, empty if it has none.
func (s *Store) ZoneOf(n *corev1.Node) string { return n.Labels[s.trimmer.ZoneLabel] }

// LiveNodes lists the Nodes of the API server for which isWanted returns true, or all if it is nil.
// It reads them in pages, and trims them as the cache does.
func (s *Store) LiveNodes(ctx context.Context, isWanted func(*corev1.Node) bool) ([]*corev1.Node, error) {
	page := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		list := &corev1.NodeList{}
		return list, s.reader.List(ctx, list, &client.ListOptions{Limit: o.Limit, Continue: o.Continue})
	}
	nodes, _, err := apiaccess.ListPages(ctx, page, func(object runtime.Object) (*corev1.Node, bool, error) {
		node, ok := object.(*corev1.Node)
		switch {
		case !ok:
			return nil, false, fmt.Errorf("the list has a %T", object)
		case isWanted != nil && !isWanted(node):
			return nil, false, nil
		}
		return s.trimmer.trimNode(node), true, nil
	})
	if err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	return nodes, nil
}

// LiveNodesNamed reads the named Nodes from the API server. A failed read is part of the result.
func (s *Store) LiveNodesNamed(ctx context.Context, names []string) map[string]LiveNode {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	found := make([]LiveNode, len(names))
	var g errgroup.Group
	g.SetLimit(maxParallelReads)
	for i, name := range names {
		g.Go(func() error {
			node := &corev1.Node{}
			err := s.reader.Get(ctx, client.ObjectKey{Name: name}, node)
			if err == nil {
				found[i].Node = node
			}
			found[i].Err = client.IgnoreNotFound(err)
			return nil
		})
	}
	_ = g.Wait() // The functions above return no error.
	byName := make(map[string]LiveNode, len(names))
	for i, name := range names {
		byName[name] = found[i]
	}
	return byName
}

// LiveStates reads the states of the named Nodes from the API server.
func (s *Store) LiveStates(ctx context.Context, names []string) map[string]observation.NodeState {
	return s.StatesOf(s.LiveNodesNamed(ctx, names))
}

// StatesOf returns the states of the Nodes.
func (s *Store) StatesOf(nodes map[string]LiveNode) map[string]observation.NodeState {
	states := make(map[string]observation.NodeState, len(nodes))
	for name, l := range nodes {
		states[name] = l.State(s.trimmer.Departures)
	}
	return states
}

// NodeNames returns the names of the Nodes in the bindings and grants of the cluster.
func NodeNames(c *v1alpha1.EtcdCluster) []string {
	names := BoundNodeNames(c.Spec.Members)
	for _, g := range c.Spec.Grants {
		names = append(names, g.Node)
	}
	return names
}

// BoundNodeNames returns the names of the Nodes of these bindings.
func BoundNodeNames(bindings []v1alpha1.Binding) []string {
	names := make([]string, len(bindings))
	for i, b := range bindings {
		names[i] = b.Node
	}
	return names
}

// LabelNode sets EtcdMemberLabel on the Node, and reports whether it did. The UID makes the
// patch fail on another Node of the same name; that, and a Node that is gone, is no error.
func (s *Store) LabelNode(ctx context.Context, node *corev1.Node) (isLabelled bool, err error) {
	switch err := s.patchNode(ctx, node.Name, map[string]any{
		"uid": node.UID, "labels": map[string]string{observation.EtcdMemberLabel: observation.EtcdMemberLabelValue},
	}); {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err), apiaccess.IsOtherObject(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("putting the label on node %q: %w", node.Name, err)
	}
	return true, nil
}

func (s *Store) patchNode(ctx context.Context, name string, metadata map[string]any) error {
	body, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return err
	}
	target := &corev1.Node{}
	target.Name = name
	return s.client.Patch(ctx, target, client.RawPatch(types.MergePatchType, body), fieldOwner)
}

// RecordDrain writes into the record of a held Node that its drain is allowed. It writes nothing to
// a Node whose drain does not rely on a hold. The write has the resourceVersion of the Node, as
// each release has, so that one of both fails. RecordDrain then reads the Node again, and returns
// an error if it is open.
func (s *Store) RecordDrain(ctx context.Context, node *corev1.Node, now time.Time) error {
	name, uid := node.Name, node.UID
	for readiness.IsHeldByCordon(node) {
		value, err := readiness.WithDrain(node, now)
		if err == nil {
			err = s.patchNode(ctx, name, map[string]any{
				"uid": uid, "resourceVersion": node.ResourceVersion,
				"annotations": map[string]string{readiness.HoldAnnotation: value},
			})
		}
		switch {
		case err == nil:
			return nil
		case !apierrors.IsConflict(err):
			return fmt.Errorf("recording the drain of node %q: %w", name, err)
		}
		node = &corev1.Node{}
		if err := s.reader.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
			return fmt.Errorf("recording the drain of node %q: %w", name, err)
		}
		if node.UID != uid || observation.StateOf(node, s.trimmer.Departures).Closed() == "" {
			return fmt.Errorf("recording the drain of node %q: it is open for pods now", name)
		}
	}
	return nil
}
