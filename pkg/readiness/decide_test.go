package readiness

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/autoscaler"
)

func TestDecide(t *testing.T) {
	raised := unavailable(HeldByHoldfast)
	bornHeld := recorded(Held, thisBoot, NewNode)
	released := recorded(Released, thisBoot, NetworkReady)
	labelled := recorded(Overridden, thisBoot, EndedByLabel)
	before := recorded(Released, otherBoot, NetworkReady)
	keptBefore := recorded(Released, otherBoot, KeptCordoned)
	byKubectl := owned("kubectl", "", `{"f:spec":{"f:unschedulable":{}}}`)
	bootless := recorded(Released, "", NetworkReady)
	mismatched := recorded(Released, thisBoot, GatesMismatch)
	mismatchedBefore := recorded(Released, otherBoot, GatesMismatch)
	isReady := conditioned(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady")
	isNotReady := conditioned(corev1.NodeReady, corev1.ConditionFalse, "KubeletNotReady")
	kept := annotated(KeepCordonedAnnotation, "")
	rebootedHold := recorded(Held, thisBoot, Rebooted)
	reportsHold := conditioned(NetworkHeld, corev1.ConditionTrue, WaitingForFlannel)
	reportsNotHeld := conditioned(NetworkHeld, corev1.ConditionFalse, NotHeld)

	open, closed, noBoot := readyFacts(), closedFacts(), bootlessFacts()
	nothing := Facts{BootID: thisBoot}
	byDefault, unrecorded := Policy{}, Policy{HoldUnrecorded: true}

	notHeld, bootUnknown := holdOutcome{reason: NotHeld}, holdOutcome{reason: BootUnknown}
	stillHeld := holdOutcome{held: true, reason: BootUnknown}
	firstSeen := holdOutcome{record: "released FirstSeen", reason: NotHeld}
	isExempt := holdOutcome{record: "released Exempt", reason: NotHeld}
	networkReady := holdOutcome{record: "released NetworkReady", reason: NotHeld}
	stillKept := holdOutcome{record: "released KeptCordoned", reason: NotHeld}
	mismatch := holdOutcome{record: "released GatesDoNotFit", reason: GatesMismatch, event: EventGatesMismatch}
	stillMismatch := holdOutcome{reason: GatesMismatch}
	waiting := holdOutcome{held: true, reason: WaitingForFlannel}
	waitingForCNI := holdOutcome{held: true, reason: WaitingForCNI}
	heldAgain := holdOutcome{held: true, reason: WaitingForFlannel, event: EventHeld}
	leftCordoned := holdOutcome{record: "released KeptCordoned", reason: NotHeld, event: EventReleased}
	broken := annotated(HoldAnnotation, "held")
	raising := holdOutcome{held: true, reason: WaitingForFlannel, unavailable: corev1.ConditionTrue}
	noted := holdOutcome{record: "held NewNode", held: true, reason: WaitingForFlannel, unavailable: corev1.ConditionTrue}
	firstHold := holdOutcome{"held NotReadyYet", "on", corev1.ConditionTrue, true, WaitingForFlannel, EventHeld}
	firstHoldAgain := holdOutcome{"held NotReadyYet", "on", "", true, WaitingForFlannel, EventHeld}
	rebooted := holdOutcome{"held Rebooted", "on", "", true, WaitingForFlannel, EventHeld}
	opened := holdOutcome{"released NetworkReady", "off", "", false, NotHeld, EventReleased}
	byLabel := holdOutcome{"overridden EndedByLabel", "off", "", false, NotHeld, EventOverridden}
	byHand := holdOutcome{record: "overridden EndedByHand", reason: NotHeld, event: EventOverridden}
	others := holdOutcome{held: true, reason: WaitingForOthers}
	cordonedByOthers := holdOutcome{reason: CordonedByOthers}
	pressedSince := func(later time.Duration) *corev1.Node {
		n := node(kubeletSince(11 * time.Second))
		FindCondition(n, corev1.NodeMemoryPressure).LastTransitionTime.Time = noon().Add(later)
		return n
	}
	kubeletGone := conditioned(corev1.NodeReady, corev1.ConditionUnknown, "NodeStatusUnknown")
	for _, c := range []struct {
		name   string
		node   *corev1.Node
		facts  Facts
		policy Policy
		want   holdOutcome
	}{
		// A node that is older than Holdfast.
		{"old node, serving", node(), open, byDefault, firstSeen},
		{"old node, gates closed", node(), closed, byDefault, firstSeen},
		{"old node, cordoned", node(cordoned), open, byDefault, firstSeen},
		{"old node, exempt", node(exempt), closed, unrecorded, isExempt},
		{"unrecorded, not Ready, policy holds", node(isNotReady), closed, unrecorded, firstHold},
		{"H17: unrecorded, was Ready, policy holds", node(kubeletSince(11 * time.Second)), closed, unrecorded, firstSeen},
		{"unrecorded, registered slowly", node(kubeletSince(10 * time.Second)), closed, unrecorded, firstHold},
		{"unrecorded, pressure since", pressedSince(time.Second), closed, unrecorded, firstHold},
		{"unrecorded, Unknown", node(kubeletGone), closed, unrecorded, firstHold},
		{"unrecorded, cordoned, policy holds", node(cordoned), closed, unrecorded, firstSeen},

		// A node that works without what the gates require.
		{"Ready, gates closed", node(isReady), closed, byDefault, mismatch},
		{"Ready, gates open", node(isReady), open, byDefault, firstSeen},
		{"gates mismatch, next decision", node(isReady, mismatched), closed, byDefault, stillMismatch},
		{"gates mismatch, gates open", node(isReady, mismatched), open, byDefault, networkReady},
		{"gates mismatch, rebooted, gates open", node(mismatchedBefore), open, byDefault, networkReady},

		// Held.
		{"born held, first decision", node(bornHeld, cordoned, raised), closed, byDefault, waiting},
		{"held, nothing could be checked", node(bornHeld, cordoned, raised), nothing, byDefault, waitingForCNI},
		{"H4: flannel clears early", node(bornHeld, cordoned, available("FlannelIsUp")), closed, byDefault, noted},
		{"born held without the condition", node(bornHeld, cordoned), closed, byDefault, raising},
		{"H5: Cilium's condition is left", node(bornHeld, cordoned, available(CiliumIsUp)), closed, byDefault, waiting},
		{"held after a reboot, condition left", node(rebootedHold, cordoned, reportsNotHeld), closed, byDefault, heldAgain},
		{"held after a reboot, reported", node(rebootedHold, cordoned, reportsHold), closed, byDefault, waiting},

		// Released.
		{"all open", node(bornHeld, cordoned, raised), open, byDefault, opened.clearing()},
		{"held before a reboot, open", node(recorded(Held, otherBoot, Rebooted), cordoned), open, byDefault, opened},
		{"old boot ID from the kubelet", node(bornHeld, cordoned, booted(otherBoot)), open, byDefault, opened},
		{"exempted while held", node(bornHeld, cordoned, raised, exempt), closed, byDefault, byLabel.clearing()},
		{"keep-cordoned", node(bornHeld, cordoned, raised, kept), open, byDefault, leftCordoned.clearing()},
		{"kept, rebooted", node(keptBefore, cordoned, kept), open, byDefault, stillKept},
		{"kept, rebooted, exempt", node(keptBefore, cordoned, exempt), closed, byDefault, stillKept},
		{"kept, rebooted, gates closed", node(keptBefore, cordoned, kept), closed, byDefault, cordonedByOthers},
		{"kept, rebooted, cordoned again", node(keptBefore, cordoned, byKubectl), open, byDefault, networkReady},

		// After a crash between the two writes of a hold.
		{"crash of the first hold", node(raised, reportsHold), closed, unrecorded, firstHoldAgain},

		// After a crash between the two writes of a release.
		{"crash", node(released, raised), open, byDefault, notHeld.clearing()},
		{"crash, no boot ID", node(released, raised), Facts{}, byDefault, bootUnknown.clearing()},
		{"crash of an override, no boot ID", node(labelled, raised), Facts{}, byDefault, bootUnknown.clearing()},
		{"crash, rebooted, gates closed", node(before, raised), closed, byDefault, rebooted.clearing()},

		// Decisions of other clients.
		{"H2: uncordoned while held", node(bornHeld, raised), closed, byDefault, byHand.clearing()},
		{"uncordoned just before release", node(bornHeld, raised), open, byDefault, byHand.clearing()},
		{"being deleted", node(bornHeld, cordoned, raised, deleting), open, byDefault, others.clearing()},
		{"drained by medik8s", node(bornHeld, cordoned, tainted("medik8s.io/drain")), open, byDefault, others},
		{"drained, exempted", node(bornHeld, cordoned, exempt, tainted("medik8s.io/drain")), closed, byDefault, others},

		// Once for each boot.
		{"agent restarts", node(released), closed, byDefault, notHeld},
		{"agent restarts, cordoned", node(released, cordoned), open, byDefault, notHeld},
		{"H7: rebooted, gates closed", node(before), closed, byDefault, rebooted},
		{"rebooted, gates open", node(before), open, byDefault, networkReady},
		{"H7: rebooted, cordoned by another", node(before, cordoned), closed, byDefault, cordonedByOthers},
		{"rebooted, exempt", node(before, exempt), closed, byDefault, isExempt},
		{"rebooted, being deleted", node(before, deleting), closed, byDefault, notHeld},
		{"no boot ID in the record", node(bootless), closed, byDefault, firstSeen},

		// Unreadable input.
		{"no boot ID, held", node(bornHeld, cordoned, raised), noBoot, byDefault, stillHeld},
		{"no boot ID, released", node(before), noBoot, byDefault, bootUnknown},
		{"no boot ID, no record", node(raised), noBoot, byDefault, bootUnknown},
		{"unreadable record", node(cordoned, raised, broken), open, byDefault, holdOutcome{reason: RecordUnreadable}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := c.node.DeepCopy()
			d := Decide(c.node, c.facts, c.policy, noon())
			require.Equal(t, c.want, outcomeOf(t, d), d.Message)
			require.Empty(t, d.AddTaints)
			require.Equal(t, before, c.node, "Decide must not change the Node")
			if d.Record != nil && c.facts.BootID != "" {
				require.Equal(t, c.facts.BootID, d.Record.BootID)
			}
		})
	}
}

