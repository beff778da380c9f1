// Package guardpods creates and removes the guard pods. It runs in the leader only.
//
// Package guard decides. This package reads the state and executes the decisions. It decides from
// caches first; before it writes, it reads everything again from the API server, because a stalled
// watch must not remove a guard pod.
package guardpods

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// Options configure a Controller. The times and Off are optional.
type Options struct {
	// Store has the EtcdClusters and Nodes.
	Store *clusterstore.Store
	// Pods is a client without a cache for the namespace of guard pods.
	Pods typedcorev1.PodInterface
	// Departures has the marks of machines that go away.
	Departures departure.Table
	// Off removes all guard pods.
	Off        bool
	Log        *slog.Logger
	Registerer prometheus.Registerer
	// Tick is the time between two rounds if nothing wakes the loop. Default 15 s.
	Tick time.Duration
	// Pause is the shortest time between two rounds. Default 200 ms.
	Pause time.Duration
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// A Controller runs the loop. Its state belongs to the goroutine of Run.
type Controller struct {
	Options
	wake    loop.Signal
	logged  loop.LogOnce
	pace    map[string]creationPace
	metrics *prometheus.GaugeVec
	pods    toolscache.SharedInformer
	reads   podReads
}

// New returns a Controller that follows the EtcdClusters and Nodes of the Store.
func New(ctx context.Context, o Options) (*Controller, error) {
	if o.Tick == 0 {
		o.Tick = 15 * time.Second
	}
	if o.Pause == 0 {
		o.Pause = 200 * time.Millisecond
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	c := &Controller{Options: o, wake: loop.NewSignal(), pace: map[string]creationPace{}}
	c.metrics = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "holdfast_webhook_guard_pods",
		Help: "Nodes with etcd that need a guard pod, by whether they have it. Only the leader exports it.",
	}, []string{"state"})
	if err := o.Registerer.Register(c.metrics); err != nil {
		return nil, fmt.Errorf("registering metrics: %w", err)
	}
	if err := o.Store.Follow(ctx, func(*v1alpha1.EtcdCluster) { c.wake.Notify() }); err != nil {
		return nil, err
	}
	// Most updates of Nodes are heartbeats. They do not wake the loop.
	isChange := func(before, after *corev1.Node) bool { return c.keyOf(before) != c.keyOf(after) }
	if err := o.Store.FollowNodes(isChange, c.wake.Notify); err != nil {
		return nil, err
	}
	return c, c.newInformer()
}

// A guardedNode contains the parts of a Node that decide about its guard pod.
type guardedNode struct {
	uid, choice, label  string
	isClosed, isDeleted bool
	departure           departure.Class
}

func (c *Controller) keyOf(n *corev1.Node) guardedNode {
	return guardedNode{
		uid: string(n.UID), choice: n.Labels[guard.NodeLabel], label: n.Labels[observation.EtcdMemberLabel],
		isClosed: n.Spec.Unschedulable, isDeleted: n.DeletionTimestamp != nil, departure: c.Departures.Of(n).Class,
	}
}

// unknownAfter is how long reads of the guard pods may fail until their state counts as unknown.
const unknownAfter = time.Minute

// podReads records whether the informer can list and watch the guard pods.
type podReads struct {
	mu           sync.Mutex // guards the fields below
	logged       loop.LogOnce
	failingSince time.Time // zero after a success
}

// note records the result of a read, and reports whether to log it.
func (r *podReads) note(err error, now time.Time) (isNews bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil:
		r.failingSince = time.Time{}
	case r.failingSince.IsZero():
		r.failingSince = now
	}
	return r.logged.ChangedErrorKind("", err)
}

// failFor returns for how long all reads have failed.
func (r *podReads) failFor(now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failingSince.IsZero() {
		return 0
	}
	return now.Sub(r.failingSince)
}

// arePodsKnown reports whether the informer has the guard pods, and not only what it knew before it
// could not read them any more.
func (c *Controller) arePodsKnown() bool {
	return c.pods.HasSynced() && c.reads.failFor(c.Now()) < unknownAfter
}

// newInformer creates the informer of guard pods. It is not part of the caches that reviews need:
// without permission to list pods, they must not wait for it.
func (c *Controller) newInformer() error {
	selected := func(o *metav1.ListOptions) { o.LabelSelector = guard.NodeLabel }
	c.pods = toolscache.NewSharedInformer(&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			selected(&o)
			list, err := c.Pods.List(ctx, o)
			c.noteRead(ctx, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			selected(&o)
			w, err := c.Pods.Watch(ctx, o)
			c.noteRead(ctx, err)
			return w, err
		},
	}, &corev1.Pod{}, 0)
	// The default handler logs each failure. noteRead has logged the first one.
	err := c.pods.SetWatchErrorHandlerWithContext(func(context.Context, *toolscache.Reflector, error) {})
	if err != nil {
		return fmt.Errorf("setting the error handler of the informer for guard pods: %w", err)
	}
	notify := func(any) { c.wake.Notify() }
	_, err = c.pods.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: notify, UpdateFunc: func(_, after any) { notify(after) }, DeleteFunc: notify,
	})
	if err != nil {
		return fmt.Errorf("following guard pods: %w", err)
	}
	return nil
}

// noteRead records the result of a list or of the start of a watch.
func (c *Controller) noteRead(ctx context.Context, err error) {
	if ctx.Err() != nil || !c.reads.note(err, c.Now()) {
		return
	}
	if err != nil {
		c.Log.WarnContext(ctx, "failed to read guard pods; retrying", "err", err)
		return
	}
	c.Log.InfoContext(ctx, "guard pods can be read again")
	c.wake.Notify()
}

