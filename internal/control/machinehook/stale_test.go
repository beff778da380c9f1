package machinehook

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/world"
	"github.com/holdfast-dev/holdfast/pkg/machine"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// staleFixture has a Controller whose cache has an older version of a Machine than the API server.
type staleFixture struct {
	*Controller
	client *fake.FakeDynamicClient
	// cached and live are the Nodes of the cache and of the API server.
	cached, live []*corev1.Node
	clusters     []*v1alpha1.EtcdCluster
	objects      cache.Store // the Machines of the cache
	allowed      bool
	events       []string
}

func staleMachine(version string, change func(*unstructured.Unstructured)) *unstructured.Unstructured {
	m := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"name": "m", "namespace": "default", "uid": "1", "resourceVersion": version},
		"spec":     map[string]any{"providerID": "cloud:///n"},
	}}
	m.SetGroupVersionKind(schema.GroupVersionKind{
		Group: machine.ClusterAPIGroup, Version: "v1beta2", Kind: machine.KindMachine,
	})
	change(m)
	return m
}

func hooked(m *unstructured.Unstructured) {
	m.SetAnnotations(map[string]string{machine.HookAnnotation: machine.HookValue})
}

func deleting(m *unstructured.Unstructured) {
	at := metav1.Now()
	m.SetDeletionTimestamp(&at)
	m.SetFinalizers([]string{"machine.cluster.x-k8s.io"})
}

func newStaleFixture(t *testing.T, cached, live *unstructured.Unstructured) *staleFixture {
	t.Helper()
	resource := schema.GroupVersionResource{Group: machine.ClusterAPIGroup, Version: "v1beta2", Resource: machine.Resource}
	f := &staleFixture{client: fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{resource: "MachineList"}, live)}
	// As the API server does: a patch with another resourceVersion conflicts.
	f.client.PrependReactor("patch", "*", func(a k8stesting.Action) (bool, runtime.Object, error) {
		patch, ok := a.(k8stesting.PatchAction)
		require.True(t, ok)
		var body struct{ Metadata metav1.ObjectMeta }
		require.NoError(t, json.Unmarshal(patch.GetPatch(), &body))
		now, err := f.client.Tracker().Get(resource, "default", patch.GetName())
		require.NoError(t, err)
		m, err := meta.Accessor(now)
		require.NoError(t, err)
		if v := body.Metadata.ResourceVersion; v != "" && v != m.GetResourceVersion() {
			return true, nil, apierrors.NewConflict(resource.GroupResource(), patch.GetName(), nil)
		}
		return false, nil, nil
	})
	find := func(context.Context, schema.GroupKind, []string) (schema.GroupVersionResource, bool, error) {
		return resource, true, nil
	}
	clusters := func(context.Context) ([]*v1alpha1.EtcdCluster, error) { return nil, nil }
	f.Controller = New(Options{
		ClusterAPI: true, Client: f.client, FindResource: find, Log: slog.New(slog.DiscardHandler),
		LiveClusters: clusters,
		LiveNodes:    func(context.Context, func(*corev1.Node) bool) ([]*corev1.Node, error) { return f.live, nil },
		Node:         func(context.Context, string) (*corev1.Node, error) { return staleNode(), nil },
		Review: func(context.Context, machine.Object, func(context.Context) ([]*corev1.Node, error), string) (bool, string) {
			return f.allowed, ""
		},
		RecordEvent: func(_ *corev1.ObjectReference, _, reason, _ string) {
			f.events = append(f.events, reason)
		},
	})
	require.True(t, f.machines.findResource(t.Context()))
	f.objects = fill(t, f.machines, cached)
	return f
}

// reconcile does one round with the Machines and the Nodes of the cache.
func (f *staleFixture) reconcile(t *testing.T) error {
	t.Helper()
	return f.Controller.Controller().Round(t.Context(), world.World{Nodes: f.cached, Clusters: f.clusters})
}

func staleNode() *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"}}
	n.Spec.ProviderID = "cloud:///n"
	n.Labels = map[string]string{observation.EtcdMemberLabel: observation.EtcdMemberLabelValue}
	return n
}

// TestTimeout: the API server accepts requests and does not answer. A read ends after a while, with
// the result that it is unknown whether a machine is about to end, or whether a node holds etcd.
func TestTimeout(t *testing.T) {
	hanging := func(ctx context.Context) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	synctest.Test(t, func(t *testing.T) {
		f := newStaleFixture(t, staleMachine("1", hooked), staleMachine("1", hooked))
		f.Node = func(ctx context.Context, _ string) (*corev1.Node, error) { return nil, hanging(ctx) }
		f.LiveNodes = func(ctx context.Context, _ func(*corev1.Node) bool) ([]*corev1.Node, error) {
			return nil, hanging(ctx)
		}
		require.Equal(t, "it is not known whether the machine of node n is about to end",
			f.Ending(t.Context(), v1alpha1.Grant{Node: "n"}))
		require.ErrorIs(t, f.reconcile(t), context.DeadlineExceeded)
		require.True(t, f.isHooked(t, "m"))
		f.machines.setObjects(nil)
		f.machines.FindResource = func(
			ctx context.Context, _ schema.GroupKind, _ []string,
		) (found schema.GroupVersionResource, isServed bool, err error) {
			return found, false, hanging(ctx)
		}
		require.False(t, f.machines.findResource(t.Context()))
		_, isKnown := f.machines.list()
		require.False(t, isKnown)
	})
}

