package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/internal/node/agent"
	"github.com/holdfast-dev/holdfast/internal/node/etcdprobe"
	"github.com/holdfast-dev/holdfast/internal/node/host"
	"github.com/holdfast-dev/holdfast/internal/shared/apiaccess"
	"github.com/holdfast-dev/holdfast/test/fixture"
)

// A fleetAgent is one agent of a fleet.
type fleetAgent struct {
	name string
	// opened receives the time at which the API server acknowledged the patch that releases the
	// node.
	opened    chan time.Time
	throttled atomic.Int64
	// watching receives a value when the agent begins to watch its Node, unless it is nil.
	watching chan struct{}
}

// waitForRelease returns when the node of the agent was released.
func (a *fleetAgent) waitForRelease(ctx context.Context) (time.Time, error) {
	select {
	case <-ctx.Done():
		return time.Time{}, context.Cause(ctx)
	case <-time.After(time.Minute):
		return time.Time{}, fmt.Errorf("node %s was not released within a minute; see the log of the fleet", a.name)
	case at := <-a.opened:
		return at, nil
	}
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
	clusters, err := apiaccess.NewClusters(config, client)
	if err != nil {
		return nil, err
	}
	core, err := apiaccess.NewCore(config, client)
	if err != nil {
		return nil, err
	}
	log := f.log.With("node", a.name)
	machine, err := host.New(host.Options{Root: f.cluster.HostRoot(f.host), Log: log})
	if err != nil {
		return nil, err
	}
	return agent.New(agent.Config{
		Node: a.name, Nodes: &releaseRecorder{core.Nodes(), a}, Events: core.Events(metav1.NamespaceDefault),
		Clusters: clusters,
		Network:  machine.Network, AllowShutdown: machine.EndShutdownDelay, Etcd: machine.Etcd, Watch: f.watch.watch,
		Identify: prober.Identify, Observe: prober.Observe, ListMembers: prober.ListMembers,
		StaticPods: true, Tick: f.tick, Log: log,
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

// Watch watches the Node.
func (n *releaseRecorder) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	started, err := n.Nodes.Watch(ctx, o)
	if err == nil {
		select {
		case n.agent.watching <- struct{}{}:
		default: // reported before, or not wanted
		}
	}
	return started, err
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
