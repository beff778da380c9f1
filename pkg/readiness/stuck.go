package readiness

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// What the webhook's leader says of a hold. The first two are reasons of the condition NetworkHeld, which is the leader's
// only as long as no agent has written it in this boot; Overdue is also the reason of a record that the leader released.
const (
	// AgentMissing says that no agent has looked at the node since it is held.
	AgentMissing = "AgentMissing"
	// Overdue says that the hold has lasted too long.
	Overdue = "Overdue"
	// EventOverdue and EventGivenUp are reasons of events: the hold has lasted too long, and it was ended for that.
	EventOverdue = "HoldOverdue"
	EventGivenUp = "HoldGivenUp"
)

// Standing is how a hold stands, in one word for metrics and logs.
type Standing string

// The standings.
const (
	// Waiting is a hold as it should be: young, or being looked after by an agent.
	Waiting Standing = "waiting"
	// Ending is a release or an override that is not written to its end.
	Ending Standing = "ending"
	// BehindOthers is a hold on a node that somebody else is deleting, draining or rebooting.
	BehindOthers Standing = "behind_others"
	// Unreachable is a hold on a node whose kubelet is silent: it is not the hold that keeps pods away.
	Unreachable Standing = "unreachable"
	// Unattended is a hold at which no agent has looked.
	Unattended Standing = "agent_missing"
	// Stuck is a hold that has lasted too long, with or without an agent.
	Stuck Standing = "overdue"
)

// Standings returns all of them. A node that is not held by us has none.
func Standings() []Standing {
	return []Standing{Waiting, Ending, BehindOthers, Unreachable, Unattended, Stuck}
}

// Patience is how long holds may last, and what becomes of those that last longer.
type Patience struct {
	// Agent is the age of a hold at which an agent should have looked at the node.
	Agent time.Duration
	// Hold is the age at which it should have ended.
	Hold time.Duration
	// Release ends a hold of that age, whatever its network looks like.
	Release bool
	// Namespace is where the agents' pods are.
	Namespace string
}

// Attention is what a hold calls for from whoever watches from outside of the node.
type Attention struct {
	Standing Standing
	// Agent says that an agent has looked at the node in this boot, as far as the Node tells.
	Agent bool
	// Decision is to be written like an agent's. Its zero value asks for nothing.
	Decision Decision
	// Event is to be told once per standing; nil if there is nothing to tell. The Decision may have one of its own.
	Event *Event
}

// Attend says how the hold of a node stands, and what is to be done for want of an agent. It knows nothing of the host:
// what it does to a node before the hold is overdue is what an agent would do at once without looking at the host, and
// only after an agent has had time for it. Age is for how long the node has been as it is.
func Attend(n *corev1.Node, age time.Duration, p Patience, now time.Time) Attention {
	value, recorded := n.Annotations[HoldAnnotation]
	record, err := ParseRecord(value)
	if !recorded || err != nil {
		return Attention{} // Nobody can say that it is held by us.
	}
	s := situation{node: n, now: now, record: record, recorded: true, facts: Facts{BootID: n.Status.NodeInfo.BootID}}
	if s.facts.BootID == "" {
		s.facts.BootID = record.BootID
	}
	a := Attention{Agent: s.attended()}
	if c := condition(n, etcdMemberCondition); c != nil && c.Status == corev1.ConditionFalse {
		s.facts.Etcd = Absent // An agent has looked.
	}
	late := age >= p.Agent
	switch {
	case record.State != Held && s.unfinished():
		a.Standing = Ending
		if late || record.Reason == Overdue { // The leader's own release, whose end it owes.
			a.Decision = s.rest(record.Reason)
		}
	case record.State != Held:
	case !s.shut():
		a.Standing = Ending
		if late {
			a.Decision = s.held()
		}
	case s.mark() != "":
		a.Standing = BehindOthers
	case s.unreachable():
		a.Standing = Unreachable
	case s.exempt() && late:
		a.Standing, a.Decision = Ending, s.lacking(AgentMissing, "its agent").held()
	case age >= p.Hold:
		a.Standing = Stuck
		a.Decision, a.Event = s.overdue(p, a.Agent)
	case late && !a.Agent:
		a.Standing = Unattended
		a.Decision, a.Event = s.alone(AgentMissing, AgentMissing, p.Agent.String(), p)
	default:
		a.Standing = Waiting
	}
	if r := a.Decision.Record; r != nil && r.Stamps == nil {
		r.Stamps = record.Stamps // Which conditions are waited for the leader does not know.
	}
	return a
}

// attended says whether an agent has looked at the node in this boot. Each writes the condition NetworkHeld as the first
// thing that it does. One that speaks of the host's going down is of the boot before, once the host is up again.
func (s situation) attended() bool {
	c := condition(s.node, NetworkHeld)
	switch {
	case c == nil || c.Reason == AgentMissing || c.Reason == Overdue:
		return false
	case c.Reason == GoingDown:
		return s.record.BootID == s.facts.BootID
	}
	return true
}

