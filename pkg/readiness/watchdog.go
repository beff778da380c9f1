package readiness

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// HoldState is the state of a hold in one word, for metrics and logs.
type HoldState string

// The states of a hold.
const (
	// HoldWaiting is a normal hold: recent, or maintained by an agent.
	HoldWaiting HoldState = "waiting"
	// HoldEnding is a release or an override whose writes are not complete.
	HoldEnding HoldState = "ending"
	// HoldBehindOthers is a hold on a node that another component deletes, drains or reboots.
	HoldBehindOthers HoldState = "behind_others"
	// HoldUnreachable is a hold on a node whose kubelet does not report. The hold is not what
	// keeps pods away.
	HoldUnreachable HoldState = "unreachable"
	// HoldAgentMissing is a hold on a node on which no agent has reported.
	HoldAgentMissing HoldState = "agent_missing"
	// HoldOverdue is a hold that has exceeded its time limit, with or without an agent.
	HoldOverdue HoldState = "overdue"
)

// HoldStates returns all states. A node that Holdfast does not hold has none of them.
func HoldStates() []HoldState {
	return []HoldState{HoldWaiting, HoldEnding, HoldBehindOthers, HoldUnreachable, HoldAgentMissing, HoldOverdue}
}

// HoldLimits are the time limits for holds, and what happens and is reported after them.
type HoldLimits struct {
	// Agent is the age of a hold after which an agent must have reported on the node.
	Agent time.Duration
	// Hold is the age after which the hold must have ended.
	Hold time.Duration
	// Release ends holds of that age, whatever the state of their network.
	Release bool
	// Namespace is the namespace of the agents' pods.
	Namespace string
}

// HoldHistory is what the leader has observed of a hold and the Node does not show.
type HoldHistory struct {
	// Age is how long the hold has been in its current record and boot.
	Age time.Duration
	// HadOtherReport is true if the leader has seen NetworkHeld missing, or with a reason other than
	// GoingDown, in this boot. If the reason is GoingDown now, an agent of this boot has written it.
	HadOtherReport bool
}

// HoldCheck is the result of CheckHold.
type HoldCheck struct {
	State HoldState
	// AgentSeen is whether an agent has reported on the node in this boot, as far as the Node
	// shows.
	AgentSeen bool
	// Decision is to be written like an agent's decision. Its zero value changes nothing.
	Decision Decision
	// Event is to be recorded once in each state; nil if there is none. Decision may have an
	// event of its own.
	Event *Event
}

// CheckHold returns the state of a node's hold and what to do about a missing agent. CheckHold
// knows nothing about the host. Until a hold is overdue, it returns only what an agent would do
// at once without inspecting the host, and only after an agent had time to do it.
func CheckHold(n *corev1.Node, h HoldHistory, limits HoldLimits, now time.Time) HoldCheck {
	record, err := ParseRecord(n.Annotations[HoldAnnotation])
	if err != nil {
		return HoldCheck{} // It is unknown whether Holdfast holds the node.
	}
	e := newLeaderEvaluation(n, record, now)
	check := HoldCheck{AgentSeen: e.hasAgent(h)}
	late := h.Age >= limits.Agent
	switch {
	case record.State != Held && hasUnfinishedRelease(n):
		check.State = HoldEnding
		if late || record.Reason == Overdue { // The leader finishes its own release at once.
			check.Decision = e.leaveAlone(record.Reason)
		}
	case record.State != Held:
	case !closedBy(n, record).isInPlace():
		check.State = HoldEnding
		if late {
			check.Decision = e.decideHeld()
		}
	case e.foreignMark() != "":
		check.State = HoldBehindOthers
	case isUnreachable(n):
		check.State = HoldUnreachable
	case isExempt(n) && late:
		check.State, check.Decision = HoldEnding, e.withoutAgent(AgentMissing, "its agent").decideHeld()
	case h.Age >= limits.Hold:
		check.State = HoldOverdue
		check.Decision, check.Event = e.decideOverdue(limits, check.AgentSeen)
	case late && !check.AgentSeen:
		check.State = HoldAgentMissing
		check.Decision, check.Event = e.reportMissingAgent(AgentMissing, AgentMissing, limits.Agent.String(), limits)
	default:
		check.State = HoldWaiting
	}
	if r := check.Decision.Record; r != nil {
		r.Stamps = record.Stamps // The leader does not know for which conditions the gates wait.
	}
	check.Decision, check.Event = check.Decision.printable(), check.Event.printable()
	return check
}

// newLeaderEvaluation returns the evaluation with what the leader knows. It has no policy and no
// gates, and of the host only what the Node shows.
func newLeaderEvaluation(n *corev1.Node, record Record, now time.Time) holdEvaluation {
	e := holdEvaluation{node: n, now: now, record: record}
	e.facts.BootID = cmp.Or(n.Status.NodeInfo.BootID, record.BootID)
	c := FindCondition(n, etcdMemberCondition)
	if c != nil && c.Status == corev1.ConditionFalse && n.Labels[etcdMemberLabel] == "" {
		e.facts.Etcd = Absent // An agent has scanned for etcd, and no other node lists a member here.
	}
	return e
}

