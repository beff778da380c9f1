// Package machinehook keeps Cluster API from ending the machines of nodes with etcd. The leader
// sets a pre-terminate hook on the Machine of such a node. Cluster API then deletes a Machine up to
// the point at which it ends the machine, and waits until the hook is removed. The leader removes
// it when a review allows the deletion of the Node.
//
// Package machine decides which step is due. This package reads the objects and makes the step.
package machinehook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/loop"
	"github.com/holdfast-dev/holdfast/pkg/machine"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// Reasons of the events on Machines.
const (
	RefusedEvent = "DeletionRefused"
	AllowedEvent = "DeletionAllowed"
)

// Versions returns the versions of Machine that Holdfast can read, the preferred one first.
func Versions() []string { return []string{"v1beta2", "v1beta1"} }

// An EtcdSource reads the Nodes and the EtcdClusters.
type EtcdSource struct {
	// Nodes lists all Nodes. They are only read.
	Nodes    func(ctx context.Context) ([]corev1.Node, error)
	Clusters func(ctx context.Context) ([]*v1alpha1.EtcdCluster, error)
}

// Options configure Hooks. All fields but the times are required.
type Options struct {
	// Client reads, follows and patches Machines.
	Client dynamic.Interface
	// Mapper knows which version of Machine the API server has.
	Mapper meta.RESTMapper
	// Cached and Live are the cache and the API server.
	Cached, Live EtcdSource
	// Review decides whether the machine of a Machine may end. The user is recorded.
	Review func(ctx context.Context, m machine.Object, user string) (isAllowed bool, message string)
	// RecordEvent records an event on a Machine.
	RecordEvent func(about *corev1.ObjectReference, kind, reason, message string)
	Log         *slog.Logger
	// Tick is the time between two rounds if nothing wakes the loop, and between two reviews of one
	// Machine. Default 15 s.
	Tick time.Duration
	// Pause is the shortest time between two rounds. Default 1 s.
	Pause time.Duration
}

// Hooks keep the hooks of all Machines. They must run in one replica at a time.
type Hooks struct {
	Options
	wake   loop.Signal
	logged loop.LogOnce
	// reviewed is when each Machine that waits was last reviewed.
	reviewed map[types.UID]time.Time
	resource schema.GroupVersionResource

	mu       sync.Mutex // guards machines
	machines map[string]machine.Object
}

// New returns Hooks.
func New(o Options) *Hooks {
	if o.Tick == 0 {
		o.Tick = 15 * time.Second
	}
	if o.Pause == 0 {
		o.Pause = time.Second
	}
	return &Hooks{
		Options: o, wake: loop.NewSignal(), reviewed: map[types.UID]time.Time{}, machines: map[string]machine.Object{},
	}
}

// Run keeps the hooks until ctx ends, and then returns nil as the runnables of the manager do. As
// long as the API server has no Machines, it looks for them once in a Tick.
func (h *Hooks) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var followers sync.WaitGroup
	defer followers.Wait()
	defer cancel()
	for !h.findResource() {
		if loop.Wait(ctx, h.Tick, nil) != nil {
			return nil
		}
	}
	informer, err := h.newInformer()
	if err != nil {
		return err
	}
	followers.Go(func() { informer.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil
	}
	for ctx.Err() == nil {
		text := ""
		if err := h.reconcileAll(ctx); err != nil && ctx.Err() == nil {
			text = err.Error()
		}
		if h.logged.Changed("round", text) && text != "" {
			h.Log.ErrorContext(ctx, "failed to check all Machines; retrying", "err", text)
		}
		if loop.Wait(ctx, h.Pause, nil) == nil {
			_ = loop.Wait(ctx, max(0, h.Tick-h.Pause), h.wake) // The condition above checks ctx.
		}
	}
	return nil
}

// findResource reports whether the API server has Machines.
func (h *Hooks) findResource() bool {
	mapping, err := h.Mapper.RESTMapping(
		schema.GroupKind{Group: machine.ClusterAPIGroup, Kind: machine.KindMachine}, Versions()...)
	if h.logged.ChangedError("mapping", err) && err != nil {
		h.Log.Warn("failed to find the Machines of Cluster API; retrying", "err", err)
	}
	if err != nil {
		return false
	}
	h.resource = mapping.Resource
	return true
}

// newInformer returns an informer that keeps h.machines.
func (h *Hooks) newInformer() (cache.SharedIndexInformer, error) {
	informer := dynamicinformer.NewFilteredDynamicInformer(
		h.Client, h.resource, metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: h.update, UpdateFunc: func(_, object any) { h.update(object) }, DeleteFunc: h.remove,
	})
	if err := errors.Join(err, informer.SetTransform(trim)); err != nil {
		return nil, fmt.Errorf("following Machines: %w", err)
	}
	return informer, nil
}

// trim removes what is not read from a Machine before it is cached.
func trim(object any) (any, error) {
	m, ok := object.(*unstructured.Unstructured)
	if !ok {
		return object, nil
	}
	m.SetManagedFields(nil)
	for _, part := range []struct {
		name string
		kept []string
	}{
		{"spec", []string{"providerID"}},
		{"status", []string{"nodeRef", "deletion", "conditions"}},
	} {
		if values, isMap := m.Object[part.name].(map[string]any); isMap {
			for key := range values {
				if !slices.Contains(part.kept, key) {
					delete(values, key)
				}
			}
		}
	}
	return m, nil
}

