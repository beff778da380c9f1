package readiness

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/autoscaler"
)

// This file has a model of one Node and its writers. A breadth-first search visits every
// history of their steps until no new state appears. The model state knows facts that are not
// on the Node (who set the cordon, whether the network works), because the steps change them.
// The agent knows only the Node and its Facts.

// Owners of the cordon in a modelState.
const byHoldfast, byOther = "holdfast", "other"

// modelState is one state of the model.
type modelState struct {
	n *corev1.Node
	// boot is the number of the boot, from 0.
	boot int
	// open is whether every gate of the host is open, going whether the host is shutting down.
	open, going bool
	// up is whether the network plugin has reported in this boot that the network works.
	up bool
	// unscanned is whether the scan for etcd has not finished, member whether the host has
	// etcd.
	unscanned, member bool
	// cordon is the owner of the cordon, empty if there is no cordon.
	cordon string
	// removed is whether the policy's parameter was deleted, so that the next Node is not born
	// held.
	removed bool
	// ended is the boot ID of the record that ended the last hold, empty if there is none.
	ended string
	// written is the boot that the kubelet had reported when an agent wrote the condition
	// NetworkHeld as it is now, empty if it was the leader.
	written string
	// hadOtherReport is what a leader knows that has observed every state.
	hadOtherReport bool
}

// holdModel is a set of rules: a policy, the actors of Holdfast, and the steps of everything
// else.
type holdModel struct {
	policy  Policy
	newNode func(boot int) *corev1.Node
	actors  []modelActor
	steps   map[string]func(*modelState)
	// announced is whether logind announces every reboot to the agent.
	announced bool
	// parsed caches records.
	parsed map[string]Record
}

// modelActor is an agent, a leader, or a step of something else. work leaves its argument
// unchanged, and returns the states that follow: the last one, and before it the one in which a
// program that is killed after its first write leaves the Node. There is none if nothing changes.
type modelActor struct {
	name string
	work func(holdModel, *modelState) ([]*modelState, error)
}

// modelWriter is the origin of a write: an agent with its facts, or the leader.
type modelWriter struct {
	facts Facts
	// leader is whether the leader writes, overdue whether it may release a node with closed
	// gates.
	leader, overdue bool
}

func (s modelState) facts() Facts {
	f := readyFacts()
	f.BootID, f.GoingDown, f.StaysUp, f.SawShutdown = bootName(s.boot), s.going, !s.going, true
	if s.member {
		f.Etcd = Present
	}
	if s.unscanned {
		f.Etcd = Unknown
	}
	if !s.open {
		f.Subnet.Presence = Absent
	}
	return f
}

func bootName(boot int) string { return fmt.Sprintf("boot-%d", boot) }

func (s modelState) copy() *modelState {
	n := clone(s.n)
	n.Labels, n.ManagedFields = maps.Clone(s.n.Labels), slices.Clone(s.n.ManagedFields)
	s.n = n
	return &s
}

func (s modelState) String() string {
	var b strings.Builder
	b.WriteByte('0' + byte(s.boot))
	for _, bit := range []bool{
		s.open, s.going, s.up, s.unscanned, s.member, s.removed, s.hadOtherReport,
		s.n.Spec.Unschedulable, len(s.n.ManagedFields) > 0,
	} {
		b.WriteString(map[bool]string{true: "+", false: "-"}[bit])
	}
	b.WriteString(s.cordon + s.ended + s.written)
	for _, key := range []string{HoldAnnotation, KeepCordonedAnnotation, autoscaler.Karpenter, etcdMarksAnnotation} {
		if value, there := s.n.Annotations[key]; there {
			b.WriteString(" " + key + "=" + value)
		}
	}
	b.WriteString(" " + s.n.Labels[HoldLabel] + " " + s.n.Status.NodeInfo.BootID)
	for i := range s.n.Spec.Taints {
		b.WriteString(" " + s.n.Spec.Taints[i].Key)
	}
	for i := range s.n.Status.Conditions {
		c := &s.n.Status.Conditions[i]
		b.WriteString(" " + string(c.Type) + string(c.Status) + c.Reason + lastWritten(c))
	}
	return b.String()
}

