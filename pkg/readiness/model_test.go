package readiness

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// A model of one Node and all who write on it: every history of their steps is walked through, up to states that are the
// same. What is really so (whose the cordon is, whether the network works) the scene knows beside the Node, from the steps
// themselves; the agent knows the Node and its facts alone.

const us, other = "us", "other"

// scene is one state of the world.
type scene struct {
	n *corev1.Node
	// boot is the number of the boot, from 0.
	boot int
	// open says that every gate of the host's is, going that the host is on its way down.
	open, going bool
	// up says that the network plugin has said in this boot that the network is there.
	up bool
	// unseen says that nobody has looked for etcd, member that it is there.
	unseen, member bool
	// cordon says whose the cordon is: nobody's if there is none, us or other.
	cordon string
	// unborn says that the policy's parameter is away, so that the next Node is not born held.
	unborn bool
	// ended is the boot after which the last hold ended, plus one; 0 if none has.
	ended int
}

// play is one set of rules: a policy, those of ours who work, and the steps that others take.
type play struct {
	policy Policy
	born   func(boot int) *corev1.Node
	actors []actor
	steps  map[string]func(*scene)
	// cleanly says that logind tells the agent of every reboot.
	cleanly bool
	// parsed are the records that were read before.
	parsed map[string]Record
}

// actor is one of ours at work until nothing is left to do. What it writes is checked, and how it leaves the Node.
type actor struct {
	name string
	work func(play, *scene) error
}

// author is who has written: an agent with its facts, or the leader.
type author struct {
	facts Facts
	// leader says that it is the leader; overdue that it may end a hold whatever the gates.
	leader, overdue bool
}

func (s scene) facts() Facts {
	f := ready()
	f.BootID, f.GoingDown, f.StaysUp = bootName(s.boot), s.going, !s.going
	if s.member {
		f.Etcd = Present
	}
	if s.unseen {
		f.Etcd = Unknown
	}
	if !s.open {
		f.Subnet.Presence = Absent
	}
	return f
}

func (s scene) copy() *scene {
	n := clone(s.n)
	n.Labels, n.ManagedFields = maps.Clone(s.n.Labels), slices.Clone(s.n.ManagedFields)
	s.n = n
	return &s
}

func (s scene) String() string {
	var b strings.Builder
	b.WriteByte('0' + byte(s.boot))
	b.WriteByte('0' + byte(s.ended))
	for _, bit := range []bool{s.open, s.going, s.up, s.unseen, s.member, s.unborn, s.n.Spec.Unschedulable, len(s.n.ManagedFields) > 0} {
		b.WriteString(map[bool]string{true: "+", false: "-"}[bit])
	}
	b.WriteString(s.cordon)
	for _, key := range []string{HoldAnnotation, KeepCordonedAnnotation, karpenterAnnotation, etcdMarksAnnotation} {
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
		b.WriteString(" " + string(c.Type) + string(c.Status) + c.Reason + stamp(c))
	}
	return b.String()
}

// work writes what is decided until nothing is left to do, which done says, or until it is killed after the first write.
func (p play) work(s *scene, by author, killed bool, decide func(*corev1.Node) Decision) (done bool, err error) {
	for range 5 {
		d := decide(s.n)
		if asksNothing(s.n, d) {
			return true, nil
		}
		half, whole := write(s.n, d, func(*corev1.Node) {})
		for _, after := range []*corev1.Node{half, whole} {
			if same(s.n, after) {
				continue
			}
			if err := p.wrote(s, by, after); err != nil {
				return false, err
			}
			if killed {
				return false, nil
			}
		}
	}
	return false, fmt.Errorf("it does not come to rest")
}

// asksNothing says that a decision leaves the Node as it is.
func asksNothing(n *corev1.Node, d Decision) bool {
	changed := slices.ContainsFunc(d.Conditions, func(c corev1.NodeCondition) bool {
		before := condition(n, c.Type)
		return before == nil || *before != c
	})
	return !changed && d.Record == nil && d.Event == nil && d.Unschedulable == nil && len(d.Annotations)+len(d.AddTaints)+len(d.RemoveTaints) == 0
}

