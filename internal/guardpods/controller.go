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
	"github.com/holdfast-dev/holdfast/internal/clusterstore"
	"github.com/holdfast-dev/holdfast/internal/loop"
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
		Name: "holdfast_webhook_guard_pods", Help: "Nodes that need a guard pod, by whether they have it.",
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

// newInformer creates the informer of guard pods. It is not part of the caches that reviews need:
// without permission to list pods, they must not wait for it.
func (c *Controller) newInformer() error {
	selected := func(o *metav1.ListOptions) { o.LabelSelector = guard.NodeLabel }
	c.pods = toolscache.NewSharedInformer(&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			selected(&o)
			return c.Pods.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			selected(&o)
			return c.Pods.Watch(ctx, o)
		},
	}, &corev1.Pod{}, 0)
	var logged loop.LogOnce
	err := c.pods.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *toolscache.Reflector, err error) {
		if ctx.Err() == nil && logged.ChangedErrorKind("", err) {
			c.Log.WarnContext(ctx, "failed to watch guard pods; retrying", "err", err)
		}
	})
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

// Run reconciles until ctx ends, and then returns nil as the runnables of the manager do. It must
// be called at most once.
func (c *Controller) Run(ctx context.Context) error {
	var informer sync.WaitGroup
	informer.Go(func() { c.pods.RunWithContext(ctx) })
	defer informer.Wait()
	if !toolscache.WaitForCacheSync(ctx.Done(), c.pods.HasSynced) || !c.Store.WaitForSync(ctx) {
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
	cached, err := c.cachedState(ctx)
	if err != nil {
		return err
	}
	plan := guard.Plan(cached)
	c.count(plan)
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
	s, err := c.newState(c.Store.CachedClusters(ctx))
	if err != nil {
		return s, err
	}
	var names []string
	for _, cluster := range s.Clusters {
		names = append(names, clusterstore.BoundNodeNames(cluster.Spec.Members)...)
	}
	for _, object := range c.pods.GetStore().List() {
		if pod, ok := object.(*corev1.Pod); ok {
			s.Pods, names = append(s.Pods, pod), append(names, pod.Spec.NodeName)
		}
	}
	s.Nodes, err = c.Store.CachedNodesNamed(names)
	return s, err
}

// liveState returns the state of these targets by the API server. It fails if anything could not
// be read, because a Node or a pod that is not in the state counts as gone.
func (c *Controller) liveState(ctx context.Context, due map[string][]string) (guard.State, error) {
	s, err := c.newState(c.Store.LiveClusters(ctx))
	if err != nil {
		return s, err
	}
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
	for name, live := range c.Store.LiveNodes(ctx, names) {
		if live.Err != nil {
			return s, fmt.Errorf("reading node %q: %w", name, live.Err)
		}
		if live.Node != nil {
			s.Nodes = append(s.Nodes, live.Node)
		}
	}
	return s, nil
}

func (c *Controller) newState(clusters []*v1alpha1.EtcdCluster, err error) (guard.State, error) {
	s := guard.State{
		Clusters: clusters, Departures: c.Departures, Off: c.Off, Now: c.Now(), NotBefore: map[string]time.Time{},
	}
	for node, p := range c.pace {
		s.NotBefore[node] = p.notBefore
	}
	return s, err
}

// count updates the metrics.
func (c *Controller) count(plan []guard.Decision) {
	counts := map[string]int{}
	for _, d := range plan {
		switch d.Action {
		case guard.Keep:
			counts["present"]++
		case guard.Wait, guard.Create:
			counts["missing"]++
		case guard.Delete, guard.Remove:
		}
	}
	for _, state := range []string{"present", "missing"} {
		c.metrics.WithLabelValues(state).Set(float64(counts[state]))
	}
}
