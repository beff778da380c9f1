package readiness

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/autoscaler"
)

// agents returns an agent, and one that cannot read the boot ID.
func agents() []modelActor {
	return []modelActor{
		agent("agent", func(*Facts) {}), agent("agent without boot ID", func(f *Facts) { f.BootID = "" }),
	}
}

// uninformedAgents returns agents that do not know whether the host is shutting down: one that
// waits for logind after its start, and one on a host without logind.
func uninformedAgents() []modelActor {
	awaits := func(f *Facts) { f.GoingDown, f.StaysUp, f.AwaitsLogind = false, false, true }
	return []modelActor{
		agent("agent, waiting for logind", awaits),
		agent("agent without logind", func(f *Facts) { f.GoingDown, f.StaysUp = false, false }),
	}
}

// agentsWithFlags returns one agent for each policy. They act in any order, as after changes of
// the flags.
func agentsWithFlags(flags map[string]Policy) (actors []modelActor) {
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		one := agent("agent, "+name, func(*Facts) {})
		actors = append(actors, modelActor{one.name, func(m holdModel, s *modelState) ([]*modelState, error) {
			m.policy = flags[name]
			return one.work(m, s)
		}})
	}
	return actors
}

func agent(name string, change func(*Facts)) modelActor {
	return modelActor{name, func(m holdModel, s *modelState) ([]*modelState, error) {
		by := modelWriter{facts: s.facts()}
		change(&by.facts)
		decide := func(n *corev1.Node) Decision { return Decide(n, by.facts, m.policy, noon()) }
		return m.work(s, by, decide, m.checkAfterAgent)
	}}
}

// hasRaisedUnavailable reports whether NetworkUnavailable is True by Holdfast. It is the model's
// own check, so that it does not share a defect with the code.
func hasRaisedUnavailable(s *modelState) bool {
	c := FindCondition(s.n, corev1.NodeNetworkUnavailable)
	return c != nil && c.Status == corev1.ConditionTrue && c.Reason == HeldByHoldfast
}

// checkAfterAgent checks the rules for a Node on which the agent changes nothing more.
func (m holdModel) checkAfterAgent(s *modelState, by modelWriter) error {
	r := m.record(s.n)
	isByHoldfast := hasRaisedUnavailable(s)
	_, isKept := s.n.Annotations[KeepCordonedAnnotation]
	closed := s.cordon == byHoldfast || !isKept && (hasTaint(s.n, holdTaint) || hasTaint(s.n, otherTaint))
	_, marked := s.n.Annotations[autoscaler.Karpenter]
	held := FindCondition(s.n, NetworkHeld)
	switch {
	case held == nil:
		return fmt.Errorf("no condition NetworkHeld")
	case isByHoldfast && (r.State == Released || r.State == Overridden):
		return fmt.Errorf("NetworkUnavailable by Holdfast in state %s", r.State)
	case by.facts.BootID == "":
		return nil
	case (held.Status == corev1.ConditionTrue) != (r.State == Held):
		return fmt.Errorf("NetworkHeld is %s in state %s", held.Status, r.State)
	case isByHoldfast && (r.Taint != "" || r.Reason == Rebooted || r.Reason == GoingDown):
		return fmt.Errorf("NetworkUnavailable although it is not part of the hold")
	case closed && r.State != Held:
		return fmt.Errorf("closed by Holdfast in state %s", r.State)
	case !marked && s.isGuarded():
		return fmt.Errorf("a member without marks")
	case marked && r.State != Held && by.facts.Etcd == Absent && !s.isGuarded():
		return fmt.Errorf("marks of the hold in state %s", r.State)
	case r.State == Held && m.isNetworkReady(*s) && !m.isBlocked(s, by):
		return fmt.Errorf("a held node with open gates is not released")
	case r.State == Held && s.cordon == byOther && r.Taint == "":
		return fmt.Errorf("another client's cordon counts as Holdfast's")
	}
	return nil
}

// leaders returns the webhook's leader at each age of a hold: recent, late, overdue, and
// overdue with --on-stuck-hold=release.
func leaders() []modelActor {
	t := testLimits()
	return []modelActor{
		leader("leader", 0, true), leader("leader, late", t.Agent, true),
		leader("leader, overdue", t.Hold, false), leader("leader, overdue, releases", t.Hold, true),
	}
}

func leader(name string, age time.Duration, release bool) modelActor {
	return modelActor{name, func(m holdModel, s *modelState) ([]*modelState, error) {
		limits := testLimits()
		limits.Release = release
		by := modelWriter{leader: true, overdue: release && age >= limits.Hold}
		before := m.record(s.n)
		decide := func(n *corev1.Node) Decision {
			since := age
			if m.record(n).State != before.State {
				since = 0 // another hold
			}
			return CheckHold(n, HoldHistory{Age: since, HadOtherReport: s.hadOtherReport}, limits, noon()).Decision
		}
		check := m.checkAfterLeader
		if age < limits.Agent {
			check = func(*modelState, modelWriter) error { return nil }
		}
		return m.work(s, by, decide, check)
	}}
}

// checkAfterLeader checks the rules for a Node without an agent on which a late leader changes
// nothing more.
func (m holdModel) checkAfterLeader(s *modelState, by modelWriter) error {
	r, held := m.record(s.n), networkHeld(s.n)
	closed := s.cordon == byHoldfast
	if r.Taint != "" {
		closed = hasTaint(s.n, r.Taint)
	}
	isReported := held.Reason == AgentMissing || held.Reason == Overdue
	switch {
	case r.State == "":
		return nil // It is unknown whether Holdfast holds the node.
	case r.State != Held && hasRaisedUnavailable(s):
		return fmt.Errorf("NetworkUnavailable by Holdfast in state %s", r.State)
	case r.State != Held && held.Status == corev1.ConditionTrue:
		return fmt.Errorf("NetworkHeld is True in state %s", r.State)
	case r.State == Held && !closed:
		return fmt.Errorf("an overridden hold still counts as a hold")
	case r.State == Held && m.isBlocked(s, by) && hasTaint(s.n, "medik8s.io/drain"):
		return nil
	case r.State == Held && by.overdue:
		return fmt.Errorf("an overdue hold is not ended")
	case r.State == Held && s.n.Labels[HoldLabel] == HoldNever:
		return fmt.Errorf("the label does not end the hold")
	case r.State == Held && !m.hasReported(s, s.n) && !isReported:
		return fmt.Errorf("a missing agent is not reported")
	}
	return nil
}

// hasReported reports whether an agent has written in this boot why the node is held. The
// leader has nothing to report then. A shutdown is of this boot if the kubelet had reported the
// boot before the agent wrote, or if the record has this boot.
func (m holdModel) hasReported(s *modelState, n *corev1.Node) bool {
	r, held := m.record(n), FindCondition(n, NetworkHeld)
	if r.State != Held || held == nil || s.cordon != byHoldfast && r.Taint == "" {
		return false
	}
	switch held.Reason {
	case AgentMissing, Overdue:
		return false
	case GoingDown:
		boot := n.Status.NodeInfo.BootID
		return boot == "" || boot == s.written || boot == r.BootID
	}
	return true
}

// networkHeld returns the condition NetworkHeld, the zero value if it is not set.
func networkHeld(n *corev1.Node) corev1.NodeCondition {
	if c := FindCondition(n, NetworkHeld); c != nil {
		return *c
	}
	return corev1.NodeCondition{}
}
