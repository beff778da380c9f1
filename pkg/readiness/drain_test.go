package readiness

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// drainedHold returns the record of a hold during which a drain was allowed.
func drainedHold(drain *Drain) nodeOption {
	return recordedAs(Record{State: Held, BootID: thisBoot, Reason: Rebooted, Drained: drain})
}

// TestDrainDuringHold: `kubectl drain` writes nothing to a held node, so the drain relies on the
// cordon of the hold, until the machine has restarted or a person uncordons the node.
// F74, F79: a node was drained while Holdfast held it, and Holdfast opened it when the hold ended,
// F79 by a limit or a label: the grant of the drain ended, and two machines restarted.
func TestDrainDuringHold(t *testing.T) {
	started := readyFactsWith(func(f *Facts) { f.Start = 7 })
	startedClosed := closedFacts()
	startedClosed.Start = 7
	inBoot := func(start uint64) *Drain { return &Drain{BootID: thisBoot, Start: start} }
	for name, c := range map[string]struct {
		drain *Drain
		facts Facts
		// reason is that of the decision, known the drain in the record after it.
		reason string
		known  *Drain
	}{
		"no drain":                  {nil, started, NotHeld, nil},
		"in this boot":              {inBoot(0), readyFacts(), WaitingForOthers, inBoot(0)},
		"in this boot, start known": {inBoot(0), started, WaitingForOthers, inBoot(7)},
		"boot not reported":         {&Drain{}, started, WaitingForOthers, inBoot(7)},
		"same start":                {inBoot(7), started, WaitingForOthers, inBoot(7)},
		"start not readable":        {inBoot(7), readyFacts(), WaitingForOthers, inBoot(7)},
		"restarted":                 {&Drain{BootID: "before"}, started, NotHeld, nil},
		"container restarted":       {inBoot(6), started, NotHeld, nil},
		"network is missing":        {inBoot(0), closedFacts(), WaitingForFlannel, inBoot(0)},
		"restarted, no network":     {&Drain{BootID: "before"}, startedClosed, WaitingForFlannel, &Drain{BootID: "before"}},
	} {
		t.Run(name, func(t *testing.T) {
			before := node(drainedHold(c.drain), cordoned)
			d := Decide(before, c.facts, Policy{}, noon())
			require.Equal(t, c.reason, d.Reason, d.Message)
			require.Equal(t, c.reason != NotHeld, d.Held)
			after, err := ParseRecord(writeAll(before, d).Annotations[HoldAnnotation])
			require.NoError(t, err)
			require.Equal(t, c.known, after.Drained)
			_, err = settle(before, c.facts, Policy{}, unchanged)
			require.NoError(t, err, "written once")
		})
	}
	byHand := Decide(node(drainedHold(&Drain{BootID: thisBoot})), started, Policy{}, noon())
	require.Equal(t, Overridden, byHand.Record.State, "a person has uncordoned it")
	require.Nil(t, byHand.Record.Drained, "that ends the drain")
}

// TestWithDrain: only a node that the cordon of a hold keeps closed gets a record of its drain.
func TestWithDrain(t *testing.T) {
	held := recorded(Held, thisBoot, Rebooted)
	for name, c := range map[string]struct {
		node *corev1.Node
		want bool
	}{
		"held":              {node(held, cordoned, booted("b1")), true},
		"drained before":    {node(drainedHold(&Drain{BootID: "b1", Start: 7}), cordoned, booted("b1")), true},
		"held, uncordoned":  {node(held), false},
		"held by taint":     {node(heldByTaint("key"), tainted("key"), cordoned), false},
		"released":          {node(recorded(Released, thisBoot, NetworkReady), cordoned), false},
		"no record":         {node(cordoned), false},
		"unreadable record": {node(annotated(HoldAnnotation, "x"), cordoned), false},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, IsHeldByCordon(c.node))
			if !c.want {
				return
			}
			value, err := WithDrain(c.node, noon())
			require.NoError(t, err)
			record, err := ParseRecord(value)
			require.NoError(t, err)
			require.Equal(t, &Drain{At: "2026-08-01T12:00:00Z", BootID: "b1"}, record.Drained)
			record.Drained = nil
			before, err := ParseRecord(c.node.Annotations[HoldAnnotation])
			require.NoError(t, err)
			before.Drained = nil
			require.Equal(t, before, record, "the rest stays")
		})
	}
	_, err := WithDrain(node(annotated(HoldAnnotation, "x")), noon())
	require.Error(t, err)
}

// TestLeaderKeepsDrainedNodes: the leader ends no hold on which a drain relies. It reports the hold
// as one of a node that another component drains.
func TestLeaderKeepsDrainedNodes(t *testing.T) {
	const agentLate, holdLate = 2 * time.Minute, 10 * time.Minute
	drained := drainedHold(&Drain{BootID: thisBoot})
	for name, c := range map[string]struct {
		options []nodeOption
		age     time.Duration
		state   HoldState
	}{
		"overdue":            {[]nodeOption{drained, cordoned}, holdLate, HoldBehindOthers},
		"no agent":           {[]nodeOption{drained, cordoned}, agentLate, HoldBehindOthers},
		"label":              {[]nodeOption{drained, cordoned, exempt}, holdLate, HoldBehindOthers},
		"not drained":        {[]nodeOption{recorded(Held, thisBoot, Rebooted), cordoned}, holdLate, HoldOverdue},
		"drained in earlier": {[]nodeOption{drainedHold(&Drain{BootID: "before"}), cordoned}, holdLate, HoldOverdue},
		"uncordoned":         {[]nodeOption{drained}, agentLate, HoldEnding},
	} {
		t.Run(name, func(t *testing.T) {
			n := node(append(c.options, booted(thisBoot))...)
			check := CheckHold(n, ofAge(c.age), releasingLimits(), noon())
			require.Equal(t, c.state, check.State)
			isOpened := n.Spec.Unschedulable && !writeAll(n, check.Decision).Spec.Unschedulable
			require.Equal(t, c.state == HoldOverdue, isOpened, check.Decision.Message)
		})
	}
	bootless := recordedAs(Record{State: Held, Reason: NewNode, Drained: &Drain{BootID: thisBoot}})
	overdue := CheckHold(node(bootless, cordoned), ofAge(holdLate), releasingLimits(), noon())
	require.Equal(t, HoldBehindOthers, overdue.State, "a boot that is not known is no restart")
	for boot, mark := range map[string]string{thisBoot: "a drain of the node was allowed", "later": ""} {
		c, err := ClosedBy(node(drained, cordoned, booted(boot)))
		require.NoError(t, err)
		require.Contains(t, c.StaysBecause(), mark)
		require.Equal(t, mark == "", c.StaysBecause() == "")
	}
}
