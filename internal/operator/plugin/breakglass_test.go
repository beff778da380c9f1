package plugin

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/holdfast-dev/holdfast/internal/operator/cli"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

func testBreakGlass(t *testing.T, f *changeFixture) {
	const announced = `{"metadata":{"annotations":{"holdfast.dev/etcd":"[]"}}}`
	f.addOpenNode(t, "worker-1")
	f.addOpenNode(t, "etcd-1", announced, `{"metadata":{"labels":{"holdfast.dev/etcd-member":"true"}}}`)
	f.addOpenNode(t, "etcd-2", announced)
	glassOf := func(name string) quorum.BreakGlass {
		node := f.node(t, name)
		glass, err := quorum.ParseBreakGlass(node.Annotations[quorum.BreakGlassAnnotation], node.UID, time.Now())
		require.NoError(t, err)
		return glass
	}
	for _, test := range []struct{ name, node string }{
		{"break-glass-no-reason", "worker-1"}, {"break-glass-no-answer", "etcd-1"}, {"break-glass-no-label", "etcd-2"},
	} {
		t.Run(test.name, func(t *testing.T) {
			code, out := f.run(t, operator, "",
				"break-glass", test.node, "--reason=the machine's gone", "--and-delete", "--dry-run")
			require.Equal(t, cli.ExitSuccess, code)
			compareOutput(t, test.name+".txt", out)
			requireScript(t, out)
		})
	}
	t.Run("override only", func(t *testing.T) {
		code, out := f.run(t, operator, "", "break-glass", "worker-1", "--reason= it's gone ", "--for=50m", "--yes")
		require.Equal(t, cli.ExitSuccess, code, out)
		require.Contains(t, out, "to delete it: kubectl --kubeconfig='"+f.kubeconfigs[operator]+"' delete node worker-1",
			"the node may exist in the current context as well")
		glass := glassOf("worker-1")
		require.Equal(t, "it's gone", glass.Reason)
		require.WithinDuration(t, time.Now().Add(50*time.Minute), glass.Until, time.Minute)
	})
	for _, name := range []string{"etcd-1", "etcd-2"} {
		t.Run("delete "+name, func(t *testing.T) {
			code, out := f.run(t, operator, "y", "break-glass", name, "--reason=x", "--and-delete")
			require.Equal(t, cli.ExitSuccess, code, out)
			compareOutput(t, "break-glass-delete-"+name+".txt", out)
			_, err := f.Client().CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
			require.ErrorContains(t, err, "not found")
		})
	}
}

// TestBreakGlassClock: the clock of the user is ahead. The override ends by the time of the API
// server, or the webhook would refuse one for an hour. A user without the right to read that time
// can override too.
func TestBreakGlassClock(t *testing.T) {
	for name, c := range map[string]struct {
		ahead time.Duration
		err   error
	}{
		"ahead":          {ahead: 10 * time.Minute},
		"without rights": {err: apierrors.NewForbidden(schema.GroupResource{}, "", nil)},
	} {
		t.Run(name, func(t *testing.T) {
			server := func() time.Time { return time.Now().Add(-c.ahead) }
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u1"}}
			kube := fake.NewClientBuilder().WithObjects(node).WithInterceptorFuncs(interceptor.Funcs{Create: func(
				_ context.Context, _ client.WithWatch, review client.Object, _ ...client.CreateOption,
			) error {
				review.SetCreationTimestamp(metav1.NewTime(server()))
				return c.err
			}}).Build()
			s := &session{kube: kube, Streams: Streams{Out: io.Discard}, root: &cobra.Command{}, dryRun: true}
			b := &breakGlassRun{session: s, reason: "x", duration: time.Hour}
			require.NoError(t, b.run(t.Context(), []string{"n1"}))
			_, err := quorum.ParseBreakGlass(b.value, node.UID, server())
			require.NoError(t, err)
		})
	}
}

// TestBreakGlassOfDeletedNode: the deletion was allowed, but the drain that follows may be refused
// (docs/verdict.md, F87).
func TestBreakGlassOfDeletedNode(t *testing.T) {
	for name, c := range map[string]struct {
		reason quorum.Reason
		want   string
	}{
		"being deleted": {quorum.Deleting, "Its drain is decided on its own"},
		"allowed":       {quorum.QuorumKept, "is allowed now: it needs no override"},
	} {
		t.Run(name, func(t *testing.T) {
			removal := removalOf("n1", []string{quorum.ReasonText(c.reason, "")}, nil)
			require.Equal(t, quorum.Yes, removal.Answer)
			require.Contains(t, describeRemoval(removal), c.want)
		})
	}
}
