package readiness

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/autoscaler"
)

// checkOutcome is the part of a HoldCheck that tables compare.
type checkOutcome struct {
	state    HoldState
	agent    bool
	decision holdOutcome
	// event is the reason of the HoldCheck's event. The decision may have another event.
	event string
}

// withAgent returns the outcome for a node on which an agent has reported.
func (o checkOutcome) withAgent() checkOutcome {
	o.agent = true
	return o
}

func checkOutcomeOf(t *testing.T, check HoldCheck) checkOutcome {
	t.Helper()
	o := checkOutcome{state: check.State, agent: check.AgentSeen}
	if len(check.Decision.Conditions) > 0 {
		o.decision = outcomeOf(t, check.Decision)
	} else {
		require.Nil(t, check.Decision.Record)
		require.Nil(t, check.Decision.Unschedulable)
		require.Nil(t, check.Decision.Event)
	}
	if check.Event != nil {
		require.Equal(t, corev1.EventTypeWarning, check.Event.Type)
		o.event = check.Event.Reason
	}
	return o
}

func TestCheckHold(t *testing.T) {
	const yes, no, unknown = corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown
	const agentLate, holdLate = 2 * time.Minute, 10 * time.Minute
	keep, release := testLimits(), releasingLimits()

	raised := unavailable(HeldByHoldfast)
	bornHeld, byTaint := recorded(Held, thisBoot, NewNode), heldByTaint(holdTaint)
	released, givenUp := recorded(Released, thisBoot, NetworkReady), recorded(Released, thisBoot, Overdue)
	reported := conditioned(NetworkHeld, yes, WaitingForFlannel)
	shutdown := conditioned(NetworkHeld, yes, GoingDown)
	reportedMissing := conditioned(NetworkHeld, yes, AgentMissing)
	keptCordoned, drained := annotated(KeepCordonedAnnotation, ""), tainted("medik8s.io/drain")
	born := func(options ...nodeOption) *corev1.Node {
		return node(append([]nodeOption{bornHeld, booted(thisBoot), cordoned, raised}, options...)...)
	}

	unreadable, cleared := annotated(HoldAnnotation, "held"), available("FlannelIsUp")
	unreachable := conditioned(corev1.NodeReady, unknown, "NodeStatusUnknown")
	bootUnknown := conditioned(NetworkHeld, unknown, BootUnknown)
	bornBefore := recorded(Held, otherBoot, NewNode)
	in := func(options ...nodeOption) *corev1.Node { return node(append(options, booted(thisBoot), cordoned)...) }

	waiting, blocked := checkOutcome{state: HoldWaiting}, checkOutcome{state: HoldBehindOthers}
	missing := checkOutcome{HoldAgentMissing, false, holdOutcome{held: true, reason: AgentMissing}, AgentMissing}
	missingNoted := missing
	missingNoted.decision.record, missingNoted.decision.unavailable = "held NewNode", yes
	overdue := checkOutcome{HoldOverdue, false, holdOutcome{held: true, reason: Overdue}, EventOverdue}
	overdueWithAgent := checkOutcome{HoldOverdue, true, holdOutcome{}, EventOverdue}
	ended := func(o holdOutcome) checkOutcome { return checkOutcome{state: HoldOverdue, decision: o} }
	opened := holdOutcome{"released Overdue", "off", "", false, NotHeld, EventGivenUp}
	untainted := holdOutcome{record: "released Overdue", reason: NotHeld, event: EventGivenUp}
	leftCordoned := holdOutcome{record: "released KeptCordoned", reason: NotHeld, event: EventReleased}
	ending := func(o holdOutcome) checkOutcome { return checkOutcome{state: HoldEnding, decision: o} }
	notHeld := holdOutcome{reason: NotHeld}
	byHand := holdOutcome{record: "overridden EndedByHand", reason: NotHeld, event: EventOverridden}
	byLabel := holdOutcome{"overridden EndedByLabel", "off", "", false, NotHeld, EventOverridden}
	for _, c := range []struct {
		name   string
		node   *corev1.Node
		age    time.Duration
		limits HoldLimits
		want   checkOutcome
	}{
		// Not held by Holdfast.
		{"no record", node(cordoned), time.Hour, release, checkOutcome{}},
		{"unreadable record", node(cordoned, unreadable), time.Hour, release, checkOutcome{}},
		{"unreadable record, reported", node(cordoned, raised, reported, unreadable), time.Hour, release, checkOutcome{}},
		{"released", node(released, booted(thisBoot), cordoned), time.Hour, release, checkOutcome{}},

		// An agent has two minutes.
		{"before the agent timeout", born(), agentLate - 1, release, waiting},
		{"no agent", born(), agentLate, release, missing},
		{"no agent, flannel clears early", node(bornHeld, cordoned, cleared), agentLate, keep, missingNoted},
		{
			"agent missing, flannel clears early", node(bornHeld, cordoned, reportedMissing, cleared),
			agentLate, keep, missingNoted,
		},
		{"agent waits", born(reported), holdLate - 1, release, waiting.withAgent()},
		{"agent waits since the boot before", in(bornBefore, raised, reported), agentLate, release, waiting.withAgent()},
		{"no agent, held after a reboot", in(recorded(Held, thisBoot, Rebooted)), agentLate, release, missing},
		{
			"no agent, condition of the last boot, flannel clears early", in(bornBefore, shutdown, cleared),
			agentLate, release, missing,
		},
		{"condition of the last boot", in(recorded(Held, otherBoot, GoingDown), shutdown), agentLate, keep, missing},
		{"shutdown in progress", in(recorded(Held, thisBoot, GoingDown), shutdown), agentLate, keep, waiting.withAgent()},

		// A hold has ten minutes.
		{"overdue, no agent", born(reportedMissing), holdLate, keep, overdue},
		{"overdue, agent waits", born(reported), holdLate, keep, overdueWithAgent},
		{"given up, no agent", born(), holdLate, release, ended(opened.clearing())},
		{"given up, agent waits", born(reported), holdLate, release, ended(opened.clearing()).withAgent()},
		{"given up, taint mode", node(byTaint, tainted(holdTaint)), holdLate, release, ended(untainted)},
		{"given up, keep-cordoned", born(keptCordoned), holdLate, release, ended(leftCordoned.clearing())},

		// The hold is not the cause.
		{"being deleted", born(deleting), time.Hour, release, blocked},
		{"unreachable kubelet", born(unreachable), time.Hour, release, checkOutcome{state: HoldUnreachable}},
		{"not Ready, no CNI", born(conditioned(corev1.NodeReady, no, "KubeletNotReady")), agentLate, release, missing},

		// Outcomes that need no inspection of the host.
		{"given up, crash", node(givenUp, booted(thisBoot), raised), 0, keep, ending(notHeld.clearing())},
		{"given up, crash, taint mode", node(givenUp, conditioned(NetworkHeld, yes, Overdue)), 0, keep, ending(notHeld)},
		{"release in progress", node(released, reported, raised), agentLate - 1, keep, ending(holdOutcome{}).withAgent()},
		{"release, crash", node(released, reported, raised), agentLate, keep, ending(notHeld.clearing()).withAgent()},
		{"agent without a boot ID", node(released, bootUnknown), time.Hour, release, checkOutcome{agent: true}},
		{"H2: uncordoned", node(bornHeld, raised), agentLate - 1, keep, ending(holdOutcome{})},
		{"H2: uncordoned, no agent", node(bornHeld, raised), agentLate, keep, ending(byHand.clearing())},
		{"label, no agent", born(exempt), agentLate, keep, ending(byLabel.clearing())},
		{"label", born(exempt), agentLate - 1, keep, waiting},
		{"label, drained", born(exempt, drained), agentLate, keep, blocked},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := c.node.DeepCopy()
			require.Equal(t, c.want, checkOutcomeOf(t, CheckHold(c.node, ofAge(c.age), c.limits, noon())))
			require.Equal(t, before, c.node, "CheckHold must not change the Node")
		})
	}
}

