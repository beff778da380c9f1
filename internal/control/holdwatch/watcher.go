// Package holdwatch watches the holds of all nodes from the webhook. It reports holds without
// an agent and holds that exceed their time limit, ends the latter if configured to, and stops
// nodes from being born held when too many of them are stuck.
//
// pkg/readiness decides what to report and to write. This package measures ages, writes Nodes
// and records events.
package holdwatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/holdfast-dev/holdfast/internal/control/world"
	"github.com/holdfast-dev/holdfast/internal/shared/apiaccess"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/internal/shared/nodepatch"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// Parameter is the name of the ConfigMap that enables the born-held policy
// (manifests/components/born-held/policy.yaml).
const Parameter = "holdfast-born-held"

// Options are the dependencies and settings of the controller. Only Now is optional.
type Options struct {
	// LiveNodes returns all Nodes of the API server.
	LiveNodes func(ctx context.Context) ([]*corev1.Node, error)
	// Nodes and ConfigMaps are clients without a cache. ConfigMaps is for the namespace of the
	// parameter.
	Nodes      typedcorev1.NodeInterface
	ConfigMaps typedcorev1.ConfigMapInterface
	// Timeouts are the time limits for holds: that of the agent is the shorter one.
	Timeouts readiness.HoldLimits
	// RecordEvent records an event. It must not block.
	RecordEvent func(about *corev1.ObjectReference, eventType, reason, message string)
	Log         *slog.Logger
	Registerer  prometheus.Registerer
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// A watcher watches holds. It runs in every replica, so that a new leader knows the ages. Only
// the leader reports and writes. Its state belongs to the goroutine of its rounds.
type watcher struct {
	Options
	writer  *nodepatch.Writer
	metrics *metrics
	// serverTime is the API server's time at the local time readAt, by which ages do not depend on the
	// clock of this machine. Both are zero until it is read.
	serverTime, readAt time.Time
	// tracked is keyed by the Node's UID: a recreated Node is another Node.
	tracked map[types.UID]*trackedNode
	// leadingSince is zero until this replica leads.
	leadingSince time.Time
	// parameterRemoved is when this replica deleted the parameter, zero if it never did.
	parameterRemoved time.Time
	// reportedParameter is the UID of the parameter about which EventLeftOn was recorded last.
	reportedParameter string
}

// trackedNode is the state that the watcher keeps about one Node with a record.
type trackedNode struct {
	// holdKey identifies the record and the boot. since is when they were first observed.
	holdKey string
	since   time.Time
	// sawEarlierHold is true if this replica has observed an earlier hold or boot of the Node.
	sawEarlierHold bool
	// boot is the boot that the kubelet reports. sawNoShutdown is true once this replica has seen the
	// Node in that boot without a report of a shutdown.
	boot          string
	sawNoShutdown bool
	// reported is the last state that was reported.
	reported readiness.HoldState
}

// New returns the controller that watches holds.
func New(o Options) world.Controller {
	// 10 s if an agent has two minutes.
	interval := max(o.Timeouts.Agent/12, 100*time.Millisecond)
	return world.Controller{
		Name: "holds", Round: newWatcher(o).checkNodes, Wake: loop.NewSignal(), Tick: interval, Pause: interval,
		InEveryReplica: true,
	}
}

func newWatcher(o Options) *watcher {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &watcher{
		Options: o, metrics: newMetrics(o.Registerer), tracked: map[types.UID]*trackedNode{},
		writer: nodepatch.NewWriterAs(apiaccess.WebhookFieldManager, o.Nodes),
	}
}

// leaderGrace is how long a new leader does nothing. After an outage of the API server that
// ended the last leader, the agents also need time to release nodes that are ready.
func (w *watcher) leaderGrace() time.Duration { return w.Timeouts.Agent / 4 }

// stuckAge is the age at which a node that is held without an agent counts as stuck. Earlier,
// it may be waiting for its image; later, an autoscaler may already be buying the next node.
func (w *watcher) stuckAge() time.Duration {
	return (w.Timeouts.Agent + w.Timeouts.Hold) / 2
}

// checkNodes checks every Node once. An error on one node does not stop the check of the
// others.
func (w *watcher) checkNodes(ctx context.Context, seen world.World) error {
	nodes, now := seen.Nodes, w.Now()
	w.trackNodes(nodes, now)
	if !seen.IsLeading {
		return nil
	}
	if w.leadingSince.IsZero() {
		w.leadingSince = now
	}
	errs := []error{w.readServerTime(ctx, nodes)}
	counts := w.countHolds(nodes, now)
	w.metrics.update(counts)
	if now.Sub(w.leadingSince) < w.leaderGrace() {
		return errors.Join(errs...)
	}
	for _, node := range nodes {
		if w.tracked[node.UID] != nil {
			errs = append(errs, w.checkHold(ctx, node, now))
		}
	}
	return errors.Join(append(errs, w.checkParameter(ctx, counts, now))...)
}

// trackNodes starts the age of Nodes whose hold is new or has changed, notes which reports it
// has observed, and drops Nodes that no longer exist.
func (w *watcher) trackNodes(nodes []*corev1.Node, now time.Time) {
	kept := make(map[types.UID]*trackedNode, len(w.tracked))
	for _, node := range nodes {
		key := holdKeyOf(node)
		if key == "" {
			continue
		}
		before, boot := w.tracked[node.UID], node.Status.NodeInfo.BootID
		tracked := before
		if before == nil || before.holdKey != key {
			tracked = &trackedNode{holdKey: key, since: now, sawEarlierHold: before != nil, boot: boot}
			tracked.sawNoShutdown = before != nil && before.boot == boot && before.sawNoShutdown
		}
		tracked.sawNoShutdown = tracked.sawNoShutdown || !readiness.ReportsShutdown(node)
		kept[node.UID] = tracked
	}
	w.tracked = kept
}

// holdKeyOf identifies a hold for its age: the state in the record, and the boot that the
// kubelet reports. Other changes of the record during a hold do not make the hold younger. The
// key is empty for a Node without a record.
func holdKeyOf(node *corev1.Node) string {
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

// checkedHold returns the state of the hold of a tracked Node, and its age: as long as this replica
// has observed it, which does not depend on a wall clock. A node that was born held may be older,
// unless it has rebooted since; its age is measured by the API server's clock alone.
func (w *watcher) checkedHold(node *corev1.Node, now time.Time) (readiness.HoldCheck, time.Duration) {
	tracked := w.tracked[node.UID]
	age := now.Sub(tracked.since)
	if server := w.serverTimeAt(now); !server.IsZero() && !tracked.sawEarlierHold && readiness.IsInFirstBoot(node) {
		age = max(age, server.Sub(node.CreationTimestamp.Time))
	}
	history := readiness.HoldHistory{Age: age, HadOtherReport: tracked.sawNoShutdown}
	return readiness.CheckHold(node, history, w.Timeouts, now), age
}

// serverTimeAt returns the API server's time at a local time, to the second, or zero if it is not
// known.
func (w *watcher) serverTimeAt(now time.Time) time.Time {
	if w.readAt.IsZero() {
		return time.Time{}
	}
	return w.serverTime.Add(now.Sub(w.readAt))
}

// serverTimeLife is how long the API server's time is used. A clock that no server corrects is
// wrong by minutes after a month.
const serverTimeLife = 24 * time.Hour

// readServerTime reads the API server's time when a node that was born held appears, once a day.
// It creates an object in a dry run, whose creation time the API server sets like that of Nodes. A
// slow answer makes the time too early, so that nodes never look too old.
func (w *watcher) readServerTime(ctx context.Context, nodes []*corev1.Node) error {
	isBornHeld := func(n *corev1.Node) bool { return w.tracked[n.UID] != nil && readiness.IsBornHeld(n) }
	if w.Now().Sub(w.readAt) < serverTimeLife || !slices.ContainsFunc(nodes, isBornHeld) {
		return nil
	}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "holdfast-clock-"}}
	created, err := w.ConfigMaps.Create(ctx, object,
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldManager: apiaccess.WebhookFieldManager})
	if err != nil {
		return fmt.Errorf("reading the API server's time: %w", err)
	}
	w.serverTime, w.readAt = created.CreationTimestamp.Time, w.Now()
	return nil
}

