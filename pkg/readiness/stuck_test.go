package readiness

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

func patience() Patience {
	return Patience{Agent: 2 * time.Minute, Hold: 10 * time.Minute, Namespace: "holdfast-system"}
}

func booted(boot string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Status.NodeInfo.BootID = boot }
}

// attended is the part of an Attention that the table compares.
type attended struct {
	standing Standing
	agent    bool
	record   string
	cordon   string
	// reason and unavailable are those of the conditions to be written.
	reason      string
	unavailable corev1.ConditionStatus
	event, told string
}

func attentionOf(t *testing.T, a Attention) attended {
	t.Helper()
	got := attended{standing: a.Standing, agent: a.Agent}
	if len(a.Decision.Conditions) > 0 {
		o := outcomeOf(t, a.Decision)
		got.record, got.cordon, got.reason, got.unavailable, got.event = o.record, o.cordon, o.reason, o.unavailable, o.event
	} else {
		require.Nil(t, a.Decision.Record)
		require.Nil(t, a.Decision.Unschedulable)
		require.Nil(t, a.Decision.Event)
	}
	if a.Event != nil {
		require.Equal(t, corev1.EventTypeWarning, a.Event.Type)
		got.told = a.Event.Reason
	}
	return got
}

func TestAttend(t *testing.T) {
	const yes, no, unknown = corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown
	const unavailable = corev1.NodeNetworkUnavailable
	const agentLate, holdLate = 2 * time.Minute, 10 * time.Minute
	ours := conditioned(unavailable, yes, HeldByHoldfast)
	born := func(changes ...func(*corev1.Node)) *corev1.Node {
		return node(append([]func(*corev1.Node){recorded(Held, thisBoot, NewNode), booted(thisBoot), cordoned, ours}, changes...)...)
	}
	looked := conditioned(NetworkHeld, yes, WaitingForFlannel)
	release := func(p *Patience) { p.Release = true }
	keep := func(*Patience) {}
	for name, c := range map[string]struct {
		node   *corev1.Node
		age    time.Duration
		change func(*Patience)
		want   attended
	}{
		// Nothing of ours.
		"no record":                  {node(cordoned), time.Hour, release, attended{}},
		"an unreadable record":       {node(cordoned, annotated(HoldAnnotation, "held")), time.Hour, release, attended{}},
		"released":                   {node(recorded(Released, thisBoot, NetworkReady), booted(thisBoot), cordoned), time.Hour, release, attended{}},
		"overridden, cordoned since": {node(recorded(Overridden, thisBoot, EndedByHand), cordoned), time.Hour, release, attended{}},

		// An agent has two minutes.
		"just born":                      {born(), 0, release, attended{standing: Waiting}},
		"a moment before":                {born(), agentLate - 1, release, attended{standing: Waiting}},
		"no agent":                       {born(), agentLate, release, attended{standing: Unattended, reason: AgentMissing, told: AgentMissing}},
		"no agent, said before":          {born(conditioned(NetworkHeld, yes, AgentMissing)), agentLate, keep, attended{standing: Unattended, reason: AgentMissing, told: AgentMissing}},
		"no agent, flannel clears early": {node(recorded(Held, thisBoot, NewNode), cordoned, conditioned(unavailable, no, "FlannelIsUp")), agentLate, keep, attended{standing: Unattended, record: "held NewNode", reason: AgentMissing, unavailable: yes, told: AgentMissing}},
		"no agent, Cilium":               {node(recorded(Held, thisBoot, NewNode), cordoned, conditioned(unavailable, no, CiliumIsUp)), agentLate, keep, attended{standing: Unattended, reason: AgentMissing, told: AgentMissing}},
		"no agent, a route controller":   {node(recorded(Held, thisBoot, NewNode), cordoned, conditioned(unavailable, no, RouteCreated)), agentLate, keep, attended{standing: Unattended, reason: AgentMissing, told: AgentMissing}},
		"no agent, taint mode":           {node(heldByTaint("holdfast.dev/held"), tainted("holdfast.dev/held")), agentLate, keep, attended{standing: Unattended, reason: AgentMissing, told: AgentMissing}},
		"an agent waits":                 {born(looked), holdLate - 1, release, attended{standing: Waiting, agent: true}},
		"what was said on the way down is of the last boot": {
			node(recorded(Held, otherBoot, GoingDown), booted(thisBoot), cordoned, conditioned(NetworkHeld, yes, GoingDown)), agentLate, keep,
			attended{standing: Unattended, reason: AgentMissing, told: AgentMissing},
		},
		"still on the way down": {
			node(recorded(Held, thisBoot, GoingDown), booted(thisBoot), cordoned, conditioned(NetworkHeld, yes, GoingDown)), agentLate, keep,
			attended{standing: Waiting, agent: true},
		},

		// A hold has ten.
		"overdue without an agent":       {born(conditioned(NetworkHeld, yes, AgentMissing)), holdLate, keep, attended{standing: Stuck, reason: Overdue, told: EventOverdue}},
		"overdue, agent waits":           {born(looked), holdLate, keep, attended{standing: Stuck, agent: true, told: EventOverdue}},
		"given up without an agent":      {born(), holdLate, release, attended{standing: Stuck, record: "released Overdue", cordon: "off", reason: NotHeld, unavailable: no, event: EventGivenUp}},
		"given up, agent waits":          {born(looked), holdLate, release, attended{standing: Stuck, agent: true, record: "released Overdue", cordon: "off", reason: NotHeld, unavailable: no, event: EventGivenUp}},
		"given up, condition never ours": {node(recorded(Held, thisBoot, Rebooted), cordoned), holdLate, release, attended{standing: Stuck, record: "released Overdue", cordon: "off", reason: NotHeld, event: EventGivenUp}},
		"given up, taint mode":           {node(heldByTaint("holdfast.dev/held"), tainted("holdfast.dev/held")), holdLate, release, attended{standing: Stuck, record: "released Overdue", reason: NotHeld, event: EventGivenUp}},
		"given up but keep-cordoned":     {born(annotated(KeepCordonedAnnotation, "")), holdLate, release, attended{standing: Stuck, record: "released KeptCordoned", reason: NotHeld, unavailable: no, event: EventReleased}},

		// Not the hold's fault.
		"cluster-autoscaler deletes it": {born(tainted("ToBeDeletedByClusterAutoscaler")), time.Hour, release, attended{standing: BehindOthers}},
		"being deleted":                 {born(deleting), time.Hour, release, attended{standing: BehindOthers}},
		"the kubelet is silent":         {born(conditioned(corev1.NodeReady, unknown, "NodeStatusUnknown")), time.Hour, release, attended{standing: Unreachable}},
		"not ready for want of a CNI":   {born(conditioned(corev1.NodeReady, no, "KubeletNotReady")), agentLate, release, attended{standing: Unattended, reason: AgentMissing, told: AgentMissing}},

		// What an agent would do without looking at the host.
		"released by the leader, crash":         {node(recorded(Released, thisBoot, Overdue), booted(thisBoot), ours), 0, keep, attended{standing: Ending, reason: NotHeld, unavailable: no}},
		"released by the leader, crash, taint":  {node(recorded(Released, thisBoot, Overdue), conditioned(NetworkHeld, yes, Overdue)), 0, keep, attended{standing: Ending, reason: NotHeld}},
		"an agent is at it":                     {node(recorded(Released, thisBoot, NetworkReady), looked, ours), agentLate - 1, keep, attended{standing: Ending, agent: true}},
		"an agent crashed at it":                {node(recorded(Released, thisBoot, NetworkReady), looked, ours), agentLate, keep, attended{standing: Ending, agent: true, reason: NotHeld, unavailable: no}},
		"an agent crashed at it, not fresh":     {node(recorded(Released, thisBoot, NetworkReady), looked), agentLate, keep, attended{standing: Ending, agent: true, reason: NotHeld}},
		"an agent crashed at an override":       {node(recorded(Overridden, thisBoot, EndedByLabel), looked, ours, exempt), agentLate, keep, attended{standing: Ending, agent: true, reason: NotHeld, unavailable: no}},
		"an agent that knows no boot":           {node(recorded(Released, thisBoot, NetworkReady), conditioned(NetworkHeld, unknown, BootUnknown)), time.Hour, release, attended{agent: true}},
		"H2: uncordoned, the agent's turn":      {node(recorded(Held, thisBoot, NewNode), ours), agentLate - 1, keep, attended{standing: Ending}},
		"H2: uncordoned, and no agent":          {node(recorded(Held, thisBoot, NewNode), ours), agentLate, keep, attended{standing: Ending, record: "overridden EndedByHand", reason: NotHeld, unavailable: no, event: EventOverridden}},
		"a label ends it, and no agent":         {born(exempt), agentLate, keep, attended{standing: Ending, record: "overridden EndedByLabel", cordon: "off", reason: NotHeld, unavailable: no, event: EventOverridden}},
		"a label ends it, the agent's turn":     {born(exempt), agentLate - 1, keep, attended{standing: Waiting}},
		"a label ends it, but somebody drains":  {born(exempt, tainted("medik8s.io/drain")), agentLate, keep, attended{standing: BehindOthers}},
		"uncordoned by who deletes the machine": {node(recorded(Held, thisBoot, NewNode), ours, deleting), agentLate, keep, attended{standing: Ending, record: "overridden EndedByHand", reason: NotHeld, unavailable: no, event: EventOverridden}},
	} {
		t.Run(name, func(t *testing.T) {
			p := patience()
			c.change(&p)
			before := c.node.DeepCopy()
			require.Equal(t, c.want, attentionOf(t, Attend(c.node, c.age, p, noon())))
			require.Equal(t, before, c.node, "the Node is only read")
		})
	}
}