// TestShutdownAfterReboot: the host of a node that is held since an earlier boot shuts down again.
// Its record has the earlier boot. The agent counts as seen if the leader has observed that the
// condition was written in this boot. A condition that it found there may be from the shutdown
// before.
func TestShutdownAfterReboot(t *testing.T) {
	for name, record := range map[string]nodeOption{
		"born held":           recorded(Held, otherBoot, NewNode),
		"boot not recorded":   recorded(Held, "", NewNode),
		"held after a reboot": recorded(Held, otherBoot, Rebooted),
		"held at a shutdown":  recorded(Held, otherBoot, GoingDown),
	} {
		t.Run(name, func(t *testing.T) {
			n := node(record, booted(thisBoot), cordoned, conditioned(NetworkHeld, corev1.ConditionTrue, GoingDown))
			for _, hadOtherReport := range []bool{true, false} {
				h := HoldHistory{Age: 2 * time.Minute, HadOtherReport: hadOtherReport}
				check := CheckHold(n, h, testLimits(), noon())
				require.Equal(t, hadOtherReport, check.AgentSeen)
				require.Equal(t, hadOtherReport, check.State == HoldWaiting)
			}
		})
	}
}

// TestOverdueReleaseMarks: the leader removes the marks of the hold, and keeps the stamps.
func TestOverdueReleaseMarks(t *testing.T) {
	held := Record{State: Held, BootID: thisBoot, Reason: GoingDown, Marks: []string{autoscaler.Karpenter}}
	held.Stamps = map[string]Stamp{"StorageReady": {At: "x"}}
	noEtcd := conditioned(etcdMemberCondition, corev1.ConditionFalse, "NoMember")
	n := node(recordedAs(held), annotated(autoscaler.Karpenter, "true"), cordoned, noEtcd)
	d := CheckHold(n, ofAge(time.Hour), releasingLimits(), noon()).Decision
	require.Equal(t, map[string]*string{autoscaler.Karpenter: nil}, d.Annotations)
	require.Empty(t, d.Record.Marks)
	require.Equal(t, held.Stamps, d.Record.Stamps)

	// The leader has labelled the node, because two other nodes list a member there.
	n.Labels[etcdMemberLabel] = "true"
	require.Empty(t, CheckHold(n, ofAge(time.Hour), releasingLimits(), noon()).Decision.Annotations)
}

