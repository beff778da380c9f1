package machinehook

import (
	"context"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A ResourceFinder returns the resource of a kind, in the latest of the versions that the API
// server serves. It returns false if the API server serves the kind in no version at all. If it
// serves the kind only in other versions, that is an error: some objects may exist that cannot be
// read.
type ResourceFinder func(ctx context.Context, kind schema.GroupKind, versions []string) (
	resource schema.GroupVersionResource, isServed bool, err error)

// NewResourceFinder returns a ResourceFinder that reads from the API server. It has no cache,
// because an upgrade of the program that owns the kind may remove a version.
func NewResourceFinder(api rest.Interface) ResourceFinder {
	read := func(ctx context.Context, into runtime.Object, path ...string) error {
		if err := api.Get().AbsPath("/apis").Suffix(path...).Do(ctx).Into(into); err != nil {
			return fmt.Errorf("reading what the API server serves of %s: %w", strings.Join(path, "/"), err)
		}
		return nil
	}
	return func(
		ctx context.Context, kind schema.GroupKind, versions []string,
	) (none schema.GroupVersionResource, isServed bool, err error) {
		group := &metav1.APIGroup{}
		if err := read(ctx, group, kind.Group); err != nil {
			return none, false, client.IgnoreNotFound(err)
		}
		var failed error
		var unreadable []string
		for _, served := range group.Versions { // The API server has the latest one first.
			version, list := served.Version, &metav1.APIResourceList{}
			if err := read(ctx, list, kind.Group, version); err != nil {
				failed = err // Another version may do. Without one, the kind may be in this version.
				continue
			}
			at := slices.IndexFunc(list.APIResources, func(r metav1.APIResource) bool {
				return r.Kind == kind.Kind && !strings.Contains(r.Name, "/")
			})
			switch {
			case at >= 0 && slices.Contains(versions, version):
				return kind.WithVersion(version).GroupVersion().WithResource(list.APIResources[at].Name), true, nil
			case at >= 0:
				unreadable = append(unreadable, version)
			}
		}
		if len(unreadable) > 0 {
			return none, false, fmt.Errorf("the API server serves the kind in %s, and Holdfast can read it in %s",
				strings.Join(unreadable, " and "), strings.Join(versions, " and "))
		}
		return none, false, failed
	}
}
