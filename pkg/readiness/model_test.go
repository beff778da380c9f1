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
	// ended is the boot after which the last hold ended, plus one; 0 if none has.
	ended int
}

// play is one set of rules: a policy, and the steps that others take.
type play struct {
	policy Policy
	born   func(boot int) *corev1.Node
	steps  map[string]func(*scene)
	// cleanly says that logind tells the agent of every reboot.
	cleanly bool
	// parsed are the records that were read before.
	parsed map[string]Record
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
	fmt.Fprint(&b, s.boot, s.open, s.going, s.up, s.cordon, s.ended, s.unseen, s.member, s.n.Spec.Unschedulable, len(s.n.ManagedFields))
	for _, key := range []string{HoldAnnotation, KeepCordonedAnnotation, karpenterAnnotation, etcdMarksAnnotation} {
		if value, there := s.n.Annotations[key]; there {
			b.WriteString(" " + key + "=" + value)
		}
	}
	b.WriteString(" " + s.n.Labels[HoldLabel])
	for i := range s.n.Spec.Taints {
		b.WriteString(" " + s.n.Spec.Taints[i].Key)
	}
	for i := range s.n.Status.Conditions {
		c := &s.n.Status.Conditions[i]
		b.WriteString(" " + string(c.Type) + string(c.Status) + c.Reason + stamp(c))
	}
	return b.String()
}

// pass is the agent at work until nothing is left to do, or killed after the first of its writes.
func (p play) pass(s *scene, facts Facts, killed bool) error {
	for range 5 {
		d := Decide(s.n, facts, p.policy, noon())
		half, whole := write(s.n, d, func(*corev1.Node) {})
		for _, after := range []*corev1.Node{half, whole} {
			if err := p.wrote(s, facts, after); err != nil {
				return err
			}
			if killed && !same(s.n, half) {
				return nil
			}
		}
		if d.Record == nil && d.Event == nil && same(half, whole) {
			return p.rests(s, facts)
		}
	}
	return fmt.Errorf("the agent does not come to rest")
}

// wrote takes over one write of the agent's and checks what must hold of it.
func (p play) wrote(s *scene, facts Facts, after *corev1.Node) error {
	before, blocked := s.n, s.blocked()
	after.ManagedFields, after.Labels = s.n.ManagedFields, s.n.Labels
	s.n = after
	called := p.record(before).Reason == GoingDown && p.record(before).BootID == bootName(s.boot) && !s.going
	may := p.network(*s) || called || before.Labels[HoldLabel] == HoldNever
	opens := before.Spec.Unschedulable && !after.Spec.Unschedulable || hasTaint(before, holdTaint) && !hasTaint(after, holdTaint)
	switch {
	case before.Spec.Unschedulable && !after.Spec.Unschedulable && s.cordon != us:
		return fmt.Errorf("uncordons what somebody else has cordoned")
	case opens && p.record(before).State == Held && p.record(after).State != Overridden && !may:
		return fmt.Errorf("releases before the gates")
	case opens && blocked && p.record(before).State == Held && p.record(after).State != Overridden:
		return fmt.Errorf("opens a node that somebody keeps closed")
	case (s.unseen || s.member) && before.Annotations[karpenterAnnotation] == "true" && after.Annotations[karpenterAnnotation] == "":
		return fmt.Errorf("takes off a mark that may guard a member")
	case !before.Spec.Unschedulable && after.Spec.Unschedulable && p.record(after).State != Held:
		return fmt.Errorf("cordons without a record")
	}
	closes := p.record(before).State != Held && p.record(after).State == Held
	if closes && s.ended == s.boot+1 && !facts.GoingDown {
		return fmt.Errorf("holds a second time in one boot")
	}
	if p.record(before).State == Held && p.record(after).State != Held {
		s.ended = s.boot + 1
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

func (s scene) blocked() bool {
	_, keep := s.n.Annotations[KeepCordonedAnnotation]
	return keep || hasTaint(s.n, "medik8s.io/drain") || s.going && s.n.Labels[HoldLabel] != HoldNever
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

// rests checks what must hold when the agent has nothing left to do.
func (p play) rests(s *scene, facts Facts) error {
	if facts.BootID == "" {
		return nil
	}
	r := p.record(s.n)
	c := condition(s.n, corev1.NodeNetworkUnavailable)
	ours := c != nil && c.Status == corev1.ConditionTrue && c.Reason == HeldByHoldfast
	closed := s.cordon == us || p.policy.TaintKey != "" && hasTaint(s.n, holdTaint)
	_, marked := s.n.Annotations[karpenterAnnotation]
	switch {
	case ours && r.State != Held:
		return fmt.Errorf("our NetworkUnavailable stands in state %s", r.State)
	case closed && r.State != Held:
		return fmt.Errorf("the node is closed by us in state %s", r.State)
	case !marked && s.guards():
		return fmt.Errorf("a member without marks")
	case marked && r.State != Held && facts.Etcd == Absent && !s.guards():
		return fmt.Errorf("our marks for autoscalers stand in state %s", r.State)
	case r.State == Releasing:
		return fmt.Errorf("a release is not finished")
	case r.State == Held && p.network(*s) && !s.blocked():
		return fmt.Errorf("a held node whose gates are open is not released")
	case r.State == Held && s.cordon == other && p.policy.TaintKey == "":
		return fmt.Errorf("a cordon of somebody else's counts as ours")
	}
	return nil
}

// explore walks through all histories and returns how many states there are. It fails with the shortest history that
// breaks a rule.
func explore(t *testing.T, p play) int {
	t.Helper()
	type found struct {
		s    *scene
		past []string
	}
	p.parsed = map[string]Record{}
	names := slices.Sorted(maps.Keys(p.steps))
	first := &scene{n: p.born(0)}
	if first.n.Spec.Unschedulable {
		first.cordon = us
	}
	seen, next := map[string]bool{first.String(): true}, []found{{s: first}}
	for len(next) > 0 {
		at := next[0]
		next = next[1:]
		for _, name := range append([]string{"agent", "agent is killed", "agent without boot ID"}, names...) {
			s, err := at.s.copy(), error(nil)
			switch name {
			case "agent":
				err = p.pass(s, s.facts(), false)
			case "agent is killed":
				err = p.pass(s, s.facts(), true)
			case "agent without boot ID":
				facts := s.facts()
				facts.BootID = ""
				err = p.pass(s, facts, false)
			default:
				if name == "reboot" && p.cleanly {
					s.going = true
					err = p.pass(s, s.facts(), false)
				}
				p.steps[name](s)
			}
			lifecycle(s.n)
			if err != nil {
				require.NoError(t, err, "%s\n%s\n%s", strings.Join(at.past, "\n"), name, s)
			}
			if key := s.String(); !seen[key] {
				seen[key] = true
				next = append(next, found{s, append(slices.Clone(at.past), name)})
			}
		}
	}
	return len(seen)
}
