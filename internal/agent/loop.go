package agent

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/nodepatch"
	"github.com/holdfast-dev/holdfast/pkg/protect"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

const (
	// passBudget bounds one pass, its writes included.
	passBudget = 10 * time.Second
	// stepsPerPass bounds the decisions that follow from each other, and those that lose a race. A release takes two: one that
	// writes, and one that finds nothing left to write.
	stepsPerPass = 5
	// trustOwn is how long the server's answer to our own write is preferred to an older copy from the watch.
	trustOwn = 10 * time.Second
	// newcomer is how long an agent that has just started keeps what stands on its Node about etcd, while the EtcdClusters
	// are read for the first time. That takes milliseconds if the API server lets it.
	newcomer = 5 * time.Second
	// firstLook is how long an agent that has just started waits for its first look for etcd before it explains why its Node
	// is held, or not, as it found it: both are conditions, and go into one write. The look takes a tenth of a second if
	// nothing on the host hangs.
	firstLook = 5 * time.Second
	// patience is the least time without a pass after which the loop counts as stuck: one pass and one pause at their
	// longest, and some.
	patience = 30 * time.Second
)

// loop is the one writer of the Node. Its memory belongs to the goroutine of run; what must outlive it stands on the Node.
type loop struct {
	cfg      Config
	own      *mirror[*corev1.Node]
	clusters *mirror[*v1alpha1.EtcdCluster]
	evidence *latest[protect.HostEvidence]
	blind    func(now time.Time) string
	writer   *nodepatch.Writer
	tell     func(context.Context, *corev1.Node, event)
	woken    bell
	turned   latest[time.Time] // when the last pass ended
	answered latest[string]    // the resourceVersion that the server gave to our last write
	began    time.Time         // when run did

	written   *corev1.Node // as the server answered our last write
	writtenAt time.Time
	reread    bool // the copy from the watch is known to be old
	down      bool // the host is going down, as the last step saw
	letDown   bool // and nothing here keeps it from doing so any more
	said      sayings
}

// sayings are the last things said of each matter, about one Node.
type sayings struct {
	uid                                                  string
	trouble, absent, unread, hold, member, machine, told said
}

// run makes a pass whenever it is woken and at every tick, until the context ends. After a failure only time wakes it:
// a server that is ill is not asked more often because the host is busy.
func (l *loop) run(ctx context.Context) error {
	l.began = time.Now()
	l.turned.put(l.began)
	delays := retries()
	timer := time.NewTimer(l.cfg.Tick)
	defer timer.Stop()
	for {
		began := time.Now()
		err := l.pass(ctx)
		l.turned.put(time.Now())
		l.report(ctx, err)
		woken := l.woken
		if err == nil {
			l.letGo(ctx)
			delays = retries()
			timer.Reset(jittered(l.cfg.Tick))
		} else {
			woken = nil
			// From the beginning of what failed: a request that hung has been pause enough, and whoever waits for the server's
			// return as long again waits longer than a tick.
			timer.Reset(delays.Step() - time.Since(began))
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-woken:
		case <-timer.C:
		}
	}
}

// letGo lets the host go down once the Node has been written for it. If it cannot be, the host goes down all the same,
// when its own patience ends.
func (l *loop) letGo(ctx context.Context) {
	if !l.down || l.letDown || l.cfg.LetGo == nil {
		l.letDown = l.letDown && l.down
		return
	}
	l.letDown = true
	l.cfg.Log.InfoContext(ctx, "the node is written for its host to go down")
	if err := l.cfg.LetGo(); err != nil {
		l.cfg.Log.WarnContext(ctx, "the host waits with going down until its patience ends", "err", err)
	}
}

func (l *loop) healthy(now time.Time) error {
	last, ever := l.turned.take()
	still := now.Sub(last)
	if limit := max(3*l.cfg.Tick, patience); ever && still > limit {
		return fmt.Errorf("the node loop has not turned for %s, more than %s", still.Round(time.Second), limit)
	}
	return nil
}

// report says a failure once per kind, and once that it is over.
func (l *loop) report(ctx context.Context, err error) {
	before := l.said.trouble.last
	switch {
	case ctx.Err() != nil || !l.said.trouble.changed(cause(err)):
	case err != nil:
		l.cfg.Log.WarnContext(ctx, "the node is not as it should be, trying again", "err", err)
	case before != "":
		l.cfg.Log.InfoContext(ctx, "the node is as it should be again")
	}
}

// pass looks, decides and writes until there is nothing left to write. Who loses a race decides anew at once, for the
// next write of others may be far; only who keeps losing waits. Whether a write has left anything to write is decided from
// the same look at the host: what has happened there meanwhile has rung for a pass of its own.
func (l *loop) pass(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, passBudget)
	defer cancel()
	var lost error
	var facts *readiness.Facts
	for range stepsPerPass {
		node, err := l.current(ctx)
		if node == nil || err != nil {
			return err
		}
		if facts == nil {
			seen := l.cfg.Network(ctx)
			facts = &seen
		}
		changed, err := l.step(ctx, node, *facts)
		switch {
		case apierrors.IsConflict(err):
			lost, facts = err, nil
		case err != nil || !changed:
			return err
		}
	}
	if lost != nil {
		return lost
	}
	return errors.New("the node changes with every write, somebody writes the opposite")
}

