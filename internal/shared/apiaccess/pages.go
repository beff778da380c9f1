package apiaccess

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
)

// pageSize is the number of objects in one response. A page of Nodes with many images takes about
// 5 MB of memory when it is decoded.
const pageSize = 100

// ListPages lists all objects in pages, and returns what keep returns for each object for which
// keep also returns true. A page is dropped before the next one is read, so the memory of a long
// list is what is kept of it and one page. All pages are of one version, which is returned too.
//
// The list is complete or an error, such as that the API server has forgotten the version before
// the last page. ListPages requests no version, because the API server ignores the limit if it may
// answer with any version.
func ListPages[T any](
	ctx context.Context, list cache.ListWithContextFunc, keep func(runtime.Object) (T, bool, error),
) (kept []T, version string, err error) {
	add := func(object runtime.Object) error {
		value, isKept, err := keep(object)
		if isKept {
			kept = append(kept, value)
		}
		return err
	}
	for o := (metav1.ListOptions{Limit: pageSize}); ; {
		page, err := list(ctx, o)
		if err != nil {
			return nil, "", err
		}
		about, err := meta.ListAccessor(page)
		if err != nil {
			return nil, "", fmt.Errorf("reading a page of a list: %w", err)
		}
		// Without a copy, one object that is kept would keep the whole page.
		if err := meta.EachListItemWithAlloc(page, add); err != nil {
			return nil, "", err
		}
		switch next := about.GetContinue(); next {
		case "":
			return kept, about.GetResourceVersion(), nil
		case o.Continue:
			return nil, "", errors.New("the API server answers with the same page again")
		default:
			o.Continue = next
		}
	}
}

// PagedLists returns the source of an informer with lists in pages (see ListPages). The transform
// is that of the informer. client-go lists if the API server cannot stream a list in a watch, and
// it requests any version then, so that it would receive and decode all objects before it
// transforms the first one.
func PagedLists(source cache.ListerWatcher, transform cache.TransformFunc) cache.ListerWatcher {
	from := cache.ToListerWatcherWithContext(source)
	keep := func(object runtime.Object) (runtime.Object, bool, error) {
		transformed, err := transform(object)
		kept, ok := transformed.(runtime.Object)
		if err == nil && !ok {
			err = fmt.Errorf("a %T was transformed into a %T", object, transformed)
		}
		return kept, ok, err
	}
	list := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		items, version, err := ListPages(ctx, func(ctx context.Context, page metav1.ListOptions) (runtime.Object, error) {
			o.Limit, o.Continue, o.ResourceVersion, o.ResourceVersionMatch = page.Limit, page.Continue, "", ""
			return from.ListWithContext(ctx, o)
		}, keep)
		if err != nil {
			return nil, err
		}
		return &internalversion.List{ListMeta: metav1.ListMeta{ResourceVersion: version}, Items: items}, nil
	}
	return cache.ToListWatcherWithWatchListSemantics(
		&cache.ListWatch{ListWithContextFunc: list, WatchFuncWithContext: from.WatchWithContext}, source)
}