// work writes decisions until nothing changes. It checks each write, and the end with check.
func (m holdModel) work(
	s *modelState, by modelWriter, decide func(*corev1.Node) Decision, check func(*modelState, modelWriter) error,
) (next []*modelState, err error) {
	for range 5 {
		d := decide(s.n)
		if isEmpty(s.n, d) {
			return next, check(s, by)
		}
		half, whole := write(s.n, d, unchanged)
		for _, after := range []*corev1.Node{half, whole} {
			if isSame(s.n, after) {
				continue
			}
			written := *s
			s, next = &written, append(next[:min(len(next), 1)], &written)
			if err := m.checkWrite(s, by, after); err != nil {
				return next, err
			}
		}
	}
	return next, fmt.Errorf("does not settle")
}

// isEmpty reports whether a decision leaves the Node unchanged.
func isEmpty(n *corev1.Node, d Decision) bool {
	changed := slices.ContainsFunc(d.Conditions, func(c corev1.NodeCondition) bool {
		before := FindCondition(n, c.Type)
		return before == nil || *before != c
	})
	return !changed && d.Record == nil && d.Event == nil && d.Unschedulable == nil &&
		len(d.Annotations)+len(d.AddTaints)+len(d.RemoveTaints) == 0
}

// checkWrite applies one write of an actor to the state and checks the rules for writes.
func (m holdModel) checkWrite(s *modelState, by modelWriter, after *corev1.Node) error {
	before, blocked := s.n, m.isBlocked(s, by)
	after.ManagedFields, after.Labels = s.n.ManagedFields, s.n.Labels
	s.n = after
	was, is := m.record(before), m.record(after)
	cancelled := was.Reason == GoingDown && was.BootID == bootName(s.boot) && !s.going
	isExempt := before.Labels[HoldLabel] == HoldNever
	canRelease := by.overdue || isExempt || !by.leader && (m.isNetworkReady(*s) || cancelled)
	uncordons := before.Spec.Unschedulable && !after.Spec.Unschedulable
	opens := uncordons || hasTaint(before, holdTaint) && !hasTaint(after, holdTaint)
	isOverride := is.State == Overridden && is.Reason == EndedByHand
	releases := opens && was.State == Held && !isOverride
	starts := was.State != Held && is.State == Held
	const key = autoscaler.Karpenter
	wasMarked, isMarked := before.Annotations[key] == "true", after.Annotations[key] != ""
	overwrites := networkHeld(after).Status == corev1.ConditionTrue && networkHeld(before) != networkHeld(after)
	switch {
	case uncordons && s.cordon != byHoldfast:
		return fmt.Errorf("uncordons a node that another client has cordoned")
	case releases && !canRelease:
		return fmt.Errorf("releases a node with closed gates")
	case releases && blocked:
		return fmt.Errorf("opens a node that another client keeps closed")
	case opens && was.State == Held && is.State == Held:
		return fmt.Errorf("opens a node in another write than its record")
	case (s.unscanned || s.member) && wasMarked && !isMarked:
		return fmt.Errorf("removes a mark that may guard a member")
	case !before.Spec.Unschedulable && after.Spec.Unschedulable && is.State != Held:
		return fmt.Errorf("cordons without a record")
	case starts && by.leader:
		return fmt.Errorf("the leader holds a node")
	case starts && s.ended == bootName(s.boot) && !by.facts.GoingDown:
		return fmt.Errorf("holds a node twice in one boot")
	case by.leader && is.State == Held && m.hasReported(s, before) && overwrites:
		return fmt.Errorf("the leader overwrites an agent's condition")
	}
	if networkHeld(before) != networkHeld(after) {
		s.written = before.Status.NodeInfo.BootID
		if by.leader {
			s.written = ""
		}
	}
	if was.State == Held && is.State != Held {
		s.ended = is.BootID
		if s.n.Spec.Unschedulable && s.cordon == byHoldfast {
			s.cordon = byOther // because of keep-cordoned
		}
	}
	if before.Spec.Unschedulable != after.Spec.Unschedulable {
		s.n.ManagedFields, s.cordon = nil, ""
		if after.Spec.Unschedulable {
			owned(FieldManager, "", `{"f:spec":{"f:unschedulable":{}}}`)(s.n)
			s.cordon = byHoldfast
		}
	}
	return nil
}