// IsHoldOver reports whether Holdfast neither holds the node nor has to finish the end of a hold.
// It is false if the record cannot be parsed.
func IsHoldOver(n *corev1.Node) bool {
	value, recorded := n.Annotations[HoldAnnotation]
	record, err := ParseRecord(value)
	return !recorded || err == nil && record.State != Held && !hasUnfinishedRelease(n)
}

// hasAgent reports whether an agent has reported on the node in this boot. The condition
// NetworkHeld is the first thing that an agent writes. Once the host is up again, a condition
// with the reason GoingDown is from the previous boot. It is of this boot if the hold began in
// this boot, or if the leader has observed another report before it.
func (e holdEvaluation) hasAgent(h HoldHistory) bool {
	c := FindCondition(e.node, NetworkHeld)
	if c == nil || c.Reason == AgentMissing || c.Reason == Overdue {
		return false
	}
	return c.Reason != GoingDown || h.HadOtherReport || e.record.BootID == e.facts.BootID
}

// ReportsShutdown reports whether the condition NetworkHeld has the reason GoingDown.
func ReportsShutdown(n *corev1.Node) bool {
	c := FindCondition(n, NetworkHeld)
	return c != nil && c.Reason == GoingDown
}

// withoutAgent returns the evaluation with the agent as its only gate, which is closed. The
// leader observes no other gate.
func (e holdEvaluation) withoutAgent(reason, agent string) holdEvaluation {
	e.gates = []Gate{{Name: "agent", Reason: reason, Missing: agent}}
	return e
}

// reportMissingAgent keeps a node held that has no agent, and writes the condition in the
// agent's place.
func (e holdEvaluation) reportMissingAgent(reason, event, age string, limits HoldLimits) (Decision, *Event) {
	d := e.withoutAgent(reason, fmt.Sprintf(
		"an agent: no agent has reported on this node for %s. To see why: `%s`. %s",
		age, getPodsCommand(limits.Namespace, e.node.Name), releaseAdvice(e.node))).keepHold()
	d.Event = nil
	if ReportsShutdown(e.node) {
		// The condition is from the previous boot. If the record were updated to this boot
		// first, the condition would look like the report of an agent of this boot.
		d.Record, d.Conditions = nil, d.Conditions[:1]
	}
	return d, &Event{Type: corev1.EventTypeWarning, Reason: event, Message: d.Message}
}

func (e holdEvaluation) decideOverdue(limits HoldLimits, agent bool) (Decision, *Event) {
	const kept = ", and --on-stuck-hold=keep keeps it held"
	switch {
	case limits.Release:
		return e.releaseOverdue(limits), nil
	case !agent:
		return e.reportMissingAgent(Overdue, EventOverdue, limits.Hold.String()+kept, limits)
	}
	c := FindCondition(e.node, NetworkHeld) // It exists, because an agent has written it.
	return Decision{}, &Event{Type: corev1.EventTypeWarning, Reason: EventOverdue, Message: fmt.Sprintf(
		"held for more than %s; the agent's last message: %s. To check the agent: `%s`. %s",
		limits.Hold.String()+kept, c.Message, getPodsCommand(limits.Namespace, e.node.Name), releaseAdvice(e.node))}
}

// releaseOverdue releases a node that no other component needs closed, as if there were no gates.
// The record states that the leader did so; a later agent then leaves the node alone in this boot.
func (e holdEvaluation) releaseOverdue(limits HoldLimits) Decision {
	d := e.decideHeld()
	if d.Record.Reason != NetworkReady {
		return d // KeepCordonedAnnotation keeps the cordon.
	}
	d.Record.Reason = Overdue
	d.Message = notHeldMessage(Overdue)
	d.Conditions[0].Message = d.Message
	d.Event = &Event{Type: corev1.EventTypeWarning, Reason: EventGivenUp, Message: fmt.Sprintf(
		"released after %s by --on-stuck-hold=release, although no agent has confirmed that its network works. "+
			"To check the agent: `%s`", limits.Hold, getPodsCommand(limits.Namespace, e.node.Name))}
	return d
}

func getPodsCommand(namespace, node string) string {
	return fmt.Sprintf("kubectl -n %s get pods -o wide --field-selector spec.nodeName=%s", namespace, node)
}

// IsBornHeld reports whether the node has been held since its creation, by the policy and not
// by an agent.
func IsBornHeld(n *corev1.Node) bool {
	record, _ := ParseRecord(n.Annotations[HoldAnnotation])
	return record.State == Held && record.Reason == NewNode
}

// IsInFirstBoot reports whether a node was born held and has not rebooted since. Without a boot in
// the record that is not known.
func IsInFirstBoot(n *corev1.Node) bool {
	record, _ := ParseRecord(n.Annotations[HoldAnnotation])
	return IsBornHeld(n) && cmp.Or(record.FirstBootID, record.BootID) == n.Status.NodeInfo.BootID
}