// Run reconciles until ctx ends, and then returns nil as the runnables of the manager do. It must
// be called at most once.
func (c *Controller) Run(ctx context.Context) error {
	for _, state := range podStates() {
		c.metrics.WithLabelValues(state).Set(0)
	}
	var informer sync.WaitGroup
	informer.Go(func() { c.pods.RunWithContext(ctx) })
	informer.Go(func() {
		if toolscache.WaitForCacheSync(ctx.Done(), c.pods.HasSynced) {
			c.wake.Notify()
		}
	})
	defer informer.Wait()
	// Do not wait for the guard pods: if they cannot be listed, the metrics have to show that.
	if !c.Store.WaitForSync(ctx) {
		return nil
	}
	loop.Rounds{
		Do: c.reconcile, Pause: c.Pause, Wake: c.wake, Idle: c.untilNextRound,
		Done: func(err error) {
			if c.logged.ChangedErrorKind("round", err) && err != nil {
				c.Log.ErrorContext(ctx, "failed to reconcile the guard pods; retrying", "err", err)
			}
		},
	}.Run(ctx)
	return nil
}

// untilNextRound returns how long the loop may sleep if nothing wakes it.
func (c *Controller) untilNextRound() time.Duration {
	next, now := c.Tick, c.Now()
	for _, p := range c.pace {
		if wait := p.notBefore.Sub(now); wait > 0 {
			next = min(next, wait)
		}
	}
	return next
}

// reconcile does once what is due.
func (c *Controller) reconcile(ctx context.Context) error {
	areKnown := c.arePodsKnown()
	cached, err := c.cachedState(ctx)
	if err != nil {
		return err
	}
	plan := guard.Plan(cached)
	c.count(plan, areKnown)
	if !areKnown {
		return nil
	}
	due := map[string][]string{} // the nodes, by the name of the pod
	for _, d := range plan {
		if d.Action.IsWrite() {
			due[d.Pod] = append(due[d.Pod], d.Node)
		}
	}
	if len(due) == 0 {
		return nil
	}
	live, err := c.liveState(ctx, due)
	if err != nil {
		return err
	}
	for _, d := range guard.Plan(live) {
		if _, isDue := due[d.Pod]; isDue {
			c.execute(ctx, d)
		}
	}
	return nil
}

// cachedState returns the state by the caches, with the Nodes that may need or have a guard pod.
func (c *Controller) cachedState(ctx context.Context) (guard.State, error) {
	clusters, err := c.Store.CachedClusters(ctx)
	if err != nil {
		return guard.State{}, err
	}
	s := c.newState(clusters)
	var names []string
	for _, cluster := range s.Clusters {
		names = append(names, clusterstore.BoundNodeNames(cluster.Spec.Members)...)
	}
	for _, object := range c.pods.GetStore().List() {
		if pod, ok := object.(*corev1.Pod); ok {
			s.Pods, names = append(s.Pods, pod), append(names, pod.Spec.NodeName)
		}
	}
	nodes, err := c.Store.CachedNodes(ctx)
	if err != nil {
		return s, err
	}
	for _, n := range nodes {
		if observation.IsLabelled(n) {
			names = append(names, n.Name)
		}
	}
	s.Nodes, err = c.Store.CachedNodesNamed(names)
	return s, err
}

// liveState returns the state of these targets by the API server. It fails if anything could not
// be read, because a Node or a pod that is not in the state counts as gone.
func (c *Controller) liveState(ctx context.Context, due map[string][]string) (guard.State, error) {
	clusters, err := c.Store.LiveClusters(ctx)
	if err != nil {
		return guard.State{}, err
	}
	s := c.newState(clusters)
	var names []string
	for name, nodes := range due {
		for _, node := range nodes {
			if node != "" { // a pod that no scheduler has placed
				names = append(names, node)
			}
		}
		// The pod may exist without the label by which the cache selects it.
		pod, err := c.Pods.Get(ctx, name, metav1.GetOptions{})
		switch {
		case isGone(err):
		case err != nil:
			return s, fmt.Errorf("reading guard pod %s: %w", name, err)
		default:
			s.Pods = append(s.Pods, pod)
			if pod.Spec.NodeName != "" {
				names = append(names, pod.Spec.NodeName)
			}
		}
	}
	for name, live := range c.Store.LiveNodesNamed(ctx, names) {
		if live.Err != nil {
			return s, fmt.Errorf("reading node %q: %w", name, live.Err)
		}
		if live.Node != nil {
			s.Nodes = append(s.Nodes, live.Node)
		}
	}
	return s, nil
}

func (c *Controller) newState(clusters []*v1alpha1.EtcdCluster) guard.State {
	s := guard.State{
		Clusters: clusters, Departures: c.Departures, Off: c.Off, Now: c.Now(), NotBefore: map[string]time.Time{},
	}
	for node, p := range c.pace {
		s.NotBefore[node] = p.notBefore
	}
	return s
}

// unknownState is the state of nodes that need a guard pod while those cannot be read.
const unknownState = "unknown"

// podStates returns the values of the label state of the metric.
func podStates() []string {
	return []string{
		string(guard.Present), string(guard.Missing), string(guard.Closed), string(guard.Defective), unknownState,
	}
}

// count updates the metrics. No guard pod is wanted on a closed node, so it
// does not matter whether that one is known.
func (c *Controller) count(plan []guard.Decision, areKnown bool) {
	counts := map[string]int{}
	for _, d := range plan {
		state := string(d.Presence)
		if !areKnown && d.Presence != "" && d.Presence != guard.Closed {
			state = unknownState
		}
		counts[state]++
	}
	for _, state := range podStates() {
		c.metrics.WithLabelValues(state).Set(float64(counts[state]))
	}
}
