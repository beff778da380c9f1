package agent

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/internal/shared/apiaccess"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/internal/shared/nodepatch"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

const (
	// passTimeout limits one pass, including its writes.
	passTimeout = 10 * time.Second
	// maxSteps limits the steps of one pass. A release takes two: the first writes, and the
	// second finds nothing left to write. Each conflict takes one more.
	maxSteps = 5
	// refusedPause is the longest time after a refused pass in which nothing wakes the loop. It is
	// also the time between passes that write, after the first fastWrites: another writer may revert
	// each write as soon as it sees it.
	refusedPause = time.Second
	fastWrites   = 10
	// preferOwnWrite is how long the answer to the agent's own write is preferred to an older
	// copy from the watch.
	preferOwnWrite = 10 * time.Second
	// startGrace is how long an agent that has just started waits for its first list of the
	// EtcdClusters, and until then keeps what an earlier agent wrote about etcd on the Node. It waits
	// as long for its first scan for etcd before it explains the hold of its Node: both results are
	// conditions, and go into one write. The list takes milliseconds if the API server is well, and
	// the scan a tenth of a second if nothing on the host hangs.
	startGrace = 5 * time.Second
	// searchGrace is how long an agent that has just started, and has found no etcd, keeps what an
	// earlier agent wrote about etcd on the Node, while it searches the local disks for the first
	// time. After that the condition reports the search.
	searchGrace = 5 * time.Minute
	// stuckAfter is the least time without a pass after which the loop counts as stuck. It is
	// longer than one pass and one pause at their longest.
	stuckAfter = 30 * time.Second
)

// A nodeLoop is the only writer of the Node. The fields without a lock belong to the goroutine
// of run. State that must survive a restart of the agent is stored on the Node.
type nodeLoop struct {
	cfg         Config
	nodes       *store[*corev1.Node]
	clusters    clusterStores
	evidence    *latest[evidence.Scan]
	prober      *gateProber
	writer      *nodepatch.Writer
	recordEvent func(context.Context, *corev1.Node, readiness.Event)
	wake        loop.Signal
	lastPass    latest[time.Time] // when the last pass ended
	started     time.Time         // when run was called

	written         *corev1.Node // the answer to the last write
	writtenAt       time.Time
	cacheStale      bool // the copy from the watch is known to be old
	goingDown       bool // the host is shutting down, according to the last step
	shutdownAllowed bool // the agent no longer delays that shutdown

	failures  loop.LogOnce
	logged    loop.LogOnce // about the Node with the UID loggedUID
	loggedUID types.UID
}

// run makes a pass whenever it is woken, and at every tick, until the context ends. After a
// failure only time wakes it, so that a busy host does not add requests to an ill API server. After
// a refusal it can be woken again soon.
func (l *nodeLoop) run(ctx context.Context) error {
	l.started = time.Now()
	l.lastPass.set(l.started)
	retry, writes := loop.NewRetry(retryBackoff()), rate.NewLimiter(rate.Every(refusedPause), fastWrites)
	for {
		began, written := time.Now(), l.written
		err := l.pass(ctx)
		l.lastPass.set(time.Now())
		l.logResult(ctx, err)
		pause, delay := time.Duration(0), jittered(l.cfg.Tick) // nothing wakes the loop in the pause
		if err == nil {
			l.allowShutdown(ctx)
			retry.Reset()
			if l.written != written {
				pause = writes.Reserve().Delay()
			}
		} else {
			// The delay counts from the start of the failed pass, because a pass that hung has
			// already waited.
			delay = retry.Next() - time.Since(began)
			pause = delay
			if isRefusal(err) { // a policy may always refuse one part, and the host may shut down
				pause = min(delay, refusedPause)
			}
		}
		if err := loop.Wait(ctx, pause, nil); err != nil {
			return err
		}
		if err := loop.Wait(ctx, delay-pause, l.wake); err != nil {
			return err
		}
	}
}

