// Package guardpods creates and removes the guard pods. It runs in the leader only.
//
// Package guard decides. This package reads the state and executes the decisions. It decides from
// caches first; before it writes, it reads everything again from the API server, because a stalled
// watch must not remove a guard pod.
package guardpods

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore"
	"github.com/holdfast-dev/holdfast/internal/control/follow"
	"github.com/holdfast-dev/holdfast/internal/control/world"
	"github.com/holdfast-dev/holdfast/internal/shared/apiaccess"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
)

// Options configure the controller. Off and the times are optional.
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
	// Tick is the time between two rounds if nothing wakes the controller. Default 15 s.
	Tick time.Duration
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// A controller has state that belongs to the goroutine of its rounds.
type controller struct {
	Options
	wake    loop.Signal
	logged  loop.LogOnce
	pace    map[string]creationPace
	metrics *prometheus.GaugeVec
	pods    *follow.Set[*corev1.Pod]
}

// New returns the controller of guard pods.
func New(o Options) (world.Controller, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	c := &controller{Options: o, wake: loop.NewSignal(), pace: map[string]creationPace{}}
	c.metrics = promauto.With(o.Registerer).NewGaugeVec(prometheus.GaugeOpts{
		Name: "holdfast_webhook_guard_pods",
		Help: "Nodes with etcd that need a guard pod, by whether they have it. Only the leader exports it.",
	}, []string{"state"})
	watching := func(ctx context.Context, l metav1.ListOptions) (watch.Interface, error) {
		l.LabelSelector = guard.NodeLabel
		return c.Pods.Watch(ctx, l)
	}
	// Reviews must not wait for it, also without permission to list pods.
	pods, run, err := follow.Open[*corev1.Pod](follow.Options{
		Name: "guard pods", Log: o.Log, Example: &corev1.Pod{},
		Source: &toolscache.ListWatch{ListWithContextFunc: c.listPods, WatchFuncWithContext: watching},
	})
	if err != nil {
		return world.Controller{}, err
	}
	c.pods, pods.Now = pods, c.Now
	return world.Controller{
		Name: "guard pods", Round: c.reconcile, Wake: c.wake, Tick: cmp.Or(o.Tick, 15*time.Second),
		Pause: 200 * time.Millisecond, Watch: func(ctx context.Context) { run(ctx, c.wake.Notify) },
	}, pods.OnChange(func(_, _ *corev1.Pod) { c.wake.Notify() })
}

func (c *controller) listPods(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	o.LabelSelector = guard.NodeLabel
	return c.Pods.List(ctx, o)
}

// listTimeout limits a list of the guard pods. Without an answer, they are unknown.
const listTimeout = 5 * time.Second

// readPods returns the guard pods. With an error, they are not known. While the watch may hang, it
// lists them.
func (c *controller) readPods(ctx context.Context) (pods []*corev1.Pod, err error) {
	isCurrent := c.pods.IsCurrent()
	pods, err = c.pods.List()
	if err == nil && !isCurrent {
		ctx, cancel := context.WithTimeout(ctx, listTimeout)
		defer cancel()
		pods, _, err = apiaccess.ListPages(ctx, c.listPods, func(object runtime.Object) (*corev1.Pod, bool, error) {
			pod, ok := object.(*corev1.Pod)
			return pod, ok, nil
		})
	}
	return pods, err
}

func (c *controller) reconcile(ctx context.Context, w world.World) error {
	pods, err := c.readPods(ctx)
	cached := c.newState(w.Clusters)
	cached.Nodes, cached.Pods = w.Nodes, pods
	plan := guard.Plan(cached)
	c.count(plan, err == nil)
	switch {
	case errors.Is(err, follow.ErrNotFilled): // Its Set logs why.
		return nil
	case err != nil:
		return fmt.Errorf("listing the guard pods: %w", err)
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

// liveState returns the state of these targets by the API server. It fails if anything could not
// be read, because a Node or a pod that is not in the state counts as gone.
func (c *controller) liveState(ctx context.Context, due map[string][]string) (guard.State, error) {
	clusters, err := c.Store.LiveClusters(ctx)
	if err != nil {
		return guard.State{}, err
	}
	s := c.newState(clusters)
	var names []string
	for name, nodes := range due {
		names = append(names, nodes...)
		// The pod may exist without the label by which the cache selects it.
		pod, err := c.Pods.Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return s, fmt.Errorf("reading guard pod %s: %w", name, err)
		default:
			s.Pods = append(s.Pods, pod)
			names = append(names, pod.Spec.NodeName)
		}
	}
	isUnplaced := func(node string) bool { return node == "" } // by a scheduler
	for name, live := range c.Store.LiveNodesNamed(ctx, slices.DeleteFunc(names, isUnplaced)) {
		if live.Err != nil {
			return s, fmt.Errorf("reading node %q: %w", name, live.Err)
		}
		if live.Node != nil {
			s.Nodes = append(s.Nodes, live.Node)
		}
	}
	return s, nil
}

func (c *controller) newState(clusters []*v1alpha1.EtcdCluster) guard.State {
	s := guard.State{
		Clusters: clusters, Departures: c.Departures, Off: c.Off, Now: c.Now(), NotBefore: map[string]time.Time{},
	}
	for node, p := range c.pace {
		s.NotBefore[node] = p.notBefore
	}
	return s
}

// unknown is the state of nodes that need a guard pod while those cannot be read.
const unknown guard.Presence = "unknown"

// count updates the metrics. No guard pod is wanted on a closed node, so it
// does not matter whether that one is known.
func (c *controller) count(plan []guard.Decision, areKnown bool) {
	counts := map[guard.Presence]int{}
	for _, d := range plan {
		if !areKnown && d.Presence != "" && d.Presence != guard.Closed {
			d.Presence = unknown
		}
		counts[d.Presence]++
	}
	for _, state := range []guard.Presence{guard.Present, guard.Missing, guard.Closed, guard.Defective, unknown} {
		c.metrics.WithLabelValues(string(state)).Set(float64(counts[state]))
	}
}
