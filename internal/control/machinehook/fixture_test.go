package machinehook_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/machinehook"
	"github.com/holdfast-dev/holdfast/internal/control/world"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/pkg/machine"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// soon limits a wait for an event that takes milliseconds on an idle machine.
const soon, poll = 30 * time.Second, 20 * time.Millisecond

// A fixture runs Hooks against a real API server, with Nodes and reviews that the test sets.
type fixture struct {
	client     dynamic.Interface
	machines   dynamic.ResourceInterface
	version    string // of machines
	claims     dynamic.ResourceInterface
	config     *rest.Config
	controller *machinehook.Controller

	mu           sync.Mutex // guards the fields below
	cached, live []*corev1.Node
	clusters     []*v1alpha1.EtcdCluster
	liveErr      error
	allowed      bool
	message      string
	reviews      []string
	events       []string
}

func machines() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: machine.ClusterAPIGroup, Version: "v1beta2", Resource: machine.Resource}
}

// newFixture starts Hooks before the API server has Machines.
func newFixture(t *testing.T) *fixture {
	t.Helper()
	server := apiserver.New(t)
	client, err := dynamic.NewForConfig(server.Admin())
	require.NoError(t, err)
	f := &fixture{
		client: client, machines: client.Resource(machines()).Namespace("default"), version: machines().Version,
		config: server.Admin(),
	}
	f.claims = client.Resource(schema.GroupVersionResource{
		Group: machine.KarpenterGroup, Version: "v1", Resource: "nodeclaims",
	})
	f.start(t)
	apiserver.InstallMachines(t, server)
	return f
}

func (f *fixture) newController(t *testing.T) *machinehook.Controller {
	t.Helper()
	served, err := discovery.NewDiscoveryClientForConfig(f.config)
	require.NoError(t, err)
	clusters := func(context.Context) ([]*v1alpha1.EtcdCluster, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.clusters, nil
	}
	return machinehook.New(machinehook.Options{
		ClusterAPI: true, Karpenter: true, Client: f.client, FindResource: machinehook.NewResourceFinder(served.RESTClient()),
		Tick: 100 * time.Millisecond, Pause: 10 * time.Millisecond,
		LiveClusters: clusters,
		LiveNodes: func(_ context.Context, isWanted func(*corev1.Node) bool) ([]*corev1.Node, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			isOther := func(n *corev1.Node) bool { return !isWanted(n) }
			return slices.DeleteFunc(slices.Clone(f.live), isOther), f.liveErr
		},
		Node: func(_ context.Context, name string) (*corev1.Node, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.liveErr != nil {
				return nil, f.liveErr
			}
			for i := range f.live {
				if f.live[i].Name == name {
					return f.live[i], nil
				}
			}
			return nil, apierrors.NewNotFound(corev1.Resource("nodes"), name)
		},
		Review: func(
			_ context.Context, m machine.Object, _ func(context.Context) ([]*corev1.Node, error), user string,
		) (bool, string) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.reviews = append(f.reviews, m.Name+" for "+user)
			return f.allowed, f.message
		},
		RecordEvent: func(about *corev1.ObjectReference, eventType, reason, message string) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.events = append(f.events, about.Name+" "+eventType+" "+reason+" "+message)
		},
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
}

func (f *fixture) start(t *testing.T) {
	t.Helper()
	f.controller = f.newController(t)
	ctx, cancel := context.WithCancel(t.Context())
	c := f.controller.Controller()
	var running sync.WaitGroup
	running.Go(func() { c.Watch(ctx) })
	running.Go(func() {
		loop.Rounds{
			Do: func(ctx context.Context) error { return c.Round(ctx, f.world()) }, Done: func(error) {},
			Wake: c.Wake, Pause: c.Pause, Idle: func() time.Duration { return c.Tick },
		}.Run(ctx)
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
}

func (f *fixture) world() world.World {
	f.mu.Lock()
	defer f.mu.Unlock()
	return world.World{Nodes: f.cached, Clusters: f.clusters}
}

func (f *fixture) set(change func(*fixture)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

// setNodes sets the Nodes of the cache and of the API server.
func (f *fixture) setNodes(nodes ...*corev1.Node) {
	f.set(func(f *fixture) { f.cached, f.live = nodes, nodes })
}

func node(name string, isEtcd bool) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}}
	n.Spec.ProviderID = "cloud:///" + name
	if isEtcd {
		n.Labels = map[string]string{observation.EtcdMemberLabel: observation.EtcdMemberLabelValue}
	}
	return n
}