func TestGatesMismatchMessage(t *testing.T) {
	n := node(conditioned(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady"))
	d := Decide(n, closedFacts(), Policy{}, noon())
	require.Contains(t, d.Message, "/run/flannel/subnet.env")
	require.Contains(t, d.Message, "--cni-conf-dir")
	require.Equal(t, d.Message, d.Event.Message)
	require.Equal(t, corev1.EventTypeWarning, d.Event.Type)
}

func TestMessages(t *testing.T) {
	both := readyFactsWith(func(f *Facts) { f.Conflist.Plugins[2].Executable = Absent; f.Subnet.Presence = Absent })
	d := Decide(node(recorded(Held, thisBoot, NewNode), cordoned), both, Policy{}, noon())
	require.Contains(t, d.Message, "portmap is missing")
	require.Contains(t, d.Message, "/run/flannel/subnet.env")
	require.Equal(t, WaitingForCNI, d.Reason, "the first closed gate")
	require.Len(t, d.Gates, 2)

	exempted := node(recorded(Held, thisBoot, NewNode), cordoned, exempt, tainted("medik8s.io/drain"))
	require.Contains(t, Decide(exempted, both, Policy{}, noon()).Message, "the hold is over, but the node is not released")
	require.Contains(t, Decide(exempted, readyFacts(), Policy{}, noon()).Message, "the network is ready, but the node")

	d = Decide(node(recorded(Held, thisBoot, NewNode)), closedFacts(), Policy{}, noon())
	require.Contains(t, d.Event.Message, "/run/flannel/subnet.env")
	require.Equal(t, corev1.EventTypeWarning, d.Event.Type)
	d = Decide(node(recorded(Held, thisBoot, NewNode)), readyFacts(), Policy{}, noon())
	require.Equal(t, d.Message, d.Event.Message, "nothing is missing")

	noConflist := readyFactsWith(func(f *Facts) { f.Conflist.Presence, f.Conflist.Plugins = Absent, nil })
	for missing, facts := range map[string]Facts{
		"flannel's subnet file /run/flannel/subnet.env": closedFacts(),
		"a CNI configuration in /etc/cni/net.d":         noConflist,
	} {
		d = Decide(node(recorded(Held, thisBoot, NewNode), cordoned), facts, Policy{}, noon())
		require.Equal(t, "waiting for "+missing, d.Message)
	}
}

// TestUnreadableRecord checks that the message contains every command that is needed.
func TestUnreadableRecord(t *testing.T) {
	const removeRecord, uncordon = "kubectl annotate node n1 holdfast.dev/hold-", "kubectl uncordon n1"
	const removeMarks = "kubectl annotate node n1 atlassian.com/no-delete- karpenter.sh/do-not-disrupt-"
	const untaint = "kubectl taint node n1 readiness.k8s.io/holdfast:NoSchedule-"
	broken, foreignMark := annotated(HoldAnnotation, "held"), annotated(autoscaler.CastAI, "yes")
	escalatorMark := annotated(autoscaler.Escalator, autoscalerAnnotations()[autoscaler.Escalator])
	karpenterMark := annotated(autoscaler.Karpenter, "true")
	ofMember := annotated(etcdMarksAnnotation, autoscaler.Karpenter)
	guarded := node(broken, cordoned, karpenterMark, ofMember)
	byCordon, byTaint := Policy{}, Policy{TaintKey: holdTaint}
	for name, c := range map[string]struct {
		n      *corev1.Node
		policy Policy
		want   []string
	}{
		"no marks": {node(broken, cordoned), byCordon, []string{removeRecord, uncordon}},
		"marks": {
			node(broken, cordoned, escalatorMark, karpenterMark, foreignMark), byCordon,
			[]string{removeRecord, removeMarks, uncordon},
		},
		"marks of a member":      {guarded, byCordon, []string{removeRecord, uncordon}},
		"taint":                  {node(broken, tainted(holdTaint)), byTaint, []string{removeRecord, untaint}},
		"taint policy, no taint": {node(broken, cordoned), byTaint, []string{removeRecord, uncordon}},
	} {
		t.Run(name, func(t *testing.T) {
			d := Decide(c.n, readyFacts(), c.policy, noon())
			var commands []string
			for i, part := range strings.Split(d.Message, "`") {
				if i%2 == 1 {
					commands = append(commands, part)
				}
			}
			require.Equal(t, c.want, commands)
			require.Nil(t, d.Record)
			require.Empty(t, d.Annotations)
		})
	}
}

// A hold by taint ends with an annotation that asks to keep the node closed. The taint stays, also
// under other flags and through later holds. When the annotation is gone and the gates are open,
// it is removed.
func TestKeptTaint(t *testing.T) {
	in := func(boot string, f Facts) Facts {
		f.BootID = boot
		return f
	}
	staysUp := readyFactsWith(func(f *Facts) { f.StaysUp, f.SawShutdown = true, true })
	histories := map[string][]Facts{
		"open gates":            {in("the-next", readyFacts())},
		"closed gates":          {in("the-next", closedFacts()), in("the-next", readyFacts())},
		"gates closed till end": {in("the-next", closedFacts())},
		"shutdown":              {shutdownFacts(), in("the-next", readyFacts())},
		"cancelled shutdown":    {shutdownFacts(), staysUp},
	}
	for flags, later := range map[string]Policy{
		"same policy": {TaintKey: holdTaint}, "cordon": {}, "another taint": {TaintKey: otherTaint},
	} {
		for name, history := range histories {
			t.Run(flags+", "+name, func(t *testing.T) {
				n := node(heldByTaint(holdTaint), tainted(holdTaint), annotated(KeepCordonedAnnotation, ""))
				decide := func(f Facts, p Policy) {
					for range 3 {
						n = writeAll(n, Decide(n, f, p, noon()))
					}
				}
				decide(readyFacts(), Policy{TaintKey: holdTaint})
				require.Contains(t, n.Annotations[HoldAnnotation], KeptCordoned)
				for _, facts := range history {
					decide(facts, later)
					require.True(t, hasTaint(n, holdTaint))
				}
				delete(n.Annotations, KeepCordonedAnnotation)
				last := history[len(history)-1]
				decide(last, later)
				if last.Subnet.Presence == Absent {
					require.NotEmpty(t, n.Spec.Taints, "the gates count")
				}
				decide(in(last.BootID, readyFacts()), later)
				require.Empty(t, n.Spec.Taints)
				require.False(t, n.Spec.Unschedulable)
				require.NotContains(t, n.Annotations[HoldAnnotation], holdTaint)
			})
		}
	}
}
