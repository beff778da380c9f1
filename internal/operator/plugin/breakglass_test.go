package plugin

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
		require.Contains(t, out, "to delete it: kubectl delete node worker-1")
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
