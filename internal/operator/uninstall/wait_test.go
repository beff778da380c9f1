package uninstall

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	hangs, interrupted := errors.New("no answer"), errors.New("Ctrl-C")
	for name, c := range map[string]struct {
		reads []error // The last one repeats.
		want  string
	}{
		"gone":         {[]error{exists, gone}, ""},
		"one failed":   {[]error{failed, gone}, ""},
		"one hung":     {[]error{hangs, gone}, ""},
		"never gone":   {[]error{failed, exists}, "is not gone after 5m0s; look; then run the command again"},
		"never known":  {[]error{failed}, "waiting until namespace/holdfast-system is gone: Internal error occurred"},
		"denied":       {[]error{denied, gone}, "forbidden"},
		"never answer": {[]error{hangs}, "waiting until namespace/holdfast-system is gone: context deadline exceeded"},
		"interrupted":  {[]error{interrupted}, "waiting until namespace/holdfast-system is gone: context canceled"},
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
				u := uninstaller{Options: Options{
					Client: fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{Get: get}).Build(),
					Out:    io.Discard, Timeout: 5 * time.Minute,
				}}
				object := metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}}
				object.Name = "holdfast-system"
				err := u.waitGone(ctx, []metav1.PartialObjectMetadata{object}, "look")
				if c.want == "" {
					require.NoError(t, err)
					return
				}
				require.ErrorContains(t, err, c.want)
			})
		})
	}
}

// TestInterruptedClean: after Ctrl-C, no Node is tried any more, and the error does not name each.
func TestInterruptedClean(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	nodes := fake.NewClientBuilder().WithRESTMapper(meta.NewDefaultRESTMapper(nil))
	for i := range 9 {
		n := &corev1.Node{}
		n.Name = fmt.Sprint("w", i)
		nodes.WithObjects(n)
	}
	var read []string
	nodes.WithInterceptorFuncs(interceptor.Funcs{Get: func(
		_ context.Context, _ client.WithWatch, key client.ObjectKey, _ client.Object, _ ...client.GetOption,
	) error {
		interrupt()
		read = append(read, key.Name)
		return ctx.Err()
	}})
	u := uninstaller{Options: Options{Client: nodes.Build(), Out: io.Discard, Timeout: time.Minute}}
	require.ErrorIs(t, u.clean(ctx), context.Canceled)
	require.Equal(t, []string{"w0"}, read)
}