func (f *staleFixture) isHooked(t *testing.T, name string) bool {
	t.Helper()
	m, err := f.client.Resource(f.machines.followed()).Namespace("default").Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	_, isHooked := m.GetAnnotations()[machine.HookAnnotation]
	return isHooked
}

// TestEndingUnknown checks that a machine may be about to end whose objects cannot be read.
func TestEndingUnknown(t *testing.T) {
	const unknown = "it is not known whether the machine of node n is about to end"
	for name, c := range map[string]struct {
		providerID any
		err        error
		want       string
	}{
		"readable":   {providerID: "cloud:///other"},
		"unreadable": {providerID: int64(7), want: unknown},
		"no list":    {providerID: "cloud:///other", err: errors.New("timeout"), want: unknown},
	} {
		t.Run(name, func(t *testing.T) {
			f := newStaleFixture(t, staleMachine("1", hooked), staleMachine("1", func(m *unstructured.Unstructured) {
				m.Object["spec"] = map[string]any{"providerID": c.providerID}
			}))
			fail := func(k8stesting.Action) (bool, runtime.Object, error) { return c.err != nil, nil, c.err }
			f.client.PrependReactor("list", "*", fail)
			require.Equal(t, c.want, f.Ending(t.Context(), v1alpha1.Grant{Node: "n"}))
		})
	}
}

// TestStaleMachineKeepsItsHook: the Machine is being deleted and waits for its hook, and the cache
// does not know yet. Its Node registers after the live read of the Nodes. The hook stays: from now
// on only a review removes it.
func TestStaleMachineKeepsItsHook(t *testing.T) {
	f := newStaleFixture(t, staleMachine("1", hooked), staleMachine("2", func(m *unstructured.Unstructured) {
		hooked(m)
		deleting(m)
	}))
	require.NoError(t, f.reconcile(t))
	require.True(t, f.isHooked(t, "m"))
}

// TestStaleMachineGetsNoHook: the deletion of a Machine without a hook was allowed, its machine is
// about to end, and the cache does not know yet. A hook that is set now stops nothing, and Ending
// would take it for a promise that another review follows. Then the grant ends.
// F52, F53: by a stale cache the leader set a hook too late, or removed one, and no review was
// left.
func TestStaleMachineGetsNoHook(t *testing.T) {
	f := newStaleFixture(t, staleMachine("1", func(*unstructured.Unstructured) {}), staleMachine("2", deleting))
	f.cached = []*corev1.Node{staleNode()}
	f.live = f.cached
	const ending = "Machine default/m of node n is being deleted"
	require.Equal(t, ending, f.Ending(t.Context(), v1alpha1.Grant{Node: "n"}))
	require.NoError(t, f.reconcile(t))
	require.Equal(t, ending, f.Ending(t.Context(), v1alpha1.Grant{Node: "n"}))
	require.False(t, f.isHooked(t, "m"))
}

// TestF70OldReview: a review allowed the end of the machine, and then the process was paused.
// Another leader refuses by now, which writes nothing to the Machine. The hook stays until a new
// review.
func TestF70OldReview(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waiting := staleMachine("1", func(m *unstructured.Unstructured) {
			hooked(m)
			deleting(m)
			require.NoError(t, unstructured.SetNestedField(m.Object, "2026-11-22T00:00:00Z",
				"status", "deletion", "waitForPreTerminateHookStartTime"))
		})
		f := newStaleFixture(t, waiting, waiting)
		f.cached = []*corev1.Node{staleNode()}
		review := f.Review
		f.allowed = true
		f.Review = func(
			ctx context.Context, m machine.Object, list func(context.Context) ([]*corev1.Node, error), user string,
		) (bool, string) {
			<-ctx.Done()
			return review(ctx, m, list, user)
		}
		require.ErrorIs(t, f.reconcile(t), context.DeadlineExceeded)
		require.True(t, f.isHooked(t, "m"))
		require.Empty(t, f.events)

		f.Review = review
		<-time.After(f.Tick)
		require.NoError(t, f.reconcile(t))
		require.False(t, f.isHooked(t, "m"))
		require.Equal(t, []string{allowedEvent}, f.events)
	})
}
