package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"

	"github.com/holdfast-dev/holdfast/pkg/machine"
)

// removeHooks removes the hook of Holdfast from the Machines of Cluster API. Without Holdfast, a
// Machine with the hook is never deleted. A cluster without Machines is no error.
func removeHooks(
	ctx context.Context, discoverer discovery.DiscoveryInterface, client metadata.Interface, out io.Writer,
) error {
	resource, err := machineResource(discoverer)
	if err != nil || resource.Empty() {
		return err
	}
	list, err := client.Resource(resource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing Machines: %w", err)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"annotations": map[string]any{machine.HookAnnotation: nil},
	}})
	if err != nil {
		return fmt.Errorf("encoding the patch: %w", err)
	}
	var failed []error
	for _, m := range list.Items {
		if _, isHooked := m.Annotations[machine.HookAnnotation]; !isHooked {
			continue
		}
		options := metav1.PatchOptions{FieldManager: "holdfast-uninstall"}
		_, err := client.Resource(resource).Namespace(m.Namespace).Patch(ctx, m.Name, types.MergePatchType, patch, options)
		switch {
		case apierrors.IsNotFound(err): // deleted in the meantime
		case err != nil:
			failed = append(failed, fmt.Errorf("patching Machine %s/%s: %w", m.Namespace, m.Name, err))
		default:
			fmt.Fprintf(out, "Machine %s/%s: hook removed\n", m.Namespace, m.Name)
		}
	}
	return errors.Join(failed...)
}

// machineResource returns the resource of Machines in the version that the API server prefers. It
// is empty if there are none.
func machineResource(discoverer discovery.DiscoveryInterface) (schema.GroupVersionResource, error) {
	groups, err := discoverer.ServerGroups()
	if err != nil {
		return schema.GroupVersionResource{}, fmt.Errorf("finding the Machines of Cluster API: %w", err)
	}
	for _, group := range groups.Groups {
		if group.Name != machine.ClusterAPIGroup {
			continue
		}
		for _, version := range group.Versions {
			resources, err := discoverer.ServerResourcesForGroupVersion(version.GroupVersion)
			if err != nil {
				return schema.GroupVersionResource{}, fmt.Errorf("finding the Machines of Cluster API: %w", err)
			}
			for _, r := range resources.APIResources {
				if r.Kind == machine.KindMachine && r.Name == machine.Resource {
					return schema.GroupVersionResource{Group: group.Name, Version: version.Version, Resource: r.Name}, nil
				}
			}
		}
	}
	return schema.GroupVersionResource{}, nil
}
