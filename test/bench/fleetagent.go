package main

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/internal/agent"
	"github.com/holdfast-dev/holdfast/internal/apiaccess"
	"github.com/holdfast-dev/holdfast/internal/etcdprobe"
	"github.com/holdfast-dev/holdfast/internal/host"
	"github.com/holdfast-dev/holdfast/test/fixture"
)

// A fleetAgent is one agent of a fleet.
type fleetAgent struct {
	name string
	// opened receives the time at which the API server acknowledged the patch that releases the
	// node.
	opened    chan time.Time
	throttled atomic.Int64
}

// build creates an agent like cmd/agent, with the same rate limits.
func (f *agentFleet) build(ctx context.Context, a *fleetAgent, prober *etcdprobe.Prober) (*agent.Agent, error) {
	config, err := f.cluster.API.ServiceAccountConfig(ctx, fixture.Namespace, "holdfast-agent", a.name)
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = 20, 40
	config.Dial = new(net.Dialer).DialContext // otherwise all agents would share one connection
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &throttleCounter{next, &a.throttled} })
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	clusters, err := agent.NewClusters(config, client)
	if err != nil {
		return nil, err
	}
	core, err := apiaccess.NewCore(config, client)
	if err != nil {
		return nil, err
	}
	log := f.log.With("node", a.name)
	machine, err := host.New(host.Options{Root: f.cluster.HostRoot(fleetHost), Log: log})
	if err != nil {
		return nil, err
	}
	return agent.New(agent.Config{
		Node: a.name, Nodes: &releaseRecorder{core.Nodes(), a}, Events: core.Events(metav1.NamespaceDefault),
		Clusters: clusters,
		Network:  machine.Network, AllowShutdown: machine.EndShutdownDelay, Etcd: machine.Etcd, Watch: f.watch.watch,
		Identify: prober.Identify, Observe: prober.ObserveEarly, ListMembers: prober.ListMembers,
		StaticPods: true, Tick: 10 * time.Second, Log: log,
	})
}

// A releaseRecorder records the release of the node.
type releaseRecorder struct {
	*apiaccess.Nodes
	agent *fleetAgent
}

// Patch patches the Node.
func (n *releaseRecorder) Patch(
	ctx context.Context, name string, kind types.PatchType, body []byte, o metav1.PatchOptions, subresources ...string,
) (*corev1.Node, error) {
	node, err := n.Nodes.Patch(ctx, name, kind, body, o, subresources...)
	if err == nil && !node.Spec.Unschedulable {
		select {
		case n.agent.opened <- time.Now():
		default: // recorded before
		}
	}
	return node, err
}

// A throttleCounter counts responses with status 429. The client retries by itself.
type throttleCounter struct {
	next  http.RoundTripper
	count *atomic.Int64
}

// RoundTrip sends a request.
func (c *throttleCounter) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := c.next.RoundTrip(r)
	if err == nil && answer.StatusCode == http.StatusTooManyRequests {
		c.count.Add(1)
	}
	return answer, err
}

// A sharedWatch distributes the notifications of one watch.
type sharedWatch struct {
	mu        sync.Mutex // guards notifiers
	notifiers []func()
}

func (b *sharedWatch) notifyAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, notify := range b.notifiers {
		notify()
	}
}

// watch stands for an agent's own watch of its host.
func (b *sharedWatch) watch(ctx context.Context, notify func()) error {
	b.mu.Lock()
	b.notifiers = append(b.notifiers, notify)
	b.mu.Unlock()
	<-ctx.Done()
	return context.Cause(ctx)
}
