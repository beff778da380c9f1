package history

import (
	"context"
	"fmt"
	"sync"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// world is everything that the code under test can see, and the truth behind it.
type world struct {
	ctx      context.Context //nolint:containedctx // the life of the world
	choices  *choices
	api      *server
	gate     *gate
	replicas []*replica
	hosts    []*host
	etcds    []*etcd
	moments  []moment

	deletions  []*deletion
	dooms      []*doom
	allowances []*allowance
	// written is, by cluster and Node UID, the turn of the last grant that a review had written.
	written                  map[v1alpha1.ClusterID]map[types.UID]int
	requests, reviews, turns int

	// late are writes whose callers were told that they failed, or do not wait any more; they may be carried out yet.
	late []*call
	// held are observations on their way, which may arrive late and in any order.
	held []*look
	// saved is a backup of the API server's etcd, and savedAt when it was made.
	saved   *snapshot
	savedAt time.Time

	profile profile
	verbose bool
	// waits says of calls that they are not served, nil that all are.
	waits func(*call) bool
	tally tally

	mu      sync.Mutex // guards what follows: the webhook's log is told from its goroutines
	trace   []string
	failure string
}

// newWorld makes a world with all members running, and the webhook up.
func newWorld(ctx context.Context, c *choices, p profile, verbose bool) *world {
	w := &world{
		ctx: ctx, choices: c, api: newServer(), gate: newGate(), profile: p, verbose: verbose,
		written: map[v1alpha1.ClusterID]map[types.UID]int{},
	}
	for i := range p.hosts {
		w.addHost(fmt.Sprintf("n%d", i))
	}
	for i, size := range p.clusters {
		e := &etcd{id: v1alpha1.ClusterID([]string{"c1", "c2"}[i])}
		for j := range size {
			e.found(w.hosts[(j+i)%len(w.hosts)])
		}
		w.etcds = append(w.etcds, e)
	}
	w.note()
	if p.bound {
		w.bindAll()
	}
	for _, h := range w.hosts {
		h.agent.catchUp()
		h.agent.writeNode(w)
	}
	for i := range 2 {
		w.replicas = append(w.replicas, w.start(i))
	}
	w.replicas[0].lead()
	return w
}

// addHost makes a machine whose kubelet has registered.
func (w *world) addHost(name string) *host {
	h := &host{name: name, address: fmt.Sprintf("10.0.0.%d", len(w.hosts)+1), up: true}
	h.agent = newAgent(w, h)
	w.hosts = append(w.hosts, h)
	w.register(h)
	return h
}

// register has the kubelet make its Node.
func (w *world) register(h *host) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: h.name}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: h.name}, {Type: corev1.NodeInternalIP, Address: h.address}}
	made, err := w.api.createNode(n)
	if err != nil {
		return // a Node of that name is there yet
	}
	h.node, h.registered = made.UID, time.Now()
	w.say("machine %s registers as Node %s", h.name, h.node)
}

// bindAll begins with what the leader would have written long ago.
func (w *world) bindAll() {
	for _, e := range w.etcds {
		c := &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Name: string(e.id)}}
		for _, m := range e.members {
			c.Spec.Members = append(c.Spec.Members, v1alpha1.Binding{MemberID: m.id, Node: m.host.name, NodeUID: m.host.node})
		}
		if _, err := w.api.createCluster(c); err != nil {
			w.fail("making an EtcdCluster: %v", err)
		}
	}
}

// choose picks one of n.
func (w *world) choose(n int) int { return w.choices.of(n) }

func (w *world) say(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trace = append(w.trace, time.Now().Format("15:04:05.000 ")+text)
}

func (w *world) fail(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.say("FAILED: %s", text)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failure == "" {
		w.failure = text
	}
}

func (w *world) failed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failure != ""
}

// end stops everything.
func (w *world) end() {
	for _, r := range w.replicas {
		r.crash()
	}
	synctest.Wait()
}
