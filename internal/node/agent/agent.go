// Package agent protects the node on which it runs. It observes the host, decides, and writes its
// own Node, and its own EtcdObservation of each etcd cluster with a member on the node.
//
// It has two paths, which run side by side and share nothing but the latest evidence:
//
//   - nodeloop.go gathers the facts of the host, calls the pure decisions (decide.go), and
//     writes the Node through package nodepatch. It is the only writer of the Node. It does
//     nothing slow, so that a node is released within milliseconds of its network.
//   - scanner.go finds the etcd servers of the host and identifies them. publish.go probes the
//     cluster of each local member (members.go), and publishes the observation. lists.go notices
//     when a member list has changed. These steps can take seconds if etcd is ill.
//
// Events wake all loops. Each loop also runs at an interval, so that a lost event costs one
// interval and nothing else.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/shared/apiaccess"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/internal/shared/nodepatch"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
	"github.com/holdfast-dev/holdfast/pkg/spc"
)

// Nodes is a client for Nodes. The agent uses it for its own Node only.
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

// Config describes an Agent. Every field is required, except SearchData, ProbeGate, AllowShutdown,
// Inventory and FollowInventory.
type Config struct {
	// Node is the name of the agent's own Node, the only Node that the agent reads and writes.
	Node     string
	Nodes    Nodes
	Events   Events
	Clusters *apiaccess.Clusters

	// Network returns the facts about the host's network. It is called often and must be fast.
	Network func(context.Context) readiness.Facts
	// Etcd returns the etcd servers and data of the host, and the places that could not be read.
	Etcd func(context.Context) evidence.Scan
	// SearchData starts a search of the local disks for data of etcd, unless the last one has just
	// ended. It is nil where nothing searches.
	SearchData func()
	// Watch calls notify whenever the host may have changed, until the context ends. While it cannot
	// watch, the tick replaces it.
	Watch func(ctx context.Context, notify func()) error
	// ProbeGate probes the endpoint of a gate once, and limits its own time. It returns why the
	// gate is closed. It is called only for the endpoints of the policy.
	ProbeGate func(context.Context, readiness.Endpoint) error
	// AllowShutdown ends the delay of a shutdown that Network has reported. The agent calls it
	// when the Node is written. It is nil where no shutdown is delayed.
	AllowShutdown func() error
	// Identify requests the identity of an etcd server. Observe probes its whole cluster. Both limit
	// their own time.
	Identify func(context.Context, evidence.Server) evidence.Identity
	Observe  func(context.Context, evidence.Server, evidence.Identity) v1alpha1.Observation
	// ListMembers returns the member list as an etcd server stores it. It is called every two
	// seconds, and limits its own time.
	ListMembers func(context.Context, evidence.Server, evidence.Identity) ([]v1alpha1.MemberStatus, error)

	// Inventory returns the latest list of SPC machines, or nil before the first one.
	// FollowInventory keeps the list up to date until the context ends, and calls notify after each
	// change. Both are nil where there is no SPC.
	Inventory       func() *spc.Index
	FollowInventory func(ctx context.Context, notify func()) error
	// WithholdGroup keeps the label with the SPC group off a node that holds etcd, or may.
	WithholdGroup bool

	Policy readiness.Policy
	// StaticPods extends the protection to etcd servers that Kubernetes itself runs.
	StaticPods bool
	// Tick is the time between two passes of the node loop if no event wakes it.
	Tick time.Duration
	Log  *slog.Logger
}

// Agent is the agent of one node. As a prometheus.Collector, it has the metrics of the etcd path.
type Agent struct {
	*metrics
	cfg      Config
	nodes    *store[*corev1.Node]
	clusters clusterStores
	nodeLoop *nodeLoop
	scanner  *etcdScanner
	reporter *clusterReporter
	recorder *eventRecorder

	readMu sync.Mutex // guards what follows, which is what the node loop reads of the EtcdClusters
	// readClusters are without nonces and times.
	readClusters     map[string]v1alpha1.EtcdCluster
	areClustersKnown bool
}

