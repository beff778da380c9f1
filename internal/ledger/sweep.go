package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// sweep removes the observations of Nodes that are gone. Nobody else would: the agent went with its Node, and the schema
// has room for a hundred. That of a bound Node stays, for what it says about where members were.
func (l *Leader) sweep(ctx context.Context, c *v1alpha1.EtcdCluster, n census) error {
	var names []string
	for _, o := range c.Status.Observations {
		if _, there := n[o.Node]; !there && !isBound(c, o) {
			names = append(names, o.Node)
		}
	}
	if len(names) == 0 {
		return nil
	}
	states := l.book.states(ctx, names) // the cache may not have heard of a Node that has just registered
	var ops []operation
	var gone []string
	for i, o := range slices.Backward(c.Status.Observations) { // removing one moves those behind it
		if s := states[o.Node]; !s.Known || s.UID != "" || isBound(c, o) {
			continue
		}
		entry := fmt.Sprintf("/status/observations/%d", i)
		ops = append(ops, operation{Op: "test", Path: entry + "/node", Value: o.Node},
			operation{Op: "test", Path: entry + "/nodeUID", Value: o.NodeUID}, operation{Op: "remove", Path: entry})
		gone = append(gone, o.Node)
	}
	if len(ops) == 0 {
		return nil
	}
	body, err := json.Marshal(append([]operation{{Op: "test", Path: "/metadata/uid", Value: c.UID}}, ops...))
	if err == nil {
		target := &v1alpha1.EtcdCluster{}
		target.Name = c.Name
		err = l.book.client.Status().Patch(ctx, target, client.RawPatch(types.JSONPatchType, body), client.FieldOwner(FieldManager))
	}
	switch {
	case apierrors.IsNotFound(err), apierrors.IsInvalid(err), apierrors.IsConflict(err):
		return nil // The object has changed since, of which the cache will tell.
	case err != nil:
		return fmt.Errorf("removing observations of nodes that are gone from etcd cluster %s: %w", c.Name, err)
	}
	l.log.Info("removed the observations of nodes that are gone", "etcd_cluster", c.Name, "nodes", gone)
	return nil
}

// isBound says whether the observation is by a Node, dead or alive, that a member is bound to.
func isBound(c *v1alpha1.EtcdCluster, o v1alpha1.Observation) bool {
	return slices.ContainsFunc(c.Spec.Members, func(b v1alpha1.Binding) bool {
		return b.Node == o.Node && b.NodeUID == o.NodeUID
	})
}