// allowShutdown lets the host shut down after the Node is written for the shutdown. If that
// fails, the host shuts down all the same when the delay of logind ends.
func (l *nodeLoop) allowShutdown(ctx context.Context) {
	if !l.goingDown || l.shutdownAllowed || l.cfg.AllowShutdown == nil {
		return
	}
	l.shutdownAllowed = true
	l.cfg.Log.InfoContext(ctx, "the Node is written for the shutdown of its host; allowing the shutdown")
	if err := l.cfg.AllowShutdown(); err != nil {
		l.cfg.Log.WarnContext(ctx, "failed to end the delay of the shutdown; logind ends it after its timeout", "err", err)
	}
}

// logResult logs the first failure of a kind, and the first success after a failure.
func (l *nodeLoop) logResult(ctx context.Context, err error) {
	switch {
	case ctx.Err() != nil || !l.failures.ChangedErrorKind("pass", err):
	case err != nil:
		l.cfg.Log.WarnContext(ctx, "failed to reconcile the Node; retrying", "err", err)
	default:
		l.cfg.Log.InfoContext(ctx, "the Node is reconciled again")
	}
}

// pass makes steps until nothing is left to write. On a conflict it decides again immediately,
// because no further event may come; only repeated conflicts end the pass. After a conflict it also
// gathers the facts of the host again. After a successful write it does not: a change of the host
// since then has notified the loop, and gets a pass of its own. If a part of a decision was written
// and another one failed, it decides again too.
func (l *nodeLoop) pass(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, passTimeout)
	defer cancel()
	var failed error
	var facts *readiness.Facts
	for range maxSteps {
		node, err := l.currentNode(ctx)
		if node == nil || err != nil {
			return err
		}
		if facts == nil {
			gathered := l.cfg.Network(ctx)
			gathered.Probes = l.prober.results()
			facts = &gathered
		}
		changed, err := l.step(ctx, node, *facts)
		switch {
		case apierrors.IsConflict(err):
			failed, facts = err, nil
		case !changed:
			return err
		case err != nil:
			failed = err
		}
	}
	if failed != nil {
		return failed
	}
	return errors.New("the Node changes after every write; another writer may revert the writes")
}

// currentNode returns the newest known copy of the Node, or nil if there is no Node.
func (l *nodeLoop) currentNode(ctx context.Context) (*corev1.Node, error) {
	if l.cacheStale {
		node, err := l.cfg.Nodes.Get(ctx, l.cfg.Node, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("reading node %q: %w", l.cfg.Node, err)
		}
		l.cacheStale = false
		if err == nil {
			l.written, l.writtenAt = node, time.Now()
		}
	}
	node, exists, synced := l.nodes.get(l.cfg.Node)
	if !exists {
		if synced && l.logged.Changed("node", "absent") {
			l.cfg.Log.InfoContext(ctx, "waiting for the node to register")
		}
		return nil, nil
	}
	if l.written != nil && time.Since(l.writtenAt) < preferOwnWrite &&
		apiaccess.IsNewer(l.written, node) {
		return l.written, nil
	}
	return node, nil
}

// step makes one decision and writes it. It returns whether the Node changed.
func (l *nodeLoop) step(ctx context.Context, node *corev1.Node, facts readiness.Facts) (changed bool, err error) {
	if l.loggedUID != node.UID {
		l.loggedUID, l.logged = node.UID, loop.LogOnce{}
	}
	began := time.Now()
	l.goingDown = facts.GoingDown
	// A shutdown that was cancelled in between is a different shutdown.
	l.shutdownAllowed = l.shutdownAllowed && l.goingDown
	in := l.gatherInputs(ctx, node, facts, began)
	d, err := decide(in)
	if err != nil {
		return false, err
	}
	l.logDecision(ctx, d)
	l.prober.follow(d.hold)
	if l.cfg.SearchData != nil && d.protection != nil && d.protection.IsAwaited {
		l.cfg.SearchData()
	}
	isScanning := in.evidence == nil && d.hold.Record == nil && began.Sub(l.started) < startGrace
	if isScanning || d.hold.AwaitsProbe {
		d = d.withoutHoldCondition()
	}
	after, err := l.writeDecision(ctx, node, d)
	l.cacheStale = apierrors.IsConflict(err)
	if after.ResourceVersion == node.ResourceVersion {
		return false, err
	}
	l.written, l.writtenAt = after, time.Now()
	l.cfg.Log.InfoContext(ctx, "wrote the Node", "held", d.hold.Held, "took", time.Since(began))
	for _, e := range d.events(node, after) {
		// If the second half of a write fails, the next step makes the same decision again. Its
		// events must not repeat.
		if l.logged.Changed("event", e.Reason+e.Message) {
			l.recordEvent(ctx, after, e)
		}
	}
	return true, err
}

