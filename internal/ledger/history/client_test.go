package history

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// api is a replica's way to the API server: what the webhook uses of client.Client and client.Reader. What it does not use
// is nil, and a panic.
type api struct {
	client.Client
	r *replica
}

// ask makes one call. The answer is copied only for a caller that waited for it.
func ask[T any](ctx context.Context, a api, write bool, what string, do func() (T, error), take func(T)) error {
	if a.r.crashed() {
		return errCrashed
	}
	var answer T
	c := &call{replica: a.r, what: what, write: write}
	c.do = func() (err error) {
		answer, err = do()
		return err
	}
	if err := a.r.world.gate.pass(ctx, c); err != nil {
		return err
	}
	take(answer)
	return nil
}

func (a api) Get(ctx context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	s := a.r.world.api
	switch into := obj.(type) {
	case *v1alpha1.EtcdCluster:
		return ask(ctx, a, false, "get etcdcluster "+key.Name, func() (*v1alpha1.EtcdCluster, error) { return s.cluster(key.Name) },
			func(c *v1alpha1.EtcdCluster) { c.DeepCopyInto(into) })
	case *corev1.Node:
		return ask(ctx, a, false, "get node "+key.Name, func() (*corev1.Node, error) { return s.node(key.Name) },
			func(n *corev1.Node) { n.DeepCopyInto(into) })
	}
	return fmt.Errorf("nobody plays a Get of %T", obj)
}

func (a api) List(ctx context.Context, list client.ObjectList, _ ...client.ListOption) error {
	into, ok := list.(*v1alpha1.EtcdClusterList)
	if !ok {
		return fmt.Errorf("nobody plays a List of %T", list)
	}
	return ask(ctx, a, false, "list etcdclusters", func() (map[string]*v1alpha1.EtcdCluster, error) {
		return copied(a.r.world.api.clusters.objects), nil
	}, func(found map[string]*v1alpha1.EtcdCluster) { into.Items = items(found) })
}

func copied[T any](m map[string]T) map[string]T {
	c := make(map[string]T, len(m))
	for k, v := range m {
		c[k] = v
	}
	return c
}

func items(found map[string]*v1alpha1.EtcdCluster) []v1alpha1.EtcdCluster {
	var list []v1alpha1.EtcdCluster
	for _, name := range sortedKeys(found) {
		list = append(list, *found[name].DeepCopy())
	}
	return list
}

func (a api) Create(ctx context.Context, obj client.Object, _ ...client.CreateOption) error {
	c, ok := obj.(*v1alpha1.EtcdCluster)
	if !ok {
		return fmt.Errorf("nobody plays a Create of %T", obj)
	}
	asked := c.DeepCopy()
	return ask(ctx, a, true, "create etcdcluster "+c.Name, func() (*v1alpha1.EtcdCluster, error) { return a.r.world.api.createCluster(asked) },
		func(made *v1alpha1.EtcdCluster) { made.DeepCopyInto(c) })
}

func (a api) Patch(ctx context.Context, obj client.Object, patch client.Patch, _ ...client.PatchOption) error {
	body, err := patch.Data(obj)
	if err != nil {
		return err
	}
	name, w := obj.GetName(), a.r.world
	switch into := obj.(type) {
	case *v1alpha1.EtcdCluster:
		review, _ := ctx.Value(reviewKey{}).(*review)
		return ask(ctx, a, true, fmt.Sprintf("patch etcdcluster %s %s", name, kindOf(patch)), func() (*v1alpha1.EtcdCluster, error) {
			made, err := w.api.patchCluster(name, patch.Type(), body)
			if err == nil && review != nil && patch.Type() == types.JSONPatchType {
				review.granted(w, v1alpha1.ClusterID(name))
			}
			return made, err
		}, func(made *v1alpha1.EtcdCluster) { made.DeepCopyInto(into) })
	case *corev1.Node:
		return ask(ctx, a, true, "patch node "+name, func() (*corev1.Node, error) { return w.api.patchNode(name, patch.Type(), body) },
			func(made *corev1.Node) { made.DeepCopyInto(into) })
	}
	return fmt.Errorf("nobody plays a Patch of %T", obj)
}

func kindOf(p client.Patch) string {
	if p.Type() == types.JSONPatchType {
		return "with tests"
	}
	return "blindly"
}

func (a api) Status() client.SubResourceWriter { return statusAPI{r: a.r} }

// statusAPI writes the status subresource.
type statusAPI struct {
	client.SubResourceWriter
	r *replica
}

func (a statusAPI) Patch(ctx context.Context, obj client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
	body, err := patch.Data(obj)
	if err != nil {
		return err
	}
	name := obj.GetName()
	return ask(ctx, api{r: a.r}, true, "patch the status of etcdcluster "+name, func() (*v1alpha1.EtcdCluster, error) {
		return a.r.world.api.patchClusterStatus(name, patch.Type(), body)
	}, func(*v1alpha1.EtcdCluster) {})
}

// Apply takes what client.ApplyConfigurationFromUnstructured wraps: it encodes to the JSON of the object.
func (a statusAPI) Apply(ctx context.Context, configuration runtime.ApplyConfiguration, _ ...client.SubResourceApplyOption) error {
	summary, err := summaryIn(configuration)
	if err != nil {
		return err
	}
	return ask(ctx, api{r: a.r}, true, "apply the summary of etcdcluster "+summary.Name, func() (*v1alpha1.EtcdCluster, error) {
		return a.r.world.api.applySummary(summary.Name, summary.Status)
	}, func(*v1alpha1.EtcdCluster) {})
}

func summaryIn(configuration runtime.ApplyConfiguration) (*v1alpha1.EtcdCluster, error) {
	content, ok := configuration.(runtime.Unstructured)
	if !ok {
		return nil, fmt.Errorf("nobody plays an Apply of %T", configuration)
	}
	c := &v1alpha1.EtcdCluster{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content.UnstructuredContent(), c); err != nil {
		return nil, err
	}
	if len(c.Status.Observations) > 0 {
		return nil, fmt.Errorf("the summary of %s names observations", c.Name)
	}
	return c, nil
}
