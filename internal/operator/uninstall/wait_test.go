package uninstall

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// TestWaitGone: after a read that fails, nothing is known of the object, so the wait goes on.
func TestWaitGone(t *testing.T) {
	exists := error(nil)
	gone := apierrors.NewNotFound(corev1.Resource("namespaces"), "holdfast-system")
	failed := apierrors.NewInternalError(errors.New("etcd is down"))
	denied := apierrors.NewForbidden(corev1.Resource("namespaces"), "holdfast-system", errors.New("no right"))
	expired := apierrors.NewUnauthorized("Unauthorized")
	hangs, interrupted := errors.New("no answer"), errors.New("Ctrl-C")
	for name, c := range map[string]struct {
		reads   []error // The last one repeats.
		want    string
		printed string
	}{
		"gone":       {[]error{exists, gone}, "", ""},
		"one failed": {[]error{failed, gone}, "", ""},
		"one hung":   {[]error{hangs, gone}, "", ""},
		"never gone": {
			[]error{failed, exists}, "is not gone after 5m0s; look; then run the command again", "it is gone (15s)\n",
		},
		"never known": {
			[]error{failed},
			"waiting until namespace/holdfast-system is gone: Internal error occurred",
			"it is gone (15s): Internal error occurred: etcd is down\n",
		},
		"denied":       {[]error{denied, gone}, "forbidden", ""},
		"expired":      {[]error{expired, gone}, "Unauthorized", ""},
		"never answer": {[]error{hangs}, "waiting until namespace/holdfast-system is gone: context deadline exceeded", ""},
		"interrupted":  {[]error{interrupted}, "waiting until namespace/holdfast-system is gone: context canceled", ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, interrupt := context.WithCancel(t.Context())
				defer interrupt()
				get := func(
					ctx context.Context, _ client.WithWatch, _ client.ObjectKey, _ client.Object, _ ...client.GetOption,
				) error {
					read := c.reads[0]
					c.reads = c.reads[min(1, len(c.reads)-1):]
					switch {
					case errors.Is(read, hangs):
						<-ctx.Done()
						return ctx.Err()
					case errors.Is(read, interrupted):
						interrupt()
						return exists
					}
					return read
				}
				var out strings.Builder
				u := uninstaller{Options: Options{
					Client: fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{Get: get}).Build(),
					Out:    &out, Timeout: 5 * time.Minute,
				}}
				object := metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}}
				object.Name = "holdfast-system"
				err := u.waitGone(ctx, []metav1.PartialObjectMetadata{object}, "look")
				require.Contains(t, out.String(), c.printed)
				if c.want == "" {
					require.NoError(t, err)
					return
				}
				require.ErrorContains(t, err, c.want)
			})
		})
	}
}

// TestDefinitionStays: the definition of EtcdClusters does not go, unlike the namespace. The error
// has the command that shows why.
func TestDefinitionStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kind := schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}
		mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{kind.GroupVersion(), {Version: "v1"}})
		mapper.Add(kind, meta.RESTScopeRoot)
		mapper.Add(schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}, meta.RESTScopeRoot)
		list := func(_ context.Context, _ client.WithWatch, list client.ObjectList, _ ...client.ListOption) error {
			found := metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "etcdclusters.holdfast.dev"}}
			list.(*metav1.PartialObjectMetadataList).Items = []metav1.PartialObjectMetadata{found}
			return nil
		}
		remove := func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error { return nil }
		get := func(_ context.Context, _ client.WithWatch, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
			if o.GetObjectKind().GroupVersionKind() == kind {
				return nil
			}
			return apierrors.NewNotFound(corev1.Resource("namespaces"), "holdfast-system")
		}
		c := fake.NewClientBuilder().WithRESTMapper(mapper).
			WithInterceptorFuncs(interceptor.Funcs{List: list, Delete: remove, Get: get}).Build()
		u := uninstaller{Options: Options{Client: c, Out: io.Discard, Timeout: time.Minute}}
		require.ErrorContains(t, u.deleteRest(t.Context()),
			"kubectl get customresourcedefinition.apiextensions.k8s.io/etcdclusters.holdfast.dev -o yaml")
	})
}

// TestInterruptedClean: after Ctrl-C, also in the pause before an attempt, no Node is tried any
// more, and the error does not name each.
func TestInterruptedClean(t *testing.T) {
	conflict := apierrors.NewConflict(corev1.Resource("nodes"), "w0", errors.New("changed"))
	for name, c := range map[string]struct {
		after time.Duration
		err   error
	}{
		"during a read": {0, context.Canceled},
		"in a pause":    {time.Second, conflict},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, interrupt := context.WithCancel(t.Context())
				nodes := fake.NewClientBuilder().WithRESTMapper(meta.NewDefaultRESTMapper(nil))
				for i := range 9 {
					nodes.WithObjects(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("w", i)}})
				}
				var read []string
				nodes.WithInterceptorFuncs(interceptor.Funcs{Get: func(
					_ context.Context, _ client.WithWatch, key client.ObjectKey, _ client.Object, _ ...client.GetOption,
				) error {
					if read = append(read, key.Name); len(read) == 1 {
						time.AfterFunc(c.after, interrupt)
						synctest.Wait()
					}
					return c.err
				}})
				u := uninstaller{Options: Options{Client: nodes.Build(), Out: io.Discard, Timeout: time.Minute}}
				begun := time.Now()
				require.ErrorIs(t, u.clean(ctx), context.Canceled)
				require.Equal(t, c.after, time.Since(begun))
				require.Equal(t, []string{"w0"}, slices.Compact(read))
			})
		})
	}
}
