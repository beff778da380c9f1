// Package holdwatch watches the holds of all nodes from outside of them: it is loud where no agent looks after a hold or
// where one lasts, ends holds that last too long if it is told to, and stops nodes from being born held when too many of
// them are stuck.
//
// What to say and to do is decided by pkg/readiness. Here are the ages, the writes and the telling.
package holdwatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/holdfast-dev/holdfast/internal/nodepatch"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// FieldManager is the name under which the watcher's writes stand in managedFields.
const FieldManager = "holdfast-webhook"

// Parameter is the name of the ConfigMap whose presence has nodes born held: manifests/base/policies/born-held.yaml.
const Parameter = "holdfast-born-held"

// Options are what a Watcher works with. All are needed but Now.
type Options struct {
	// Cache has the Nodes.
	Cache cache.Cache
	// Nodes and ConfigMaps are clients without a cache, ConfigMaps of the namespace where the parameter is.
	Nodes      typedcorev1.NodeInterface
	ConfigMaps typedcorev1.ConfigMapInterface
	// Elected is closed once this replica leads. Until then it counts ages and does nothing else.
	Elected <-chan struct{}
	// Patience says how old a hold may get.
	Patience readiness.Patience
	// Tell makes an event. It must not block.
	Tell       func(about *corev1.ObjectReference, kind, reason, message string)
	Log        *slog.Logger
	Registerer prometheus.Registerer
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// Watcher watches holds. It runs in every replica, so that a new leader knows the ages that the last one knew; only the
// one that leads says and does anything. Its memory belongs to the goroutine of Run.
type Watcher struct {
	o       Options
	writer  *nodepatch.Writer
	metrics *metrics
	clock   serverClock
	// sightings are by the Node's UID: a Node made anew is another one.
	sightings map[types.UID]*sighting
	// leadingSince is zero as long as this replica does not lead.
	leadingSince time.Time
	// taken is when this replica took the parameter away; zero if it never did.
	taken time.Time
	// saidRound and saidParameter are the last things said of the round and of the parameter.
	saidRound, saidParameter string
}

// sighting is what is remembered of one recorded Node.
type sighting struct {
	// shape is the record and the boot; since is when the Node was first seen in it.
	shape string
	since time.Time
	// told is the last standing that was told.
	told readiness.Standing
}

// New returns a Watcher that does nothing before Run.
func New(ctx context.Context, o Options) (*Watcher, error) {
	if o.Patience.Agent <= 0 || o.Patience.Hold <= o.Patience.Agent {
		return nil, fmt.Errorf("watching holds: %s for an agent and %s for a hold: the second must be more than the first, and both above zero",
			o.Patience.Agent, o.Patience.Hold)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, err
	}
	if _, err := o.Cache.GetInformer(ctx, &corev1.Node{}, cache.BlockUntilSynced(false)); err != nil {
		return nil, fmt.Errorf("opening the informer for Nodes: %w", err)
	}
	return &Watcher{
		o: o, metrics: m, writer: nodepatch.NewWriterAs(FieldManager, o.Nodes), sightings: map[types.UID]*sighting{},
		clock: serverClock{configMaps: o.ConfigMaps},
	}, nil
}

// tick is the time between two rounds: 10 s where an agent has two minutes.
func (w *Watcher) tick() time.Duration { return max(w.o.Patience.Agent/12, 100*time.Millisecond) }

// grace is for how long a new leader does nothing. When the API server comes back after an outage that ended the last
// leader, agents have the same outage behind them, and need a moment to release what is ready.
func (w *Watcher) grace() time.Duration { return w.o.Patience.Agent / 4 }

// spread is the age at which a node that is held without an agent counts towards the parameter. Sooner it may be waiting
// for its image; later an autoscaler may be buying the next.
func (w *Watcher) spread() time.Duration { return (w.o.Patience.Agent + w.o.Patience.Hold) / 2 }

// Run works until ctx ends, and then returns nil as the manager's runnables do.
func (w *Watcher) Run(ctx context.Context) error {
	if !w.o.Cache.WaitForCacheSync(ctx) {
		return nil
	}
	ticker := time.NewTicker(w.tick())
	defer ticker.Stop()
	for {
		text := ""
		if err := w.round(ctx); err != nil && ctx.Err() == nil {
			text = err.Error()
		}
		if text != w.saidRound && text != "" {
			w.o.Log.ErrorContext(ctx, "watching holds is incomplete, the next round tries again", "err", text)
		}
		w.saidRound = text
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// round looks at every Node once. What fails on one stops no other.
func (w *Watcher) round(ctx context.Context) error {
	nodes := &corev1.NodeList{}
	if err := w.o.Cache.List(ctx, nodes); err != nil {
		return fmt.Errorf("listing nodes: %w", err)
	}
	now := w.o.Now()
	w.remember(nodes.Items, now)
	if !w.leads(now) {
		return nil
	}
	errs := []error{w.learnClock(ctx, nodes.Items, now)}
	counts := w.count(nodes.Items, now)
	w.metrics.show(counts)
	if now.Sub(w.leadingSince) < w.grace() {
		return errors.Join(errs...)
	}
	for i := range nodes.Items {
		if node := &nodes.Items[i]; w.sightings[node.UID] != nil {
			errs = append(errs, w.attend(ctx, node, now))
		}
	}
	return errors.Join(append(errs, w.mindParameter(ctx, counts, now))...)
}

// leads says whether this replica leads. One that does goes on until its process ends.
func (w *Watcher) leads(now time.Time) bool {
	if !w.leadingSince.IsZero() {
		return true
	}
	select {
	case <-w.o.Elected:
		w.leadingSince = now
		return true
	default:
		return false
	}
}

// remember notes which Nodes are new or have changed their shape, and forgets those that are gone.
func (w *Watcher) remember(nodes []corev1.Node, now time.Time) {
	kept := make(map[types.UID]*sighting, len(w.sightings))
	for i := range nodes {
		node := &nodes[i]
		shape := shapeOf(node)
		if shape == "" {
			continue
		}
		seen := w.sightings[node.UID]
		if seen == nil || seen.shape != shape {
			seen = &sighting{shape: shape, since: now}
		}
		kept[node.UID] = seen
	}
	w.sightings = kept
}

// shapeOf is what a hold's age counts for: the state that the record tells, and the boot that the kubelet reports. What
// else is written into a record while a hold lasts does not make it younger. It is empty for a Node without a record.
func shapeOf(node *corev1.Node) string {
	value, recorded := node.Annotations[readiness.HoldAnnotation]
	if !recorded {
		return ""
	}
	record, err := readiness.ParseRecord(value)
	if err != nil {
		return "unreadable"
	}
	return fmt.Sprint(record.State, record.Reason, record.Since, node.Status.NodeInfo.BootID)
}

// age is for how long the Node has been in its shape: as long as this replica has seen it so, which no clock can falsify.
// A node that was born held may be older than that, which the API server knows by one clock alone.
func (w *Watcher) age(node *corev1.Node, now time.Time) time.Duration {
	age := now.Sub(w.sightings[node.UID].since)
	if server := w.clock.at(now); !server.IsZero() && readiness.BornHeld(node) {
		age = max(age, server.Sub(node.CreationTimestamp.Time))
	}
	return age
}

// learnClock asks the API server for its time once, when the first node that was born held is there to be judged by it.
func (w *Watcher) learnClock(ctx context.Context, nodes []corev1.Node, now time.Time) error {
	for i := range nodes {
		if readiness.BornHeld(&nodes[i]) {
			return w.clock.learn(ctx, now)
		}
	}
	return nil
}

// reference is the Node as events know it.
func reference(node *corev1.Node) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}
}

// serverClock is the API server's clock. Ages by it are the same whatever this machine's clock says.
type serverClock struct {
	configMaps typedcorev1.ConfigMapInterface
	// stamp is what the API server wrote at our time asked; both are zero as long as it was not heard.
	stamp, asked time.Time
}

// at returns the API server's time, to a second, zero if it is not known.
func (c *serverClock) at(now time.Time) time.Time {
	if c.asked.IsZero() {
		return time.Time{}
	}
	return c.stamp.Add(now.Sub(c.asked))
}

// learn has the API server stamp an object that it does not keep, as it stamped the Nodes.
func (c *serverClock) learn(ctx context.Context, now time.Time) error {
	if !c.asked.IsZero() {
		return nil
	}
	made, err := c.configMaps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "holdfast-clock-"}},
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldManager: FieldManager})
	if err != nil {
		return fmt.Errorf("asking the API server for its time: %w", err)
	}
	c.stamp, c.asked = made.CreationTimestamp.Time, now
	return nil
}
