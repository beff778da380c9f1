package machinehook

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// A ResourceFinder returns the resource of a kind, in the first of the versions that the API
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
			if apierrors.IsNotFound(err) {
				err = nil
			}
			return none, false, err
		}
		var failed error
		for _, version := range inOrder(group, versions) {
			list := &metav1.APIResourceList{}
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
				return none, false, fmt.Errorf("the API server serves the kind in %s, and Holdfast can read it in %s",
					version, strings.Join(versions, " and "))
			}
		}
		return none, false, failed
	}
}

// inOrder returns the versions of the group, the first ones in the given order.
func inOrder(group *metav1.APIGroup, first []string) []string {
	var served, others []string
	for _, v := range group.Versions {
		if !slices.Contains(first, v.Version) {
			others = append(others, v.Version)
		}
	}
	for _, version := range first {
		isVersion := func(v metav1.GroupVersionForDiscovery) bool { return v.Version == version }
		if slices.ContainsFunc(group.Versions, isVersion) {
			served = append(served, version)
		}
	}
	return append(served, others...)
}