// add creates the Machine of a node, with the finalizer of Cluster API.
func (f *fixture) add(t *testing.T, node string) {
	t.Helper()
	_, err := f.machines.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": machine.ClusterAPIGroup + "/" + f.version, "kind": "Machine",
		"metadata": map[string]any{"name": node, "finalizers": []any{"machine.cluster.x-k8s.io"}},
		"spec":     map[string]any{"providerID": "cloud:///" + node, "clusterName": "c"},
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
}

// remove deletes the Machine.
func (f *fixture) remove(t *testing.T, name string) {
	t.Helper()
	require.NoError(t, f.machines.Delete(t.Context(), name, metav1.DeleteOptions{}))
}

// drained writes the status of a Machine whose controller waits for hooks.
func (f *fixture) drained(t *testing.T, name string) {
	t.Helper()
	_, err := f.machines.Patch(t.Context(), name, types.MergePatchType,
		[]byte(`{"status":{"deletion":{"waitForPreTerminateHookStartTime":"2026-11-22T00:00:00Z"}}}`),
		metav1.PatchOptions{}, "status")
	require.NoError(t, err)
}

func (f *fixture) get(t *testing.T, name string) *unstructured.Unstructured {
	t.Helper()
	m, err := f.machines.Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return m
}

func (f *fixture) waitForHook(t *testing.T, name string, want bool) {
	t.Helper()
	require.Eventually(t, func() bool {
		value, isHooked := f.get(t, name).GetAnnotations()[machine.HookAnnotation]
		return isHooked == want && (!isHooked || value == machine.HookValue)
	}, soon, poll)
}

// requireHookStays checks the hook of the Machine "etcd" for the time of several rounds.
func (f *fixture) requireHookStays(t *testing.T) {
	t.Helper()
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for range 25 {
		<-ticker.C
		require.Contains(t, f.get(t, "etcd").GetAnnotations(), machine.HookAnnotation)
	}
}

// waitForRounds waits until several rounds have passed since now: in each of them the Machine
// "probe" gets and loses its hook.
func (f *fixture) waitForRounds(t *testing.T) {
	t.Helper()
	probe := node("probe", true)
	for range 2 {
		f.set(func(f *fixture) {
			f.cached, f.live = append(slices.Clone(f.cached), probe), append(slices.Clone(f.live), probe)
		})
		f.waitForHook(t, "probe", true)
		f.set(func(f *fixture) { f.cached, f.live = f.cached[:len(f.cached)-1], f.live[:len(f.live)-1] })
		f.waitForHook(t, "probe", false)
	}
}

// serve sets the versions in which the API server has Machines.
func (f *fixture) serve(t *testing.T, versions ...string) {
	t.Helper()
	var all []any
	for _, version := range []string{"v1beta1", "v1beta2", "v1beta3"} {
		all = append(all, map[string]any{
			"name": version, "served": slices.Contains(versions, version), "storage": version == "v1beta2",
			"subresources": map[string]any{"status": map[string]any{}},
			"schema": map[string]any{"openAPIV3Schema": map[string]any{
				"type": "object", "x-kubernetes-preserve-unknown-fields": true,
			}},
		})
	}
	body, err := json.Marshal(map[string]any{"spec": map[string]any{"versions": all}})
	require.NoError(t, err)
	definitions := schema.GroupVersionResource{
		Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
	}
	_, err = f.client.Resource(definitions).Patch(
		t.Context(), "machines.cluster.x-k8s.io", types.MergePatchType, body, metav1.PatchOptions{})
	require.NoError(t, err)
	f.version = versions[0]
	f.machines = f.client.Resource(machines().GroupResource().WithVersion(f.version)).Namespace("default")
	require.Eventually(t, func() bool {
		_, err := f.machines.List(t.Context(), metav1.ListOptions{})
		return err == nil
	}, soon, poll)
}

func (f *fixture) patchClaim(t *testing.T, patch string, subresources ...string) {
	t.Helper()
	_, err := f.claims.Patch(
		t.Context(), "claimed", types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...)
	require.NoError(t, err)
}