func nodeReference(node *corev1.Node) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}
}

// metrics are the metrics of the controller. Only the leader has values other than zero.
type metrics struct {
	holds, held          *prometheus.GaugeVec
	oldest               prometheus.Gauge
	givenUp, switchedOff prometheus.Counter
	reasons              map[string]int // those that held exports
}

func newMetrics(r prometheus.Registerer) *metrics {
	to := promauto.With(r)
	m := &metrics{
		holds: to.NewGaugeVec(prometheus.GaugeOpts{
			Name: "holdfast_webhook_holds",
			Help: "Held nodes by state, as the leader observes them. States agent_missing and overdue need attention.",
		}, []string{"state"}),
		held: to.NewGaugeVec(prometheus.GaugeOpts{
			Name: "holdfast_webhook_held_nodes",
			Help: "Held nodes by the reason of their condition NetworkHeld, or NoReport if no agent has written it.",
		}, []string{"reason"}),
		oldest: to.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_webhook_oldest_hold_seconds",
			Help: "Age of the oldest hold, as the leader observes it; 0 if no node is held.",
		}),
		givenUp: to.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_webhook_holds_given_up_total",
			Help: "Holds that the leader ended because they exceeded their time limit (--on-stuck-hold=release).",
		}),
		switchedOff: to.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_webhook_born_held_switched_off_total",
			Help: "Times that the leader deleted the parameter of the born-held policy.",
		}),
	}
	m.update(holdCounts{})
	return m
}

func (m *metrics) update(counts holdCounts) {
	for _, s := range readiness.HoldStates() {
		m.holds.WithLabelValues(string(s)).Set(float64(counts.states[s]))
	}
	for reason := range m.reasons {
		if counts.reasons[reason] == 0 {
			m.held.DeleteLabelValues(reason)
		}
	}
	for reason, n := range counts.reasons {
		m.held.WithLabelValues(reason).Set(float64(n))
	}
	m.reasons = counts.reasons
	m.oldest.Set(counts.oldest.Seconds())
}