// TestLeaderKeepsPluginReason: the leader does not know the agent's gates. It records the
// reason that it overwrites, and that reason opens the gate of a later agent.
func TestLeaderKeepsPluginReason(t *testing.T) {
	n := node(recorded(Held, thisBoot, NewNode), booted(thisBoot), cordoned, available("CalicoIsUp"))
	d := CheckHold(n, ofAge(2*time.Minute), testLimits(), noon()).Decision
	require.Equal(t, "CalicoIsUp", d.Record.NetworkUp)
	n = writeAll(n, d)
	require.Equal(t, HeldByHoldfast, FindCondition(n, corev1.NodeNetworkUnavailable).Reason)
	require.Nil(t, CheckHold(n, ofAge(3*time.Minute), testLimits(), noon()).Decision.Record, "recorded once")
	later := Decide(n, readyFacts(), Policy{Force: []string{"condition:NetworkUnavailable"}}, noon())
	require.Equal(t, Released, later.Record.State, later.Message)
}

// TestCheckHoldIsStable: the condition is the same in every check; otherwise every check would
// write it.
func TestCheckHoldIsStable(t *testing.T) {
	bornHeld := recorded(Held, thisBoot, NewNode)
	for name, n := range map[string]*corev1.Node{
		"condition by Holdfast":   node(bornHeld, cordoned, unavailable(HeldByHoldfast)),
		"held by taint":           node(heldByTaint(holdTaint), tainted(holdTaint)),
		"held before this reboot": node(recorded(Held, otherBoot, GoingDown), booted(thisBoot), cordoned),
	} {
		t.Run(name, func(t *testing.T) {
			for _, age := range []time.Duration{2 * time.Minute, 10 * time.Minute} {
				first := CheckHold(n, ofAge(age), testLimits(), noon()).Decision
				require.NotEmpty(t, first.Conditions)
				again := n.DeepCopy()
				again.Status.Conditions = first.Conditions
				second := CheckHold(again, ofAge(age+time.Second), testLimits(), noon()).Decision
				require.Equal(t, first.Conditions[0], second.Conditions[0])
				require.Nil(t, second.Record)
			}
		})
	}
}

