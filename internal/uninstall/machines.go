package uninstall

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/pkg/machine"
)

// removeHooks removes the hook of Holdfast from the Machines of Cluster API. Without Holdfast, a
// Machine with the hook is never deleted. A cluster without Machines is no error.
func (u *uninstaller) removeHooks(ctx context.Context) error {
	kind := schema.GroupKind{Group: machine.ClusterAPIGroup, Kind: machine.KindMachine}
	list, err := u.list(ctx, kind)
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"annotations": map[string]any{machine.HookAnnotation: nil},
	}})
	if err != nil {
		return fmt.Errorf("encoding the patch: %w", err)
	}
	var failed []error
	for i := range list {
		m := &list[i]
		if _, isHooked := m.Annotations[machine.HookAnnotation]; !isHooked {
			continue
		}
		command := fmt.Sprintf("kubectl -n %s annotate %s.%s %s %s-",
			m.Namespace, machine.Resource, machine.ClusterAPIGroup, m.Name, machine.HookAnnotation)
		err := u.do(command, fmt.Sprintf("Machine %s/%s: hook removed", m.Namespace, m.Name), func() error {
			return u.Client.Patch(ctx, m, client.RawPatch(types.MergePatchType, patch), fieldOwner)
		})
		if err != nil && !apierrors.IsNotFound(err) {
			failed = append(failed, fmt.Errorf("patching Machine %s/%s: %w", m.Namespace, m.Name, err))
		}
	}
	return errors.Join(failed...)
}

// list returns the objects of a kind, without their content. A kind that the API server does not
// serve has no objects.
func (u *uninstaller) list(
	ctx context.Context, kind schema.GroupKind, options ...client.ListOption,
) ([]metav1.PartialObjectMetadata, error) {
	mapping, err := u.Client.RESTMapper().RESTMapping(kind)
	if meta.IsNoMatchError(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("finding the API of %s: %w", kind, err)
	}
	objects := &metav1.PartialObjectMetadataList{}
	objects.SetGroupVersionKind(mapping.GroupVersionKind)
	if err := u.Client.List(ctx, objects, options...); err != nil {
		return nil, fmt.Errorf("listing %s: %w", mapping.Resource.Resource, err)
	}
	for i := range objects.Items {
		objects.Items[i].SetGroupVersionKind(mapping.GroupVersionKind)
	}
	return objects.Items, nil
}
