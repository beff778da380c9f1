package readiness

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// agents are an agent, one that is killed after the first of its writes, and one that cannot read the boot ID.
func agents() []actor {
	return []actor{
		agent("agent", false, func(*Facts) {}), agent("agent is killed", true, func(*Facts) {}),
		agent("agent without boot ID", false, func(f *Facts) { f.BootID = "" }),
	}
}

// hardOfHearing are agents that do not know whether the host goes down: one that has just started and will hear it from
// logind in a moment, and one on a host where nobody says it.
func hardOfHearing() []actor {
	awaits := func(f *Facts) { f.GoingDown, f.StaysUp, f.AwaitsWord = false, false, true }
	return []actor{
		agent("agent that has just started", false, awaits),
		agent("agent that is told nothing", false, func(f *Facts) { f.GoingDown, f.StaysUp = false, false }),
	}
}

func agent(name string, killed bool, sees func(*Facts)) actor {
	return actor{name, func(p play, s *scene) error {
		by := author{facts: s.facts()}
		sees(&by.facts)
		decide := func(n *corev1.Node) Decision { return Decide(n, by.facts, p.policy, noon()) }
		if done, err := p.work(s, by, killed, decide); err != nil || !done {
			return err
		}
		return p.rests(s, by)
	}}
}

// rests checks what must hold when the agent has nothing left to do.
func (p play) rests(s *scene, by author) error {
	r := p.record(s.n)
	c := condition(s.n, corev1.NodeNetworkUnavailable)
	ours := c != nil && c.Status == corev1.ConditionTrue && c.Reason == HeldByHoldfast
	closed := s.cordon == us || p.policy.TaintKey != "" && hasTaint(s.n, holdTaint)
	_, marked := s.n.Annotations[karpenterAnnotation]
	said := condition(s.n, NetworkHeld)
	switch {
	case said == nil:
		return fmt.Errorf("says nothing")
	case ours && (r.State == Released || r.State == Overridden):
		return fmt.Errorf("our NetworkUnavailable stands in state %s", r.State)
	case by.facts.BootID == "":
		return nil
	case (said.Status == corev1.ConditionTrue) != (r.State == Held):
		return fmt.Errorf("NetworkHeld is %s in state %s", said.Status, r.State)
	case ours && (r.Taint != "" || r.Reason == Rebooted || r.Reason == GoingDown):
		return fmt.Errorf("NetworkUnavailable is no part of this hold")
	case closed && r.State != Held:
		return fmt.Errorf("the node is closed by us in state %s", r.State)
	case !marked && s.guards():
		return fmt.Errorf("a member without marks")
	case marked && r.State != Held && by.facts.Etcd == Absent && !s.guards():
		return fmt.Errorf("our marks for autoscalers stand in state %s", r.State)
	case r.State == Held && p.network(*s) && !p.blocked(s, by):
		return fmt.Errorf("a held node whose gates are open is not released")
	case r.State == Held && s.cordon == other && p.policy.TaintKey == "":
		return fmt.Errorf("a cordon of somebody else's counts as ours")
	}
	return nil
}