// isNetworkReady reports whether everything that the gates require is ready.
func (m holdModel) isNetworkReady(s modelState) bool {
	return s.open && (s.up || len(m.policy.gateNames(GateCondition)) == 0)
}

// isGuarded reports whether the marks guard an etcd member and are listed as such.
func (s modelState) isGuarded() bool { return s.n.Annotations[etcdMarksAnnotation] != "" }

// isBlocked reports whether another client keeps the node closed, as far as the writer knows.
// The leader does not know logind's state. An agent that waits for logind keeps a hold that
// began at a shutdown.
func (m holdModel) isBlocked(s *modelState, by modelWriter) bool {
	r := m.record(s.n)
	_, keep := s.n.Annotations[KeepCordonedAnnotation]
	closedForIt := r.State == Held && r.Reason == GoingDown && r.BootID == bootName(s.boot)
	down := by.facts.GoingDown || by.facts.AwaitsLogind && closedForIt
	return keep || hasTaint(s.n, "medik8s.io/drain") || down && s.n.Labels[HoldLabel] != HoldNever
}

// record returns the record of a Node, the zero value if there is none or it cannot be read.
func (m holdModel) record(n *corev1.Node) Record {
	value := n.Annotations[HoldAnnotation]
	r, known := m.parsed[value]
	if !known {
		var err error
		if r, err = ParseRecord(value); err != nil {
			r = Record{}
		}
		m.parsed[value] = r
	}
	return r
}

// explore visits all histories. It returns the number of states and of transitions between
// them. It fails with the shortest history that breaks a rule.
func explore(t *testing.T, m holdModel) (states, transitions int) {
	t.Helper()
	type visit struct {
		s      *modelState
		by     string
		before *visit
	}
	m.parsed = map[string]Record{}
	first := &modelState{n: m.newNode(0), hadOtherReport: true}
	if first.n.Spec.Unschedulable {
		first.cordon = byHoldfast
	}
	all := slices.Clone(m.actors)
	for _, name := range slices.Sorted(maps.Keys(m.steps)) {
		all = append(all, m.step(name))
	}
	seen, next := map[string]bool{first.String(): true}, []*visit{{s: first}}
	for len(next) > 0 {
		at := next[0]
		next = next[1:]
		for _, a := range all {
			following, err := a.work(m, at.s)
			if err != nil {
				history := a.name
				for v := at; v.before != nil; v = v.before {
					history = v.by + "\n" + history
				}
				require.NoError(t, err, "%s\n%s", history, append(following, at.s)[0])
			}
			transitions += max(len(following), 1)
			for i, s := range following {
				isSameBoot := s.n.Status.NodeInfo.BootID == at.s.n.Status.NodeInfo.BootID
				s.hadOtherReport = isSameBoot && s.hadOtherReport || !ReportsShutdown(s.n)
				updateTaints(s.n)
				if key := s.String(); !seen[key] {
					seen[key] = true
					by := a.name
					if i < len(following)-1 {
						by += ", killed"
					}
					next = append(next, &visit{s, by, at})
				}
			}
		}
		at.s = nil // only the names are needed
	}
	return len(seen), transitions
}

// step returns the step of this name.
func (m holdModel) step(name string) modelActor {
	return modelActor{name, func(m holdModel, s *modelState) ([]*modelState, error) {
		s = s.copy()
		if name == "reboot" && m.announced {
			s.going = true
			held, err := agents()[0].work(m, s)
			if err != nil {
				return held, err
			}
			s = append([]*modelState{s}, held...)[len(held)]
		}
		m.steps[name](s)
		return []*modelState{s}, nil
	}}
}
