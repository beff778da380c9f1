package agent

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/internal/shared/nodepatch"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

func TestStore(t *testing.T) {
	named := func(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	changes := 0
	s := newStore[*corev1.Node](discardLog(), func() { changes++ })
	_, synced := s.objects.get()
	require.False(t, synced, "before the first list, an absent object may exist")
	require.NoError(t, s.writer.Replace([]any{named("a"), named("b")}, "5"))
	require.NoError(t, s.writer.Replace([]any{named("b")}, "9"))
	_, exists, synced := s.get("a")
	require.True(t, synced)
	require.False(t, exists, "it was deleted between two watches")
	require.NoError(t, s.writer.Add(named("c")))
	require.NoError(t, s.writer.Delete(named("b")))
	all, _ := s.objects.get()
	require.Len(t, all, 1)
	require.Equal(t, 4, changes)
}

// replace is a list that contains only these objects.
func replace[T storedObject](t *testing.T, s *store[T], objects ...T) {
	t.Helper()
	list := make([]any, len(objects))
	for i, o := range objects {
		list[i] = o
	}
	require.NoError(t, s.writer.Replace(list, ""))
}

// TestStaleWatch runs the node loop while the store has an old copy of the Node.
func TestStaleWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := bornHeld(testNode)
		old.UID, old.ResourceVersion = "uid-1", "5"
		moved := old.DeepCopy()
		moved.ResourceVersion = "9"
		server := &fakeNodeAPI{node: moved}
		l := &nodeLoop{
			cfg: Config{
				Node: testNode, Nodes: server, Tick: 10 * time.Second, Log: discardLog(),
				Network: func(context.Context) readiness.Facts { return openNetwork() },
			},
			nodes:       newStore[*corev1.Node](discardLog(), func() {}),
			clusters:    newClusterStores(discardLog(), func() {}),
			prober:      newGateProber(Config{}, nil),
			evidence:    &latest[evidence.Scan]{},
			writer:      nodepatch.NewWriter(server),
			recordEvent: func(context.Context, *corev1.Node, readiness.Event) {}, wake: loop.NewSignal(),
		}
		replace(t, l.nodes, old)
		require.NoError(t, l.pass(t.Context()))
		require.True(t, isReleased(server.node))
		require.False(t, server.node.Spec.Unschedulable)
		require.Equal(t, 1, server.conflicts, "after the first conflict, writes are based on the answers of the server")

		again := server.node.DeepCopy()
		again.UID = "uid-2"
		replace(t, l.nodes, again)
		current, err := l.currentNode(t.Context())
		require.NoError(t, err)
		require.Equal(t, types.UID("uid-2"), current.UID, "a new Node of the same name is a different Node")

		replace(t, l.nodes, old)
		elapse(t, preferOwnWrite)
		current, err = l.currentNode(t.Context())
		require.NoError(t, err)
		require.Equal(t, "5", current.ResourceVersion, "versions decrease after a restore of the API server's etcd")
	})
}