// current returns the newest copy of the Node that there is, nil if there is no Node.
func (l *loop) current(ctx context.Context) (*corev1.Node, error) {
	if l.reread {
		node, err := l.cfg.Nodes.Get(ctx, l.cfg.Node, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("reading node %q: %w", l.cfg.Node, err)
		}
		l.reread = false
		if err == nil {
			l.written, l.writtenAt = node, time.Now()
		}
	}
	node, there, known := l.own.one(l.cfg.Node)
	if !there {
		if known && l.said.absent.changed("absent") {
			l.cfg.Log.InfoContext(ctx, "waiting for the node to register")
		}
		return nil, nil
	}
	if l.written != nil && l.written.UID == node.UID && time.Since(l.writtenAt) < trustOwn && newer(l.written, node) {
		return l.written, nil
	}
	return node, nil
}

// wrote says that a Node is what the last write made of it.
func (l *loop) wrote(node *corev1.Node) bool {
	version, ever := l.answered.take()
	return ever && version == node.ResourceVersion
}

func newer(a, b *corev1.Node) bool {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err == nil && order > 0
}

// step decides once and writes what follows. It returns whether the Node changed.
func (l *loop) step(ctx context.Context, node *corev1.Node, facts readiness.Facts) (changed bool, err error) {
	if uid := string(node.UID); l.said.uid != uid {
		l.said = sayings{uid: uid, trouble: l.said.trouble}
	}
	began := time.Now()
	s := situation{
		node: node, facts: facts, policy: l.cfg.Policy, spc: l.cfg.Inventory != nil, withholdGroup: l.cfg.WithholdGroup, now: began,
	}
	l.down = s.facts.GoingDown
	l.letDown = l.letDown && l.down // a shutdown that was called off in between is another one
	seen, ever := l.evidence.take()
	if ever {
		s.evidence = &seen
	}
	var unread error
	if s.known, unread = known(node, seen, l.clusters, l.cfg.StaticPods); unread != nil && l.said.unread.changed(unread.Error()) {
		l.cfg.Log.WarnContext(ctx, "the announcement on the node cannot be read, it is written anew", "err", unread)
	}
	if ever && !s.known.ClustersKnown && l.stands(node, seen, began) {
		s.evidence = nil
	}
	s.blind = l.blind(began)
	if s.spc {
		s.inventory = l.cfg.Inventory()
	}
	o, err := decide(s)
	if err != nil {
		return false, err
	}
	l.say(ctx, o)
	if !ever && o.hold.Record == nil && began.Sub(l.began) < firstLook {
		o = o.unexplained()
	}
	after, err := l.write(ctx, node, o)
	l.reread = apierrors.IsConflict(err)
	if after.ResourceVersion == node.ResourceVersion {
		return false, err
	}
	l.written, l.writtenAt = after, time.Now()
	l.answered.put(after.ResourceVersion)
	l.cfg.Log.InfoContext(ctx, "node written", "held", o.hold.Held, "took", time.Since(began))
	for _, e := range o.news(node, after) {
		// A write of two halves of which the second failed is decided, and told, twice.
		if l.said.told.changed(e.reason + e.message) {
			l.tell(ctx, after, e)
		}
	}
	return true, err
}

// stands says that what an agent before this one has written about etcd is left for a moment, until the EtcdClusters have
// been read: else every update of the agent would write each Node of a member twice. A server found on a Node without marks
// waits for nothing.
func (l *loop) stands(node *corev1.Node, seen protect.HostEvidence, now time.Time) bool {
	said := condition(node, protect.EtcdMemberCondition).Status != ""
	return said && (isMember(node) || len(seen.Found) == 0) && now.Sub(l.began) < newcomer
}

// write writes the outcome. A policy or a webhook of somebody's may refuse a part of it, with whatever status it likes.
// That must neither keep a node held nor leave a member unguarded: what is refused together is tried in its parts. A
// server that has not answered, or has too much to do, is not asked more often for that.
func (l *loop) write(ctx context.Context, node *corev1.Node, o outcome) (*corev1.Node, error) {
	after, err := l.writer.Apply(ctx, node, o.all)
	for _, part := range []nodepatch.Desired{o.urgent, o.rest} {
		var answered apierrors.APIStatus
		if after != node || !errors.As(err, &answered) || apierrors.IsConflict(err) || apierrors.IsTooManyRequests(err) || reflect.DeepEqual(part, o.all) {
			return after, err
		}
		var refused error
		after, refused = l.writer.Apply(ctx, node, part)
		err = errors.Join(err, refused)
	}
	return after, err
}

// say logs the decisions that changed.
func (l *loop) say(ctx context.Context, o outcome) {
	if l.said.hold.changed(fmt.Sprint(o.hold.Held, o.hold.Reason, o.hold.Message)) {
		l.cfg.Log.InfoContext(ctx, "network decided", "held", o.hold.Held, "reason", o.hold.Reason, "message", o.hold.Message)
	}
	if p := o.protection; p != nil && l.said.member.changed(p.Reason+p.Message) {
		l.cfg.Log.InfoContext(ctx, "etcd membership decided", "status", member(*p).Status, "reason", p.Reason, "message", p.Message)
	}
	if o.match == nil {
		return
	}
	if l.said.machine.changed(o.match.Message + o.report.Problem) {
		l.cfg.Log.InfoContext(ctx, "spc record decided", "message", o.match.Message, "problem", o.report.Problem)
	}
}
