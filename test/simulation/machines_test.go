package simulation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/holdfast-dev/holdfast/internal/control/clusterstore"
	"github.com/holdfast-dev/holdfast/internal/control/machinehook"
	"github.com/holdfast-dev/holdfast/pkg/machine"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// A managedMachine is the Machine or the NodeClaim of one host.
type managedMachine struct {
	machine.Object
	host *simulatedHost
	// version is the position of its newest version in the log of the table.
	version int
	// loss is the loss of its host that a review of the object has allowed, nil if there is none.
	// reviewed is when a review last allowed to remove the hook.
	loss     *pendingLoss
	reviewed time.Time
	// isUnreviewed is true if the deletion was accepted, and no webhook has decided about the Node.
	isUnreviewed bool
}

// A machineTable has the objects of one kind, and all their versions.
type machineTable struct {
	kind    string
	objects []*managedMachine

	mu  sync.Mutex // guards log: informers list in their own goroutines
	log []watch.Event
}

// put stores the state of the object as its newest version.
func (t *machineTable) put(m *managedMachine) {
	kind := watch.Modified
	if !slices.Contains(t.objects, m) {
		kind, t.objects = watch.Added, append(t.objects, m)
	}
	t.record(kind, m)
}

// remove removes an object.
func (t *machineTable) remove(m *managedMachine) {
	t.objects = slices.DeleteFunc(t.objects, func(o *managedMachine) bool { return o == m })
	t.record(watch.Deleted, m)
}

func (t *machineTable) record(kind watch.EventType, m *managedMachine) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m.version = len(t.log) + 1
	t.log = append(t.log, watch.Event{Type: kind, Object: m.content()})
}

// content returns the object as its program writes it.
func (m *managedMachine) content() *unstructured.Unstructured {
	metadata := map[string]any{"name": m.Name, "uid": string(m.UID), "resourceVersion": strconv.Itoa(m.version)}
	if m.Deleting {
		metadata["deletionTimestamp"] = time.Now().UTC().Format(time.RFC3339)
	}
	if m.Kind == machine.KindNodeClaim {
		conditions := []any{map[string]any{"type": "Registered", "status": "Unknown"}}
		if m.IsRegistered {
			conditions = []any{map[string]any{"type": "Registered", "status": "True"}}
		}
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "karpenter.sh/v1", "kind": m.Kind, "metadata": metadata,
			"status": map[string]any{"nodeName": m.Node, "providerID": m.ProviderID, "conditions": conditions},
		}}
	}
	metadata["namespace"] = m.Namespace
	if m.IsHooked {
		metadata["annotations"] = map[string]any{machine.HookAnnotation: machine.HookValue}
	}
	status := map[string]any{"nodeRef": map[string]any{"name": m.Node}}
	if m.AwaitsHook {
		status["deletion"] = map[string]any{"waitForPreTerminateHookStartTime": time.Now().UTC().Format(time.RFC3339)}
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": m.Kind, "metadata": metadata,
		"spec": map[string]any{"providerID": m.ProviderID}, "status": status,
	}}
}

// patch sets the hook of an object, or removes it.
func (sim *simulation) patchMachine(name string, body []byte) error {
	at := slices.IndexFunc(sim.machines.objects, func(m *managedMachine) bool { return m.Name == name })
	if at < 0 {
		return apierrors.NewNotFound(schema.GroupResource{Group: machine.ClusterAPIGroup, Resource: machine.Resource}, name)
	}
	var patch struct {
		Metadata struct {
			UID             types.UID          `json:"uid"`
			ResourceVersion string             `json:"resourceVersion"`
			Annotations     map[string]*string `json:"annotations"`
		} `json:"metadata"`
	}
	m := sim.machines.objects[at]
	if err := json.Unmarshal(body, &patch); err != nil || patch.Metadata.UID != m.UID {
		return apierrors.NewBadRequest(fmt.Sprintf("the patch is not for this object: %v", err))
	}
	if patch.Metadata.ResourceVersion != strconv.Itoa(m.version) {
		return apierrors.NewConflict(schema.GroupResource{Group: machine.ClusterAPIGroup, Resource: machine.Resource}, name,
			errors.New("it has another version"))
	}
	value, isSet := patch.Metadata.Annotations[machine.HookAnnotation]
	if !isSet || m.IsHooked == (value != nil) {
		return nil
	}
	isReviewed := !m.reviewed.IsZero() && time.Since(m.reviewed) <= lateness
	if m.IsHooked && m.Deleting && !isReviewed && sim.hasEtcdNode(m.host) {
		sim.fail("the hook of %s is removed, but no review has allowed that", m)
	}
	m.IsHooked = value != nil
	sim.machines.put(m)
	return nil
}

// hasEtcdNode reports whether the machine has a Node with the label of etcd.
func (sim *simulation) hasEtcdNode(h *simulatedHost) bool {
	n, err := sim.api.node(h.name)
	return err == nil && n.UID == h.node && n.Labels[observation.EtcdMemberLabel] == observation.EtcdMemberLabelValue
}

// A dynamicClient is the dynamic.Interface of a replica.
type dynamicClient struct{ r *simulatedReplica }

func (c dynamicClient) Resource(schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return machineClient{r: c.r}
}

// IsWatchListSemanticsUnSupported makes informers list before they watch.
func (dynamicClient) IsWatchListSemanticsUnSupported() bool { return true }

// A machineClient has the methods of a dynamic client that the webhook uses.
type machineClient struct {
	dynamic.NamespaceableResourceInterface
	r *simulatedReplica
}

