package machinehook

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/shared/apiaccess"
	"github.com/holdfast-dev/holdfast/pkg/machine"
)

// A machineKind is a kind of objects that stand for machines.
type machineKind struct {
	schema.GroupKind

	// versions are those that Holdfast can read.
	versions []string
}

func machines() machineKind {
	kind := schema.GroupKind{Group: machine.ClusterAPIGroup, Kind: machine.KindMachine}
	return machineKind{kind, []string{"v1beta2", "v1beta1"}}
}

func nodeClaims() machineKind {
	return machineKind{schema.GroupKind{Group: machine.KarpenterGroup, Kind: machine.KindNodeClaim}, []string{"v1"}}
}

func (k machineKind) parse(object runtime.Object) (machine.Object, error) {
	m, ok := object.(*unstructured.Unstructured)
	if !ok {
		return machine.Object{}, fmt.Errorf("reading the %s: it is a %T", k.Kind, object)
	}
	raw, err := m.MarshalJSON()
	if err != nil {
		return machine.Object{}, fmt.Errorf("encoding the %s: %w", k.Kind, err)
	}
	return machine.Parse(k.Kind, raw)
}

// Ending returns why the machine of a grant is about to end without another request, or an empty
// string. The provider ID in the grant identifies the machine even if its Node is gone. An object
// that cannot be read may be about to end. Ending reads the API server, because a cache may be
// older than the grant.
func (c *Controller) Ending(ctx context.Context, g v1alpha1.Grant) string {
	node := g.Node
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	live, err := c.Node(ctx, node)
	hasNode := err == nil && (g.ProviderID == "" || live.Spec.ProviderID == g.ProviderID)
	switch {
	case apierrors.IsNotFound(err):
		live = &corev1.Node{}
		live.Spec.ProviderID = g.ProviderID
	case err != nil:
		return c.unknownEnding(ctx, node, err)
	}
	var kinds []machineKind
	if c.ClusterAPI {
		kinds = append(kinds, machines())
	}
	if c.Karpenter {
		kinds = append(kinds, nodeClaims())
	}
	for _, kind := range kinds {
		ending, err := c.liveObjects(ctx, kind, func(o machine.Object) bool {
			isOfGrant := o.ProviderID != "" && o.ProviderID == g.ProviderID
			return o.IsEnding(hasNode) && (isOfGrant || o.Match(node, live.Spec.ProviderID) != "")
		})
		switch {
		case err != nil:
			return c.unknownEnding(ctx, node, err)
		case len(ending) > 0:
			return fmt.Sprintf("%s of node %s is being deleted", ending[0], node)
		}
	}
	return ""
}

// unknownEnding returns a text that does not depend on the error, and logs the error.
func (c *Controller) unknownEnding(ctx context.Context, node string, err error) string {
	c.Log.WarnContext(ctx, "failed to read which machines are about to end; keeping the grant", "node", node, "err", err)
	return fmt.Sprintf("it is not known whether the machine of node %s is about to end", node)
}

// liveObjects returns the objects of a kind that the API server has and for which isWanted returns
// true.
func (c *Controller) liveObjects(
	ctx context.Context, kind machineKind, isWanted func(machine.Object) bool,
) ([]machine.Object, error) {
	resource, isServed, err := c.FindResource(ctx, kind.GroupKind, kind.versions)
	switch {
	case err != nil:
		return nil, fmt.Errorf("finding the kind %s: %w", kind.GroupKind, err)
	case !isServed:
		return nil, nil
	}
	page := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return c.Client.Resource(resource).List(ctx, o)
	}
	found, _, err := apiaccess.ListPages(ctx, page, func(object runtime.Object) (machine.Object, bool, error) {
		parsed, err := kind.parse(object)
		return parsed, err == nil && isWanted(parsed), err
	})
	if err != nil {
		return nil, fmt.Errorf("listing each %s: %w", kind.Kind, err)
	}
	return found, nil
}