// New returns an Agent that does nothing before Run.
func New(cfg Config) (*Agent, error) {
	switch {
	case cfg.Node == "":
		return nil, errors.New("creating the agent: the node name is empty")
	case cfg.Tick <= 0:
		return nil, fmt.Errorf("creating the agent: tick %s is not positive", cfg.Tick)
	}
	a := &Agent{cfg: cfg, recorder: newEventRecorder(cfg), metrics: newMetrics()}
	a.nodes = newStore[*corev1.Node](cfg.Log.With("resource", "nodes"), a.wakeLoops)
	a.nodes.list = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return cfg.Nodes.List(ctx, selectNode(cfg.Node, o))
	}
	a.nodes.watch = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		return cfg.Nodes.Watch(ctx, selectNode(cfg.Node, o))
	}
	// The reports of the clusters about the members of this node are part of the evidence.
	a.clusters = newClusterStores(cfg.Log, a.onClustersChange)
	a.clusters.clusters.list = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return cfg.Clusters.EtcdClusters.List(ctx, o)
	}
	a.clusters.clusters.watch = cfg.Clusters.EtcdClusters.Watch
	a.clusters.observations.list = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return cfg.Clusters.Observations.List(ctx, o)
	}
	a.clusters.observations.watch = cfg.Clusters.Observations.Watch
	a.scanner = newEtcdScanner(cfg, a.metrics, a.wakeLoops)
	wakeReporter := loop.NewSignal()
	a.reporter = &clusterReporter{
		cfg: cfg, publish: cfg.Clusters.Observations.Update,
		nodes: a.nodes, clusters: a.clusters, evidence: &a.scanner.evidence,
		wake: wakeReporter, results: make(chan clusterProbe, maxProbes), reports: map[v1alpha1.ClusterID]*clusterReport{},
		lists: listWatcher{read: cfg.ListMembers, changed: wakeReporter.Notify}, metrics: a.metrics,
	}
	a.nodeLoop = &nodeLoop{
		cfg: cfg, nodes: a.nodes, clusters: a.clusters, evidence: &a.scanner.evidence,
		writer: nodepatch.NewWriter(cfg.Nodes), recordEvent: a.recorder.record, wake: loop.NewSignal(),
	}
	a.nodeLoop.prober = newGateProber(cfg, a.nodeLoop.wake.Notify)
	return a, nil
}

// Run works until the context ends, and returns its cause.
func (a *Agent) Run(ctx context.Context) error {
	parts := []func(context.Context) error{
		a.nodes.run, a.clusters.clusters.runWhenWanted, a.clusters.observations.runWhenWanted, a.nodeLoop.run,
		a.scanner.run, a.reporter.run, a.reporter.lists.run, a.recorder.run, a.nodeLoop.prober.run,
		func(ctx context.Context) error { return a.cfg.Watch(ctx, a.onHostChange) },
	}
	if a.cfg.FollowInventory != nil {
		parts = append(parts, func(ctx context.Context) error {
			return a.cfg.FollowInventory(ctx, a.nodeLoop.wake.Notify)
		})
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, part := range parts {
		group.Go(func() error { return part(ctx) })
	}
	return group.Wait()
}

// Healthy returns an error if the node loop has not made a pass for too long. A hanging scan is not
// an error. The scan of a restarted agent may hang as well, and until it ends that agent knows no
// member to observe.
func (a *Agent) Healthy(now time.Time) error {
	last, started := a.nodeLoop.lastPass.get()
	still := now.Sub(last)
	if limit := max(3*a.nodeLoop.cfg.Tick, stuckAfter); started && still > limit {
		return fmt.Errorf("the node loop has completed no pass for %s; the limit is %s", still.Round(time.Second), limit)
	}
	return nil
}

func (a *Agent) onHostChange() {
	a.nodeLoop.wake.Notify()
	a.scanner.wake.Notify()
}

// onClustersChange wakes the reporter, and the node loop if anything has changed that it reads. A
// review writes a nonce and each agent its answer, and those change nothing else. The end of a
// binding wakes the scanner too: a member that was removed while it was stopped leaves its data.
func (a *Agent) onClustersChange() {
	a.readMu.Lock()
	joined, synced := a.clusters.all()
	read := map[string]v1alpha1.EtcdCluster{}
	for _, c := range joined {
		c.ResourceVersion, c.Generation, c.ManagedFields, c.Spec.Nonce = "", 0, nil, ""
		for i := range c.Observations {
			c.Observations[i].Nonce, c.Observations[i].Time = "", metav1.Time{}
		}
		if before, isKnown := a.readClusters[c.Name]; isKnown && !reflect.DeepEqual(before.Spec.Members, c.Spec.Members) {
			a.scanner.wake.Notify()
		}
		read[c.Name] = *c
	}
	if synced != a.areClustersKnown || !reflect.DeepEqual(read, a.readClusters) {
		a.areClustersKnown, a.readClusters = synced, read
		a.nodeLoop.wake.Notify()
	}
	a.readMu.Unlock()
	a.reporter.wake.Notify()
}

func (a *Agent) wakeLoops() {
	a.nodeLoop.wake.Notify()
	a.reporter.wake.Notify()
}

func selectNode(node string, o metav1.ListOptions) metav1.ListOptions {
	o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, node).String()
	return o
}

// retryBackoff describes the delays between attempts after a failure: they begin with 50 ms,
// double, and never exceed 10 s, which is a cap of 8 s with a quarter of jitter on top.
func retryBackoff() wait.Backoff {
	return loop.Backoff(50*time.Millisecond, 8*time.Second)
}

// jittered shortens d by up to a fifth, so that agents that started together do not act
// together. It never lengthens d.
func jittered(d time.Duration) time.Duration {
	return wait.Jitter(d*4/5, 1.0/4)
}
