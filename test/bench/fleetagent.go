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
	"github.com/holdfast-dev/holdfast/test/site"
)

// fleetAgent is one agent of a fleet.
type fleetAgent struct {
	name string
	// opened is told once, when the API server has acknowledged the patch that opens the node.
	opened    chan time.Time
	throttled atomic.Int64
}

// build makes an agent as cmd/agent does, with the same limits of its requests.
func (f *agents) build(ctx context.Context, a *fleetAgent, prober *etcdprobe.Prober) (*agent.Agent, error) {
	config, err := f.stage.API.ServiceAccountConfig(ctx, site.Namespace, "holdfast-agent", a.name)
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = 20, 40
	config.Dial = new(net.Dialer).DialContext // or all would share one connection
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &throttleCount{next, &a.throttled} })
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
	machine, err := host.New(host.Options{Root: f.stage.Host(fleetHost), Log: log})
	if err != nil {
		return nil, err
	}
	return agent.New(agent.Config{
		Node: a.name, Nodes: &fleetNodes{core.Nodes(), a}, Events: core.Events(metav1.NamespaceDefault), Clusters: clusters,
		Network: machine.Network, LetGo: machine.LetGo, Etcd: machine.Etcd, Watch: f.bells.watch,
		Identify: prober.Identify, Observe: prober.Observe, StaticPods: true, Tick: 10 * time.Second, Log: log,
	})
}

// fleetNodes notes when the node is open.
type fleetNodes struct {
	*apiaccess.Nodes
	agent *fleetAgent
}

// Patch patches the Node.
func (n *fleetNodes) Patch(
	ctx context.Context, name string, kind types.PatchType, body []byte, o metav1.PatchOptions, subresources ...string,
) (*corev1.Node, error) {
	node, err := n.Nodes.Patch(ctx, name, kind, body, o, subresources...)
	if err == nil && !node.Spec.Unschedulable {
		select {
		case n.agent.opened <- time.Now():
		default: // told already
		}
	}
	return node, err
}

// throttleCount counts the answers that say that the server has too much to do. The client asks again by itself.
type throttleCount struct {
	next  http.RoundTripper
	count *atomic.Int64
}

// RoundTrip sends a request.
func (c *throttleCount) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := c.next.RoundTrip(r)
	if err == nil && answer.StatusCode == http.StatusTooManyRequests {
		c.count.Add(1)
	}
	return answer, err
}

// bells pass the word of one watch on to many.
type bells struct {
	mu  sync.Mutex // guards all
	all []func()
}

func (b *bells) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, notify := range b.all {
		notify()
	}
}

// watch is an agent's watch of its host.
func (b *bells) watch(ctx context.Context, notify func()) error {
	b.mu.Lock()
	b.all = append(b.all, notify)
	b.mu.Unlock()
	<-ctx.Done()
	return context.Cause(ctx)
}