func heldByTaint(key string) func(*corev1.Node) {
	return annotated(HoldAnnotation, Record{State: Held, BootID: thisBoot, Reason: NewNode, Taint: key}.Format())
}

// What the leader has given up an agent that comes later leaves alone in this boot, and only in this one.
func TestAgentRespectsWhatWasGivenUp(t *testing.T) {
	p := patience()
	p.Release = true
	for name, reported := range map[string]string{"the kubelet's boot": thisBoot, "no boot reported, the record's": ""} {
		t.Run(name, func(t *testing.T) {
			d := Attend(node(recorded(Held, thisBoot, NewNode), booted(reported), cordoned), time.Hour, p, noon()).Decision
			after := node(annotated(HoldAnnotation, d.Record.Format()))
			later := Decide(after, closed(), Policy{}, noon())
			require.Nil(t, later.Record)
			require.False(t, later.Held)
			require.Equal(t, d.Message, later.Message, "the condition is not written again")
			rebooted := closed()
			rebooted.BootID = otherBoot
			require.True(t, Decide(after, rebooted, Policy{}, noon()).Held)
		})
	}
}

// What the hold has set for autoscalers goes with it, and what was noted of conditions stays for the next boot.
func TestGivenUpLikeAnyRelease(t *testing.T) {
	p := patience()
	p.Release = true
	mark := "karpenter.sh/do-not-disrupt"
	held := Record{State: Held, BootID: thisBoot, Reason: GoingDown, Marks: []string{mark}, Stamps: map[string]Stamp{"StorageReady": {At: "x"}}}
	noEtcd := conditioned(etcdMemberCondition, corev1.ConditionFalse, "NoMember")
	d := Attend(node(holding(held), annotated(mark, "true"), cordoned, noEtcd), time.Hour, p, noon()).Decision
	require.Equal(t, map[string]*string{mark: nil}, d.Annotations)
	require.Empty(t, d.Record.Marks)
	require.Equal(t, held.Stamps, d.Record.Stamps)
}