func (h *Hooks) update(object any) {
	m, ok := object.(*unstructured.Unstructured)
	if !ok {
		return
	}
	raw, err := m.MarshalJSON()
	var parsed machine.Object
	if err == nil {
		parsed, err = machine.Parse(machine.KindMachine, raw)
	}
	if err != nil {
		h.Log.Error("ignoring a Machine that cannot be read", "machine", m.GetNamespace()+"/"+m.GetName(), "err", err)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if key := parsed.String(); h.machines[key] != parsed {
		h.machines[key] = parsed
		h.wake.Notify()
	}
}

func (h *Hooks) remove(object any) {
	if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	if m, ok := object.(*unstructured.Unstructured); ok {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.machines, machine.Object{
			Kind: machine.KindMachine, Namespace: m.GetNamespace(), Name: m.GetName(),
		}.String())
	}
}

// sorted returns the Machines in the order of their names, and forgets the reviews of others.
func (h *Hooks) sorted() []machine.Object {
	h.mu.Lock()
	defer h.mu.Unlock()
	found, reviewed := make([]machine.Object, 0, len(h.machines)), map[types.UID]time.Time{}
	for _, m := range h.machines {
		found = append(found, m)
		if at, ok := h.reviewed[m.UID]; ok {
			reviewed[m.UID] = at
		}
	}
	h.reviewed = reviewed
	slices.SortFunc(found, func(a, b machine.Object) int { return strings.Compare(a.String(), b.String()) })
	return found
}

// reconcileAll makes the step of every Machine. A failure with one does not stop the others.
func (h *Hooks) reconcileAll(ctx context.Context) error {
	etcd, err := h.Cached.etcdNodes(ctx)
	if err != nil {
		return err
	}
	var failed []error
	for _, m := range h.sorted() {
		switch machine.PlanHook(m, etcd.has(m)) {
		case machine.HookKeep:
		case machine.HookAdd:
			failed = append(failed, h.patch(ctx, m, machine.HookValue))
		case machine.HookRemove:
			failed = append(failed, h.removeUnneeded(ctx, m))
		case machine.HookReview:
			failed = append(failed, h.review(ctx, m, etcd.has(m)))
		}
	}
	return errors.Join(failed...)
}

// removeUnneeded removes the hook of a Machine that stands for no node with etcd, if the API server
// confirms that.
func (h *Hooks) removeUnneeded(ctx context.Context, m machine.Object) error {
	etcd, err := h.Live.etcdNodes(ctx)
	if err != nil || etcd.has(m) {
		return err
	}
	return h.patch(ctx, m, nil)
}

// review removes the hook of a Machine that waits for it, if a review allows the deletion of its
// Node.
func (h *Hooks) review(ctx context.Context, m machine.Object, hasEtcd bool) error {
	if at, ok := h.reviewed[m.UID]; ok && time.Since(at) < h.Tick {
		return nil
	}
	h.reviewed[m.UID] = time.Now()
	if !hasEtcd { // The review reads the same cache, which may be old.
		if etcd, err := h.Live.etcdNodes(ctx); err != nil || etcd.has(m) {
			return err
		}
	}
	isAllowed, message := h.Review(ctx, m, fmt.Sprintf("Cluster API (%s)", m))
	about := &corev1.ObjectReference{
		APIVersion: h.resource.GroupVersion().String(), Kind: machine.KindMachine, Namespace: m.Namespace, Name: m.Name, UID: m.UID,
	}
	if !isAllowed {
		if h.logged.Changed(string(m.UID), message) {
			h.Log.WarnContext(ctx, "machine is kept by its hook", "machine", m.String(), "message", message)
			h.RecordEvent(about, corev1.EventTypeWarning, RefusedEvent, "the machine may not end: "+message)
		}
		return nil
	}
	if err := h.patch(ctx, m, nil); err != nil {
		return err
	}
	h.logged.Changed(string(m.UID), "")
	h.RecordEvent(about, corev1.EventTypeNormal, AllowedEvent, "the machine may end: "+message)
	return nil
}

// patch writes the annotation, or removes it if the value is nil. The UID makes the patch fail on
// another Machine of the same name. A Machine that is gone is no error.
func (h *Hooks) patch(ctx context.Context, m machine.Object, value any) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": m.UID, "annotations": map[string]any{machine.HookAnnotation: value},
	}})
	if err == nil {
		_, err = h.Client.Resource(h.resource).Namespace(m.Namespace).Patch(ctx, m.Name, types.MergePatchType, body,
			metav1.PatchOptions{FieldManager: "holdfast-webhook"})
	}
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil
	case err != nil:
		return fmt.Errorf("writing the hook of %s: %w", m, err)
	}
	h.Log.InfoContext(ctx, "changed the hook of a Machine", "machine", m.String(), "is_set", value != nil)
	return nil
}

// etcdNodes are the Nodes that hold etcd.
type etcdNodes []corev1.Node

// etcdNodes returns the Nodes that have the label, or to which a member is bound: the label may be
// missing for a moment.
func (s EtcdSource) etcdNodes(ctx context.Context) (etcdNodes, error) {
	nodes, err := s.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	clusters, err := s.Clusters(ctx)
	if err != nil {
		return nil, err
	}
	bound := map[types.UID]bool{}
	for _, c := range clusters {
		for _, b := range c.Spec.Members {
			bound[b.NodeUID] = true
		}
	}
	var found etcdNodes
	for i := range nodes {
		if nodes[i].Labels[observation.EtcdMemberLabel] == observation.EtcdMemberLabelValue || bound[nodes[i].UID] {
			found = append(found, nodes[i])
		}
	}
	return found, nil
}

// has reports whether the Machine stands for one of the Nodes.
func (nodes etcdNodes) has(m machine.Object) bool {
	return slices.ContainsFunc(nodes, func(n corev1.Node) bool { return m.Match(n.Name, n.Spec.ProviderID) != "" })
}
