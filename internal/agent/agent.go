// Package agent runs what happens on one node: it looks at the host, decides, and writes the Node and the node's entry in
// each EtcdCluster.
//
// Two things run beside each other and share nothing but the last evidence. The node loop is the one writer of the Node
// and does nothing slow, so that a node is released within milliseconds of its network. The lookout and the reporter
// look for etcd and ask it, which may take seconds when etcd is ill. Both are woken by events, and look at everything
// once in a while whatever happens, so that a lost event costs a tick and nothing else.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/nodepatch"
	"github.com/holdfast-dev/holdfast/pkg/protect"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
	"github.com/holdfast-dev/holdfast/pkg/spc"
)

// Nodes is a client for Nodes, of which the agent touches its own alone.
type Nodes interface {
	nodepatch.Patcher
	Get(ctx context.Context, name string, o metav1.GetOptions) (*corev1.Node, error)
	List(ctx context.Context, o metav1.ListOptions) (*corev1.NodeList, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

// Events is a client for Events.
type Events interface {
	Create(ctx context.Context, event *corev1.Event, o metav1.CreateOptions) (*corev1.Event, error)
}

// Config is what an Agent works with. All of it is needed but LetGo, Inventory and FollowInventory.
type Config struct {
	// Node is the name of the agent's own Node, the only one that it touches.
	Node     string
	Nodes    Nodes
	Events   Events
	Clusters *Clusters

	// Network and Etcd say what the host shows. Network is called often and must be fast.
	Network func(context.Context) readiness.Facts
	Etcd    func(context.Context) (found []protect.Sighting, unknown []string)
	// Watch calls notify whenever the host may have changed, until the context ends. If it fails it is started again;
	// meanwhile the tick has to do.
	Watch func(ctx context.Context, notify func()) error
	// LetGo ends the delay of a shutdown that Network has told of: the Node is written. Nil where nothing is delayed.
	LetGo func() error
	// Identify asks an etcd server who it is, Observe looks at its whole cluster. They bound themselves.
	Identify func(context.Context, protect.Sighting) protect.Answer
	Observe  func(context.Context, protect.Sighting, protect.Answer) v1alpha1.Observation

	// Inventory is the list of SPC machines as last read, nil before the first; FollowInventory keeps it up to date and
	// calls notify when it changed. Both are nil where there is no SPC.
	Inventory       func() *spc.Index
	FollowInventory func(ctx context.Context, notify func()) error
	// WithholdGroup says that a node which holds etcd, or may, is not labelled with its SPC group.
	WithholdGroup bool

	Policy readiness.Policy
	// StaticPods says that etcd which Kubernetes itself runs is protected too.
	StaticPods bool
	// Tick is how often the Node is looked at if nothing happens.
	Tick time.Duration
	Log  *slog.Logger
}

// Agent is the agent of one node.
type Agent struct {
	cfg      Config
	nodes    *mirror[*corev1.Node]
	clusters *mirror[*v1alpha1.EtcdCluster]
	loop     *loop
	lookout  *lookout
	reporter *reporter
	herald   *herald
	metrics  *metrics
}

// New returns an Agent that does nothing before Run.
func New(cfg Config) (*Agent, error) {
	switch {
	case cfg.Node == "":
		return nil, errors.New("making an agent: the name of its node is empty")
	case cfg.Tick <= 0:
		return nil, fmt.Errorf("making an agent: tick %s is not above zero", cfg.Tick)
	}
	a := &Agent{cfg: cfg, herald: newHerald(cfg), metrics: newMetrics()}
	a.nodes = &mirror[*corev1.Node]{
		log: cfg.Log.With("resource", "nodes"), objects: map[string]*corev1.Node{},
		list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return cfg.Nodes.List(ctx, only(cfg.Node, o))
		},
		watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return cfg.Nodes.Watch(ctx, only(cfg.Node, o))
		},
		changed: a.ownChanged,
	}
	a.clusters = &mirror[*v1alpha1.EtcdCluster]{
		wanted: newBell(),
		log:    cfg.Log.With("resource", v1alpha1.Resource), objects: map[string]*v1alpha1.EtcdCluster{},
		list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return cfg.Clusters.List(ctx, o)
		},
		watch:   cfg.Clusters.Watch,
		changed: a.nodeChanged, // what the clusters say of this node's members is part of the evidence
	}
	a.lookout = &lookout{
		etcd: cfg.Etcd, identify: cfg.Identify, pods: cfg.StaticPods, log: cfg.Log, woken: newBell(), told: a.nodeChanged,
		patience: lookPatience, metrics: a.metrics,
	}
	a.reporter = &reporter{
		node: cfg.Node, observe: cfg.Observe, publish: cfg.Clusters.Publish,
		own: a.nodes, clusters: a.clusters, evidence: &a.lookout.evidence, pods: cfg.StaticPods, log: cfg.Log,
		woken: newBell(), finished: make(chan round, roundsAtOnce), topics: map[v1alpha1.ClusterID]*topic{},
		metrics: a.metrics,
	}
	a.loop = &loop{
		cfg: cfg, own: a.nodes, clusters: a.clusters, evidence: &a.lookout.evidence,
		blind: a.lookout.blind, writer: nodepatch.NewWriter(cfg.Nodes), tell: a.herald.tell, woken: newBell(),
	}
	return a, nil
}