// What was noted of conditions stays for the next boot however the leader ends a hold.
func TestLeaderForgetsNoStamp(t *testing.T) {
	noted := map[string]Stamp{"StorageReady": {At: "x", BootID: otherBoot}}
	hold := holding(Record{State: Held, BootID: thisBoot, Reason: Rebooted, Stamps: noted})
	p := patience()
	p.Release = true
	for name, n := range map[string]*corev1.Node{
		"given up":           node(hold, cordoned),
		"opened by somebody": node(hold),
		"ended by the label": node(hold, cordoned, exempt),
		"left cordoned":      node(hold, cordoned, annotated(KeepCordonedAnnotation, "")),
	} {
		t.Run(name, func(t *testing.T) {
			d := Attend(n, time.Hour, p, noon()).Decision
			require.NotEqual(t, Held, d.Record.State)
			require.Equal(t, noted, d.Record.Stamps)
		})
	}
}

// The leader does not know the agent's gates: what it writes over is noted, and opens the gate of an agent that comes later.
func TestLeaderForgetsNoWord(t *testing.T) {
	n := node(recorded(Held, thisBoot, NewNode), booted(thisBoot), cordoned, conditioned(corev1.NodeNetworkUnavailable, corev1.ConditionFalse, "CalicoIsUp"))
	d := Attend(n, 2*time.Minute, patience(), noon()).Decision
	require.Equal(t, "CalicoIsUp", d.Record.NetworkUp)
	_, n = write(n, d, func(*corev1.Node) {})
	require.Equal(t, HeldByHoldfast, condition(n, corev1.NodeNetworkUnavailable).Reason)
	require.Nil(t, Attend(n, 3*time.Minute, patience(), noon()).Decision.Record, "noted once")
	later := Decide(n, ready(), Policy{Force: []string{"condition:NetworkUnavailable"}}, noon())
	require.Equal(t, Released, later.Record.State, later.Message)
}

