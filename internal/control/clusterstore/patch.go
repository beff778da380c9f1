package clusterstore

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// An Operation is one operation of a JSON patch (RFC 6902).
type Operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// ReplaceGrants returns the patch that replaces the grants that were decided from c, on
// condition that they have not changed since. The operation "add" replaces an existing field
// too, and also works if the field is empty and therefore absent.
func ReplaceGrants(c *v1alpha1.EtcdCluster, grants []v1alpha1.Grant) []Operation {
	if grants == nil {
		grants = []v1alpha1.Grant{}
	}
	return []Operation{
		{Op: "test", Path: "/metadata/uid", Value: c.UID},
		{Op: "test", Path: "/spec/ledger", Value: c.Spec.Ledger},
		{Op: "replace", Path: "/spec/ledger", Value: c.Spec.Ledger + 1},
		{Op: "add", Path: "/spec/grants", Value: grants},
	}
}

// ReplaceBindings returns the patch that replaces the bindings and the observers of c. An empty
// value is absent from the object, and tested by null: RFC 6902 has no other test for absence, and
// the library of the API server accepts this one.
func ReplaceBindings(c *v1alpha1.EtcdCluster, bindings []v1alpha1.Binding, observers v1alpha1.Observers) []Operation {
	const path, mode = "/spec/members", "/spec/observers"
	ops := []Operation{
		{Op: "test", Path: "/metadata/uid", Value: c.UID}, {Op: "test", Path: path}, {Op: "test", Path: mode},
	}
	if len(c.Spec.Members) > 0 {
		ops[1].Value = c.Spec.Members
	}
	if c.Spec.Observers != "" {
		ops[2].Value = c.Spec.Observers
	}
	if observers != "" {
		ops = append(ops, Operation{Op: "add", Path: mode, Value: observers})
	}
	return append(ops, replaceList(path, c.Spec.Members, bindings)...)
}

// ReplaceDistinctServers returns the patch that replaces the records of distinct servers of c.
func ReplaceDistinctServers(c *v1alpha1.EtcdCluster, records []v1alpha1.DistinctServer) []Operation {
	return replaceList("/spec/distinctServers", c.Spec.DistinctServers, records)
}

// replaceList returns the patch that replaces a list, which is absent from the object if it is
// empty.
func replaceList[T any](path string, before, after []T) []Operation {
	switch {
	case len(after) > 0:
		return []Operation{{Op: "add", Path: path, Value: after}}
	case len(before) > 0:
		return []Operation{{Op: "remove", Path: path}}
	}
	return nil
}

// RemoveResolveAnnotation returns the patch that removes the annotation by which an operator
// names a grant, on condition that it names this one.
func RemoveResolveAnnotation(named string) []Operation {
	annotation := "/metadata/annotations/" + strings.ReplaceAll(quorum.ResolveAnnotation, "/", "~1")
	return []Operation{{Op: "test", Path: annotation, Value: named}, {Op: "remove", Path: annotation}}
}

// WithGrant returns the grants with g instead of an older grant for the same Node UID.
func WithGrant(grants []v1alpha1.Grant, g v1alpha1.Grant) []v1alpha1.Grant {
	return append(WithoutGrant(grants, g.NodeUID), g)
}

// WithoutGrant returns the grants without the one for this Node UID.
func WithoutGrant(grants []v1alpha1.Grant, uid types.UID) []v1alpha1.Grant {
	return slices.DeleteFunc(slices.Clone(grants), func(g v1alpha1.Grant) bool { return g.NodeUID == uid })
}