func TestCheckHoldMessages(t *testing.T) {
	n := node(recorded(Held, thisBoot, NewNode), cordoned)
	for _, age := range []time.Duration{2 * time.Minute, 10 * time.Minute} {
		check := CheckHold(n, ofAge(age), testLimits(), noon())
		require.Contains(t, check.Decision.Message,
			"kubectl -n holdfast-system get pods -o wide --field-selector spec.nodeName=n1")
		require.Contains(t, check.Decision.Message, ReleaseCommand(n))
		require.Equal(t, check.Decision.Message, check.Event.Message)
	}
	waiting := n.DeepCopy()
	waiting.Status.Conditions = []corev1.NodeCondition{{
		Type: NetworkHeld, Status: corev1.ConditionTrue, Reason: WaitingForCNI, Message: "waiting for the moon",
	}}
	check := CheckHold(waiting, ofAge(10*time.Minute), testLimits(), noon())
	parts := []string{"10m0s", "waiting for the moon", "--on-stuck-hold=keep", ReleaseCommand(waiting), "get pods"}
	for _, part := range parts {
		require.Contains(t, check.Event.Message, part)
	}
}

func TestIsHoldOver(t *testing.T) {
	released := recorded(Released, thisBoot, NetworkReady)
	for name, c := range map[string]struct {
		node *corev1.Node
		over bool
	}{
		"no record":             {node(), true},
		"released":              {node(released, conditioned(NetworkHeld, corev1.ConditionFalse, NotHeld)), true},
		"held":                  {node(recorded(Held, thisBoot, NewNode)), false},
		"unreadable":            {node(annotated(HoldAnnotation, "held")), false},
		"first half, condition": {node(released, unavailable(HeldByHoldfast)), false},
		"first half, report":    {node(released, conditioned(NetworkHeld, corev1.ConditionTrue, WaitingForCNI)), false},
	} {
		require.Equal(t, c.over, IsHoldOver(c.node), name)
	}
}

func TestIsBornHeld(t *testing.T) {
	require.True(t, IsBornHeld(node(recorded(Held, thisBoot, NewNode))))
	require.False(t, IsBornHeld(node(recorded(Held, thisBoot, Rebooted))))
	require.False(t, IsBornHeld(node(recorded(Released, thisBoot, NewNode))))
	require.False(t, IsBornHeld(node()))
}

// TestIsInFirstBoot: in each boot flannel clears the condition, and the record moves to that boot.
func TestIsInFirstBoot(t *testing.T) {
	for name, boot := range map[string]string{"boot known": thisBoot, "boot unknown": ""} {
		t.Run(name, func(t *testing.T) {
			n := node(recorded(Held, boot, NewNode), cordoned)
			for i, boot := range []string{thisBoot, "the-next", "the-last"} {
				booted(boot)(n)
				setUnavailable(n, corev1.ConditionFalse, "FlannelIsUp", noon().Add(time.Duration(i)*time.Hour))
				facts := readyFactsWith(func(f *Facts) { f.BootID, f.Subnet.Presence = boot, Absent })
				n = writeAll(n, Decide(n, facts, Policy{}, noon()))
				require.Contains(t, n.Annotations[HoldAnnotation], `"bootID":"`+boot+`"`)
				require.Equal(t, boot == thisBoot, IsInFirstBoot(n))
			}
		})
	}
	in := booted(thisBoot)
	require.False(t, IsInFirstBoot(node(recorded(Held, "", NewNode), in)), "its boot is not known")
	require.False(t, IsInFirstBoot(node(recorded(Held, thisBoot, Rebooted), in)), "not born held")
	require.False(t, IsInFirstBoot(node(in)))
}