func (l *nodeLoop) gatherInputs(
	ctx context.Context, node *corev1.Node, facts readiness.Facts, now time.Time,
) (in nodeInputs) {
	in = nodeInputs{
		node: node, facts: facts, policy: l.cfg.Policy,
		hasSPC: l.cfg.Inventory != nil, withholdGroup: l.cfg.WithholdGroup, now: now,
	}
	scan, scanned := l.evidence.get()
	var err error
	if in.known, err = gatherKnown(node, scan, l.clusters, l.cfg.StaticPods); err != nil &&
		l.logged.Changed("announcement", err.Error()) {
		l.cfg.Log.WarnContext(ctx, "failed to parse the announcement on the Node; replacing it", "err", err)
	}
	isWaiting := !in.known.ClustersKnown && l.isWaitingForClusters(node, scan, now) ||
		scan.Searching && len(scan.Found) == 0 && now.Sub(l.started) < searchGrace
	if scanned && !isWaiting {
		in.evidence = &scan
	}
	if in.hasSPC {
		in.inventory = l.cfg.Inventory()
	}
	return in
}

// isWaitingForClusters reports whether what an earlier agent wrote about etcd stays for a moment,
// until the EtcdClusters are read. Otherwise every update of the agent would write each Node that
// holds a member twice. A server on a Node that had no member does not wait.
func (l *nodeLoop) isWaitingForClusters(node *corev1.Node, scan evidence.Scan, now time.Time) bool {
	hasMemberCondition := condition(node, observation.EtcdMemberCondition).Status != ""
	return hasMemberCondition && (observation.IsLabelled(node) || len(scan.Found) == 0) &&
		now.Sub(l.started) < startGrace
}

// writeDecision writes the decision. A policy or a webhook of the cluster can refuse a part of
// it, with any status. Such a refusal must neither keep a node held nor leave a member
// unprotected, so the parts of a refused decision are written separately. Each call writes at most
// one part. The error of the refused whole is returned, so the next step writes the next part. A
// conflict is returned alone: the loop then decides again.
func (l *nodeLoop) writeDecision(ctx context.Context, node *corev1.Node, d nodeDecision) (*corev1.Node, error) {
	after, err := l.writer.Apply(ctx, node, d.all)
	for _, part := range []nodepatch.Desired{d.urgent, d.rest, d.machine} {
		if after != node || !canWriteParts(err) || reflect.DeepEqual(part, d.all) {
			return after, err
		}
		var refused error
		after, refused = l.writer.Apply(ctx, node, part)
		if apierrors.IsConflict(refused) {
			return after, refused // the refusal was about an earlier version
		}
		err = errors.Join(err, refused)
	}
	return after, err
}

// canWriteParts reports whether the parts of a decision that failed with this error can succeed:
// the server has answered and is not overloaded, and the Node has not changed.
func canWriteParts(err error) bool {
	var answered apierrors.APIStatus
	return errors.As(err, &answered) && !apierrors.IsConflict(err) && !apierrors.IsTooManyRequests(err)
}

func (l *nodeLoop) logDecision(ctx context.Context, d nodeDecision) {
	if l.logged.Changed("hold", fmt.Sprint(d.hold.Held, d.hold.Reason, d.hold.Message)) {
		l.cfg.Log.InfoContext(ctx, "decided about the hold",
			"held", d.hold.Held, "reason", d.hold.Reason, "message", d.hold.Message)
	}
	if p := d.protection; p != nil && l.logged.Changed("member", p.Reason+p.Message) {
		l.cfg.Log.InfoContext(ctx, "decided about etcd membership",
			"status", memberCondition(*p).Status, "reason", p.Reason, "message", p.Message)
	}
	if d.match != nil && l.logged.Changed("spc", d.match.Message+d.report.Problem) {
		l.cfg.Log.InfoContext(ctx, "decided about the SPC record", "message", d.match.Message, "problem", d.report.Problem)
	}
}