// unfinished says that a condition still speaks of a hold that the record says has ended: the second write of a release is
// missing.
func (s situation) unfinished() bool {
	c := condition(s.node, NetworkHeld)
	return s.unavailableByUs() || c != nil && c.Status == corev1.ConditionTrue
}

// unreachable says that the kubelet is silent (node lifecycle controller, NodeStatusUnknown).
func (s situation) unreachable() bool {
	ready := condition(s.node, corev1.NodeReady)
	return ready != nil && ready.Status == corev1.ConditionUnknown
}

// lacking is the situation of a node whose agent is missing: that is the one gate that can be seen from outside.
func (s situation) lacking(reason, agent string) situation {
	s.gates, s.missing = []Gate{{Name: "agent", Reason: reason, Missing: agent}}, agent
	return s
}

// alone keeps a node held for want of an agent, and says so in the agent's place.
func (s situation) alone(reason, event, age string, p Patience) (Decision, *Event) {
	d := s.lacking(reason, fmt.Sprintf(
		"an agent, for none has looked at this node in %s. See why with `%s`. To release the node by hand: `%s`",
		age, lookAtPod(p.Namespace, s.node.Name), ManualRelease(s.node))).held()
	d.Event = nil
	if c := condition(s.node, NetworkHeld); c != nil && c.Reason == GoingDown {
		// This is of the boot before. Were the record of this boot first, it would pass for the word of an agent that has come.
		d.Record, d.Conditions = nil, d.Conditions[:1]
	}
	return d, &Event{Type: corev1.EventTypeWarning, Reason: event, Message: d.Message}
}

// overdue decides about a hold that has lasted too long.
func (s situation) overdue(p Patience, agent bool) (Decision, *Event) {
	const kept = ", and --on-stuck-hold=keep keeps it held"
	switch {
	case p.Release:
		return s.giveUp(p), nil
	case !agent:
		return s.alone(Overdue, EventOverdue, p.Hold.String()+kept, p)
	}
	c := condition(s.node, NetworkHeld) // An agent is known by it.
	return Decision{}, &Event{Type: corev1.EventTypeWarning, Reason: EventOverdue, Message: fmt.Sprintf(
		"held for more than %s; the agent's last word: %s. See whether it lives with `%s`. To release the node by hand: `%s`",
		p.Hold.String()+kept, c.Message, lookAtPod(p.Namespace, s.node.Name), ManualRelease(s.node))}
}

// giveUp releases the node as if there were no gates. The record says whose doing that was, so that an agent that comes
// later leaves the node alone in this boot.
func (s situation) giveUp(p Patience) Decision {
	d := s.held()
	if d.Record == nil || d.Record.Reason != NetworkReady {
		return d // Left cordoned, as somebody asked.
	}
	d.Record.Reason = Overdue
	d.Message = restMessage(Overdue)
	d.Conditions[0].Message = d.Message
	d.Event = &Event{Type: corev1.EventTypeWarning, Reason: EventGivenUp, Message: fmt.Sprintf(
		"released after %s by --on-stuck-hold=release, although nobody has seen its network work. See what became of the agent with `%s`",
		p.Hold, lookAtPod(p.Namespace, s.node.Name))}
	return d
}

func lookAtPod(namespace, node string) string {
	return fmt.Sprintf("kubectl -n %s get pods -o wide --field-selector spec.nodeName=%s", namespace, node)
}

// BornHeld says that the node has been held since it was created, by the policy and not by an agent.
func BornHeld(n *corev1.Node) bool {
	record, err := ParseRecord(n.Annotations[HoldAnnotation])
	return err == nil && record.State == Held && record.Reason == NewNode
}

// ManualRelease is the command line by which a person releases a held node: what closes it first, and then the condition
// that would keep pods away all the same. An agent that comes later takes it for what it is, an override.
func ManualRelease(n *corev1.Node) string {
	record, err := ParseRecord(n.Annotations[HoldAnnotation])
	command := "kubectl uncordon " + n.Name
	if err == nil && record.Taint != "" {
		// A key that is on the node has passed the API server, and so holds nothing that a shell would take for its own.
		if !hasTaint(n, record.Taint) {
			return "kubectl describe node " + n.Name
		}
		command = fmt.Sprintf("kubectl taint node %s %s:%s-", n.Name, record.Taint, corev1.TaintEffectNoSchedule)
	}
	unavailable := condition(n, corev1.NodeNetworkUnavailable)
	byOthers := unavailable != nil && unavailable.Status == corev1.ConditionTrue && unavailable.Reason != HeldByHoldfast
	partOfHold := err == nil && record.fresh() && record.Taint == "" && !byOthers
	if !partOfHold && !(situation{node: n}).unavailableByUs() {
		return command
	}
	return command + fmt.Sprintf(` && kubectl patch node %s --subresource=status --type=strategic -p '{"status":{"conditions":[`+
		`{"type":"%s","status":"False","reason":"ReleasedByHand","message":"released by hand"}]}}'`, n.Name, corev1.NodeNetworkUnavailable)
}