// What is said in a condition is the same in every round, or it would be written in every round.
func TestLeaderSaysItOnce(t *testing.T) {
	for name, n := range map[string]*corev1.Node{
		"the condition is ours":   node(recorded(Held, thisBoot, NewNode), cordoned, conditioned(corev1.NodeNetworkUnavailable, corev1.ConditionTrue, HeldByHoldfast)),
		"flannel has cleared it":  node(recorded(Held, thisBoot, NewNode), cordoned, conditioned(corev1.NodeNetworkUnavailable, corev1.ConditionFalse, "FlannelIsUp")),
		"it was never there":      node(recorded(Held, thisBoot, NewNode), cordoned),
		"Cilium writes it":        node(recorded(Held, thisBoot, NewNode), cordoned, conditioned(corev1.NodeNetworkUnavailable, corev1.ConditionFalse, CiliumIsUp)),
		"held by taint":           node(heldByTaint("holdfast.dev/held"), tainted("holdfast.dev/held")),
		"held before this reboot": node(recorded(Held, otherBoot, GoingDown), booted(thisBoot), cordoned),
	} {
		t.Run(name, func(t *testing.T) {
			for _, age := range []time.Duration{2 * time.Minute, 10 * time.Minute} {
				first := Attend(n, age, patience(), noon()).Decision
				require.NotEmpty(t, first.Conditions)
				again := n.DeepCopy()
				again.Status.Conditions = first.Conditions
				second := Attend(again, age+time.Second, patience(), noon()).Decision
				require.Equal(t, first.Conditions[0], second.Conditions[0])
				require.Nil(t, second.Record)
			}
		})
	}
}

func TestLeaderSaysWhatToDo(t *testing.T) {
	n := node(recorded(Held, thisBoot, NewNode), cordoned)
	for _, age := range []time.Duration{2 * time.Minute, 10 * time.Minute} {
		a := Attend(n, age, patience(), noon())
		require.Contains(t, a.Decision.Message, "kubectl -n holdfast-system get pods -o wide --field-selector spec.nodeName=n1")
		require.Contains(t, a.Decision.Message, ManualRelease(n))
		require.Equal(t, a.Decision.Message, a.Event.Message)
	}
	waiting := n.DeepCopy()
	waiting.Status.Conditions = []corev1.NodeCondition{{Type: NetworkHeld, Status: corev1.ConditionTrue, Reason: WaitingForCNI, Message: "waiting for the moon"}}
	a := Attend(waiting, 10*time.Minute, patience(), noon())
	for _, part := range []string{"10m0s", "waiting for the moon", "--on-stuck-hold=keep", ManualRelease(waiting), "get pods"} {
		require.Contains(t, a.Event.Message, part)
	}
}

func TestManualRelease(t *testing.T) {
	const status = " && kubectl patch node n1 --subresource=status "
	const yes, no = corev1.ConditionTrue, corev1.ConditionFalse
	unavailable := corev1.NodeNetworkUnavailable
	born := recorded(Held, thisBoot, NewNode)
	for name, c := range map[string]struct {
		node   *corev1.Node
		begins string
		status bool
	}{
		"born held":                        {node(born, cordoned, conditioned(unavailable, yes, HeldByHoldfast)), "kubectl uncordon n1", true},
		"born held, cleared early":         {node(born, cordoned, conditioned(unavailable, no, "FlannelIsUp")), "kubectl uncordon n1", true},
		"the condition is another's":       {node(born, cordoned, conditioned(unavailable, yes, "NoRouteCreated")), "kubectl uncordon n1", false},
		"held after a reboot":              {node(recorded(Held, thisBoot, Rebooted), cordoned), "kubectl uncordon n1", false},
		"taint":                            {node(heldByTaint("readiness.k8s.io/x"), tainted("readiness.k8s.io/x")), "kubectl taint node n1 readiness.k8s.io/x:NoSchedule-", false},
		"a taint that is nowhere is a lie": {node(heldByTaint("x; reboot")), "kubectl describe node n1", false},
	} {
		t.Run(name, func(t *testing.T) {
			got := ManualRelease(c.node)
			require.True(t, strings.HasPrefix(got, c.begins), got)
			require.Equal(t, c.status, strings.HasPrefix(got, c.begins+status), got)
			if !c.status {
				require.Equal(t, c.begins, got)
			}
		})
	}
}

func TestBornHeld(t *testing.T) {
	require.True(t, BornHeld(node(recorded(Held, thisBoot, NewNode))))
	require.False(t, BornHeld(node(recorded(Held, thisBoot, Rebooted))))
	require.False(t, BornHeld(node(recorded(Released, thisBoot, NewNode))))
	require.False(t, BornHeld(node()))
}
