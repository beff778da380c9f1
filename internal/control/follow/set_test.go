package follow

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
)

// A stubInformer has one handler, and the version and the objects that the test sets.
type stubInformer struct {
	toolscache.SharedInformer
	version string
	store   toolscache.Store // nil before the first list
	handler toolscache.ResourceEventHandler
}

func (i *stubInformer) HasSynced() bool                 { return i.store != nil }
func (i *stubInformer) GetStore() toolscache.Store      { return i.store }
func (i *stubInformer) LastSyncResourceVersion() string { return i.version }

func (i *stubInformer) AddEventHandler(
	handler toolscache.ResourceEventHandler,
) (toolscache.ResourceEventHandlerRegistration, error) {
	i.handler = handler
	return nil, nil
}

// TestIsCurrent: a watch that has delivered nothing for two minutes may hang.
func TestIsCurrent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		informer := &stubInformer{}
		s := New[*corev1.Node](informer)
		require.False(t, s.IsCurrent(), "it has not listed yet")
		informer.version = "7"
		require.True(t, s.IsCurrent())
		<-time.After(maxAge - time.Second)
		require.True(t, s.IsCurrent())
		<-time.After(time.Second)
		require.False(t, s.IsCurrent())
		informer.version = "8"
		require.True(t, s.IsCurrent(), "a bookmark")

		<-time.After(time.Hour)
		informer.version = "9"
		require.False(t, s.IsCurrent(), "it may have been delivered an hour ago")
	})
}

// TestList: before the first list, the objects are not known, which is an error. So is an object of
// another kind.
func TestList(t *testing.T) {
	informer := &stubInformer{}
	s := New[*corev1.Node](informer)
	_, err := s.List()
	require.ErrorIs(t, err, ErrNotFilled)
	_, err = s.Get("n")
	require.ErrorIs(t, err, ErrNotFilled)
	informer.store = toolscache.NewStore(toolscache.MetaNamespaceKeyFunc)
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	require.NoError(t, informer.store.Add(n))
	found, err := s.List()
	require.NoError(t, err)
	require.Equal(t, []*corev1.Node{n}, found)
	one, err := s.Get("n")
	require.NoError(t, err)
	require.Same(t, n, one)
	one, err = s.Get("other")
	require.NoError(t, err)
	require.Nil(t, one)
	require.NoError(t, informer.store.Add(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}))
	_, err = s.List()
	require.ErrorContains(t, err, "the cache has a *v1.Pod")
	_, err = s.Get("p")
	require.ErrorContains(t, err, "the cache has a *v1.Pod")
}

// TestOnChange: a watch that was interrupted may miss the deletion of an object.
func TestOnChange(t *testing.T) {
	informer := &stubInformer{}
	var seen [][2]*corev1.Node
	require.NoError(t, New[*corev1.Node](informer).OnChange(func(before, after *corev1.Node) {
		seen = append(seen, [2]*corev1.Node{before, after})
	}))
	a, b := &corev1.Node{}, &corev1.Node{}
	informer.handler.OnAdd(a, false)
	informer.handler.OnUpdate(a, b)
	informer.handler.OnDelete(b)
	informer.handler.OnDelete(toolscache.DeletedFinalStateUnknown{Key: "n", Obj: a})
	informer.handler.OnDelete(toolscache.DeletedFinalStateUnknown{Key: "n"})
	require.Equal(t, [][2]*corev1.Node{{nil, a}, {a, b}, {b, nil}, {a, nil}}, seen)
}
