package ledger

import (
	"context"
	"slices"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// readsAtOnce bounds the live reads of Nodes that one verdict makes in parallel.
const readsAtOnce = 16

// live is a Node as an uncached read found it.
type live struct {
	// node is nil if there is none or if the read failed.
	node *corev1.Node
	err  error
}

// state is what decisions see of it.
func (l live) state() protect.NodeState {
	switch {
	case l.err != nil:
		return protect.NodeState{}
	case l.node == nil:
		return protect.NodeState{Known: true}
	}
	return protect.NodeState{
		Known: true, UID: l.node.UID, Deleting: l.node.DeletionTimestamp != nil, DeletionTaint: deletionTaint(l.node),
	}
}

// nodes reads the named Nodes from the API server. A read that fails is an answer: that this Node is not known.
func (b *Book) nodes(ctx context.Context, names []string) map[string]live {
	slices.Sort(names)
	names = slices.Compact(names)
	found := make([]live, len(names))
	var g errgroup.Group
	g.SetLimit(readsAtOnce)
	for i, name := range names {
		g.Go(func() error {
			node := &corev1.Node{}
			switch err := b.reader.Get(ctx, client.ObjectKey{Name: name}, node); {
			case apierrors.IsNotFound(err):
			case err != nil:
				found[i].err = err
			default:
				found[i].node = node
			}
			return nil
		})
	}
	_ = g.Wait() // Nothing above returns an error.
	byName := make(map[string]live, len(names))
	for i, name := range names {
		byName[name] = found[i]
	}
	return byName
}

// states reads the states of the named Nodes from the API server.
func (b *Book) states(ctx context.Context, names []string) map[string]protect.NodeState {
	return statesOf(b.nodes(ctx, names))
}

func statesOf(nodes map[string]live) map[string]protect.NodeState {
	states := make(map[string]protect.NodeState, len(nodes))
	for name, l := range nodes {
		states[name] = l.state()
	}
	return states
}

// nodesOf names the Nodes that the cluster's bindings and grants are about.
func nodesOf(c *v1alpha1.EtcdCluster) []string {
	names := nodesAt(c.Spec.Members)
	for _, g := range c.Spec.Grants {
		names = append(names, g.Node)
	}
	return names
}

// nodesAt names the Nodes of these bindings.
func nodesAt(bindings []v1alpha1.Binding) []string {
	names := make([]string, len(bindings))
	for i, b := range bindings {
		names[i] = b.Node
	}
	return names
}

// deletionTaint returns the key of the taint by which an autoscaler announces that it is about to delete the node.
// cluster-autoscaler's terminates the machine within seconds and asks nobody (utils/taints, ToBeDeletedTaint);
// Karpenter's stands from the decision to disrupt until the machine is gone (apis/v1, DisruptedTaintKey), under an older
// key up to its version 1.0.
func deletionTaint(node *corev1.Node) string {
	for _, t := range node.Spec.Taints {
		switch t.Key {
		case "ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "karpenter.sh/disruption":
			return t.Key
		}
	}
	return ""
}