// wrote takes over one write of ours and checks what must hold of it.
func (p play) wrote(s *scene, by author, after *corev1.Node) error {
	before, blocked := s.n, p.blocked(s, by)
	after.ManagedFields, after.Labels = s.n.ManagedFields, s.n.Labels
	s.n = after
	was, is := p.record(before), p.record(after)
	called := was.Reason == GoingDown && was.BootID == bootName(s.boot) && !s.going
	may := by.overdue || before.Labels[HoldLabel] == HoldNever || !by.leader && (p.network(*s) || called)
	opens := before.Spec.Unschedulable && !after.Spec.Unschedulable || hasTaint(before, holdTaint) && !hasTaint(after, holdTaint)
	byHand := is.State == Overridden && is.Reason == EndedByHand
	switch {
	case before.Spec.Unschedulable && !after.Spec.Unschedulable && s.cordon != us:
		return fmt.Errorf("uncordons what somebody else has cordoned")
	case opens && was.State == Held && !byHand && !may:
		return fmt.Errorf("releases before the gates")
	case opens && blocked && was.State == Held && !byHand:
		return fmt.Errorf("opens a node that somebody keeps closed")
	case opens && was.State == Held && is.State == Held:
		return fmt.Errorf("opens a node in another write than its record")
	case (s.unseen || s.member) && before.Annotations[karpenterAnnotation] == "true" && after.Annotations[karpenterAnnotation] == "":
		return fmt.Errorf("takes off a mark that may guard a member")
	case !before.Spec.Unschedulable && after.Spec.Unschedulable && is.State != Held:
		return fmt.Errorf("cordons without a record")
	case was.State != Held && is.State == Held && by.leader:
		return fmt.Errorf("the leader holds a node")
	case was.State != Held && is.State == Held && s.ended == s.boot+1 && !by.facts.GoingDown:
		return fmt.Errorf("holds a second time in one boot")
	case by.leader && is.State == Held && p.spoken(before, s.cordon) && said(after).Status == corev1.ConditionTrue && said(before) != said(after):
		return fmt.Errorf("the leader speaks over an agent")
	}
	if was.State == Held && is.State != Held {
		s.ended = bootNumber(is.BootID) + 1
		if s.n.Spec.Unschedulable && s.cordon == us {
			s.cordon = other // handed over, by keep-cordoned
		}
	}
	if before.Spec.Unschedulable != after.Spec.Unschedulable {
		s.n.ManagedFields, s.cordon = nil, ""
		if after.Spec.Unschedulable {
			owns(FieldManager, "", `{"f:spec":{"f:unschedulable":{}}}`)(s.n)
			s.cordon = us
		}
	}
	return nil
}

// network says whether all that is waited for is really there.
func (p play) network(s scene) bool {
	return s.open && (s.up || len(p.policy.named(GateCondition)) == 0)
}

// guards says that the marks stand for a member of etcd, and that the record for it is there.
func (s scene) guards() bool { return s.n.Annotations[etcdMarksAnnotation] != "" }

// blocked says that somebody wants the node closed, as far as the author can know: what logind says the leader never hears,
// and who waits for its word keeps what was closed for it.
func (p play) blocked(s *scene, by author) bool {
	r := p.record(s.n)
	_, keep := s.n.Annotations[KeepCordonedAnnotation]
	closedForIt := r.State == Held && r.Reason == GoingDown && r.BootID == bootName(s.boot)
	down := by.facts.GoingDown || by.facts.AwaitsWord && closedForIt
	return keep || hasTaint(s.n, "medik8s.io/drain") || down && s.n.Labels[HoldLabel] != HoldNever
}

func (p play) record(n *corev1.Node) Record {
	value := n.Annotations[HoldAnnotation]
	r, known := p.parsed[value]
	if !known {
		var err error
		if r, err = ParseRecord(value); err != nil {
			r = Record{}
		}
		p.parsed[value] = r
	}
	return r
}

// explore walks through all histories and returns how many states there are, and how many steps between them. It fails with
// the shortest history that breaks a rule.
func explore(t *testing.T, p play) (states, transitions int) {
	t.Helper()
	type found struct {
		s      *scene
		by     string
		before *found
	}
	p.parsed = map[string]Record{}
	first := &scene{n: p.born(0)}
	if first.n.Spec.Unschedulable {
		first.cordon = us
	}
	all := slices.Clone(p.actors)
	for _, name := range slices.Sorted(maps.Keys(p.steps)) {
		all = append(all, actor{name, func(p play, s *scene) error {
			if name == "reboot" && p.cleanly {
				s.going = true
				if err := agents()[0].work(p, s); err != nil {
					return err
				}
			}
			p.steps[name](s)
			return nil
		}})
	}
	seen, next := map[string]bool{first.String(): true}, []*found{{s: first}}
	for len(next) > 0 {
		at := next[0]
		next = next[1:]
		for _, a := range all {
			s := at.s.copy()
			err := a.work(p, s)
			lifecycle(s.n)
			if err != nil {
				past := a.name
				for f := at; f.before != nil; f = f.before {
					past = f.by + "\n" + past
				}
				require.NoError(t, err, "%s\n%s", past, s)
			}
			transitions++
			if key := s.String(); !seen[key] {
				seen[key] = true
				next = append(next, &found{s, a.name, at})
			}
		}
		at.s = nil // of the past only the names are told
	}
	return len(seen), transitions
}