func (c machineClient) Namespace(string) dynamic.ResourceInterface { return c }

// List returns all objects. The list of an informer always succeeds, and waits for nothing.
func (c machineClient) List(
	ctx context.Context, o metav1.ListOptions,
) (found *unstructured.UnstructuredList, err error) {
	if o.ResourceVersion == "0" {
		return c.r.sim.machines.list(), nil
	}
	err = sendCall(ctx, apiClient{r: c.r}, false, "list machine objects",
		func() (*unstructured.UnstructuredList, error) { return c.r.sim.machines.list(), nil },
		func(made *unstructured.UnstructuredList) { found = made })
	return found, err
}

// list returns the newest versions of all objects.
func (t *machineTable) list() *unstructured.UnstructuredList {
	t.mu.Lock()
	defer t.mu.Unlock()
	found := &unstructured.UnstructuredList{}
	found.SetResourceVersion(strconv.Itoa(len(t.log)))
	newest := map[string]*unstructured.Unstructured{}
	for _, e := range t.log {
		object, _ := e.Object.(*unstructured.Unstructured)
		newest[object.GetName()] = object
		if e.Type == watch.Deleted {
			delete(newest, object.GetName())
		}
	}
	for _, name := range sortedKeys(newest) {
		found.Items = append(found.Items, *newest[name].DeepCopy())
	}
	return found
}

// Watch returns a watch to which the driver sends events.
func (c machineClient) Watch(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	position, err := strconv.Atoi(o.ResourceVersion)
	if err != nil {
		return nil, fmt.Errorf("a watch without a version is not simulated: %w", err)
	}
	w := &machineWatch{
		table: c.r.sim.machines, position: position, events: make(chan watch.Event), stopped: make(chan struct{}),
		settle: c.r.sim.settle,
	}
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	c.r.machineWatch = w
	return w, nil
}

func (c machineClient) Patch(
	ctx context.Context, name string, _ types.PatchType, body []byte, _ metav1.PatchOptions, _ ...string,
) (*unstructured.Unstructured, error) {
	return nil, sendCall(ctx, apiClient{r: c.r}, true, fmt.Sprintf("patch machine object %s with %s", name, body),
		func() (struct{}, error) { return struct{}{}, c.r.sim.patchMachine(name, body) }, func(struct{}) {})
}

// A machineWatch sends the versions of the objects to one informer.
type machineWatch struct {
	table    *machineTable
	position int
	events   chan watch.Event
	stopped  chan struct{}
	once     sync.Once
	settle   func()
}

// ResultChan returns the channel of the events.
func (w *machineWatch) ResultChan() <-chan watch.Event { return w.events }

// Stop ends the watch.
func (w *machineWatch) Stop() { w.once.Do(func() { close(w.stopped) }) }

// pending returns how many versions the informer has not received.
func (w *machineWatch) pending() int { return len(w.table.log) - w.position }

// deliver sends the next n versions. It waits after each until all goroutines are blocked.
func (w *machineWatch) deliver(n int) {
	for ; n > 0 && w.pending() > 0; n-- {
		e := w.table.log[w.position]
		w.position++
		e.Object = e.Object.DeepCopyObject()
		select {
		case w.events <- e:
		case <-w.stopped:
		}
		w.settle()
	}
}

// pendingMachineVersions returns how many versions of machine objects the replica may receive now.
func (r *simulatedReplica) pendingMachineVersions() int {
	if r.isCrashed() || r.machineWatch == nil || r.machineWatchStalled {
		return 0
	}
	return r.machineWatch.pending()
}

// newController returns the real Controller of hooks, or nil if there are no machine objects.
func (r *simulatedReplica) newController(connection apiClient, store *clusterstore.Store) *machinehook.Controller {
	if r.sim.machines == nil {
		return nil
	}
	find := func(
		_ context.Context, kind schema.GroupKind, versions []string,
	) (schema.GroupVersionResource, bool, error) {
		resource, _ := meta.UnsafeGuessKindToResource(kind.WithVersion(versions[0]))
		return resource, true, nil
	}
	return machinehook.New(machinehook.Options{
		ClusterAPI: r.sim.machines.kind == machine.KindMachine, Karpenter: r.sim.machines.kind == machine.KindNodeClaim,
		Client: dynamicClient{r: r}, FindResource: find,
		LiveNodes: store.LiveNodes, LiveClusters: store.LiveClusters,
		Node:   connection.node,
		Review: r.reviewMachine, RecordEvent: func(*corev1.ObjectReference, string, string, string) {},
		Log: r.sim.logger(r.number),
	})
}

// reviewMachine lets the handler review a Machine that waits for its hook. The driver decides when
// the review begins.
func (r *simulatedReplica) reviewMachine(
	ctx context.Context, m machine.Object, list func(context.Context) ([]*corev1.Node, error), user string,
) (bool, string) {
	var review *simulatedReview
	begin := &apiCall{replica: r, what: "begin the review of " + m.String(), isInternal: true}
	begin.do = func() error {
		review = r.sim.beginHookReview(r, m)
		return nil
	}
	if err := r.sim.gate.wait(ctx, begin); err != nil || review == nil {
		return false, fmt.Sprint("there is no review: ", err)
	}
	defer review.done.Store(true)
	allowed, message := r.handler.ReviewMachine(context.WithValue(ctx, reviewContextKey{}, review), m, list, user)
	review.answer = hookAnswer(allowed, message)
	return allowed, message
}