// Run works until the context ends, and returns its cause.
func (a *Agent) Run(ctx context.Context) error {
	parts := []func(context.Context) error{
		a.nodes.run, a.clusters.runWanted, a.loop.run, a.lookout.run, a.reporter.run, a.herald.run,
		func(ctx context.Context) error {
			return persist(ctx, a.cfg.Log.With("watch", "host"), a.cfg.Watch, a.hostChanged)
		},
	}
	if a.cfg.FollowInventory != nil {
		parts = append(parts, func(ctx context.Context) error {
			return persist(ctx, a.cfg.Log.With("watch", "spc"), a.cfg.FollowInventory, a.loop.woken.ring)
		})
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, part := range parts {
		group.Go(func() error { return part(ctx) })
	}
	return group.Wait()
}

// Describe and Collect make the Agent a prometheus.Collector of the numbers of its etcd side.
func (a *Agent) Describe(to chan<- *prometheus.Desc) {
	for _, c := range a.metrics.collectors() {
		c.Describe(to)
	}
}

// Collect sends the numbers as they are now.
func (a *Agent) Collect(to chan<- prometheus.Metric) {
	for _, c := range a.metrics.collectors() {
		c.Collect(to)
	}
}

// Healthy returns an error that says how long the node loop has not turned, or the host has not been looked at, if that is
// too long for an agent that lives.
func (a *Agent) Healthy(now time.Time) error {
	err := a.loop.healthy(now)
	if blind := a.lookout.blind(now); blind != "" {
		err = errors.Join(err, errors.New(blind))
	}
	return err
}

func (a *Agent) hostChanged() {
	a.loop.woken.ring()
	a.lookout.woken.ring()
}

// ownChanged is nodeChanged, but for the echo of the loop's own last write, of which it has the answer.
func (a *Agent) ownChanged() {
	if node, there, _ := a.nodes.one(a.cfg.Node); !there || !a.loop.wrote(node) {
		a.loop.woken.ring()
	}
	a.reporter.woken.ring()
}

func (a *Agent) nodeChanged() {
	a.loop.woken.ring()
	a.reporter.woken.ring()
}

func only(node string, o metav1.ListOptions) metav1.ListOptions {
	o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, node).String()
	return o
}

// steady is how long something must have worked for its next failure to count as the first.
const steady = time.Minute

// persist runs a watch and starts it again when it fails, ever more slowly. Each start notifies, since nobody watched
// before it.
func persist(ctx context.Context, log *slog.Logger, watch func(context.Context, func()) error, notify func()) error {
	delays, trouble := retries(), said{}
	for {
		began := time.Now()
		notify()
		err := watch(ctx, notify)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err == nil {
			err = errors.New("it ended by itself")
		}
		if time.Since(began) > steady {
			delays, trouble = retries(), said{}
		}
		if trouble.changed(cause(err)) {
			log.WarnContext(ctx, "watching failed, trying again; the tick goes on", "err", err)
		}
		if pause(ctx, delays.Step()) != nil {
			return context.Cause(ctx)
		}
	}
}
