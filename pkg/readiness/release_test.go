package readiness

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/autoscaler"
)

func TestLeftoverTaints(t *testing.T) {
	leftovers := []nodeOption{
		recorded(Held, thisBoot, NewNode), cordoned, tainted("dedicated"),
		tainted(corev1.TaintNodeUnschedulable), tainted(corev1.TaintNodeNetworkUnavailable),
		tainted(corev1.TaintNodeNotReady),
	}
	keys := func(condition nodeOption) (found []string) {
		n := node(append(leftovers, condition)...)
		for _, taint := range Decide(n, readyFacts(), Policy{}, noon()).RemoveTaints {
			found = append(found, taint.Key)
		}
		return found
	}
	both := []string{corev1.TaintNodeUnschedulable, corev1.TaintNodeNetworkUnavailable}
	require.Equal(t, both, keys(unavailable(HeldByHoldfast)))
	require.Equal(t, both, keys(available("FlannelIsUp")))
	require.Equal(t, both, keys(unchanged), "no condition")
	require.Equal(t, both[:1], keys(unavailable("CalicoIsDown")), "the taint belongs to another component's condition")
}

// TestTaintsOfOtherEffects: the taint of a hold and those that follow from it are NoSchedule. A
// taint of the same key with another effect belongs to another client.
func TestTaintsOfOtherEffects(t *testing.T) {
	expelling := func(n *corev1.Node) {
		for _, key := range []string{holdTaint, corev1.TaintNodeUnschedulable, corev1.TaintNodeNetworkUnavailable} {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute})
		}
	}
	policy, byTaint := Policy{TaintKey: holdTaint}, heldByTaint(holdTaint)
	d := Decide(node(byTaint, expelling, tainted(holdTaint)), readyFacts(), policy, noon())
	require.Equal(t, []corev1.Taint{{Key: holdTaint, Effect: corev1.TaintEffectNoSchedule}}, d.RemoveTaints)
	d = Decide(node(recorded(Held, thisBoot, NewNode), cordoned, expelling), readyFacts(), policy, noon())
	require.Empty(t, d.RemoveTaints)
	require.Equal(t, Released, d.Record.State)
	d = Decide(node(byTaint, expelling), closedFacts(), policy, noon())
	require.Equal(t, Overridden, d.Record.State, "another client has removed the taint of the hold")
}

func TestWriteOrder(t *testing.T) {
	raised, keep := unavailable(HeldByHoldfast), annotated(KeepCordonedAnnotation, "")
	bornHeld, before := recorded(Held, thisBoot, NewNode), recorded(Released, otherBoot, NetworkReady)
	for name, c := range map[string]struct {
		node        *corev1.Node
		facts       Facts
		policy      Policy
		statusFirst bool
	}{
		"first hold: never cordoned and Ready": {node(), closedFacts(), Policy{HoldUnrecorded: true}, true},
		"release: never cordoned and Ready":    {node(bornHeld, cordoned, raised), readyFacts(), Policy{}, false},
		"release by label":                     {node(bornHeld, cordoned, raised, exempt), closedFacts(), Policy{}, false},
		"override: record last":                {node(bornHeld, raised), closedFacts(), Policy{}, true},
		"kept cordon: record last":             {node(bornHeld, cordoned, raised, keep), readyFacts(), Policy{}, true},
		"hold after a reboot: cordon first":    {node(before), closedFacts(), Policy{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.statusFirst, Decide(c.node, c.facts, c.policy, noon()).StatusFirst)
		})
	}
}

// TestReleaseIsTwoWrites: the first write contains everything except the conditions, the
// second only the conditions, and no third write follows. After a crash between the two, the
// conditions become exactly the same.
func TestReleaseIsTwoWrites(t *testing.T) {
	raised := unavailable(HeldByHoldfast)
	waiting := conditioned(NetworkHeld, corev1.ConditionTrue, WaitingForFlannel)
	shutdown := conditioned(NetworkHeld, corev1.ConditionTrue, GoingDown)
	bornHeld := recorded(Held, thisBoot, NewNode)
	by := func(f Facts) func(*corev1.Node) Decision {
		return func(n *corev1.Node) Decision { return Decide(n, f, Policy{}, noon()) }
	}
	leader := func(n *corev1.Node) Decision {
		return CheckHold(n, ofAge(time.Hour), releasingLimits(), noon()).Decision
	}
	cancelled := readyFactsWith(func(f *Facts) { f.StaysUp, f.SawShutdown = true, true })
	forShutdown := recorded(Held, thisBoot, GoingDown)
	for name, c := range map[string]struct {
		node *corev1.Node
		ends func(*corev1.Node) Decision
	}{
		"network ready":      {node(bornHeld, cordoned, raised, waiting), by(readyFacts())},
		"label":              {node(bornHeld, cordoned, raised, waiting, exempt), by(closedFacts())},
		"cancelled shutdown": {node(forShutdown, cordoned, raised, shutdown), by(cancelled)},
		"leader":             {node(bornHeld, booted(thisBoot), cordoned, raised, waiting), leader},
	} {
		t.Run(name, func(t *testing.T) {
			d := c.ends(c.node)
			require.False(t, d.StatusFirst)
			half, whole := write(c.node, d, unchanged)
			require.False(t, half.Spec.Unschedulable)
			require.Equal(t, c.node.Status, half.Status)
			record, err := ParseRecord(half.Annotations[HoldAnnotation])
			require.NoError(t, err)
			require.NotEqual(t, Held, record.State)
			finish := func(n *corev1.Node, by string) *corev1.Node {
				d := Decide(n, closedFacts(), Policy{}, noon())
				if by == "leader" {
					d = CheckHold(n, ofAge(time.Hour), testLimits(), noon()).Decision
				}
				require.Nil(t, d.Record, by)
				require.Nil(t, d.Event, "the event is recorded once")
				return writeAll(n, d)
			}
			for _, by := range []string{"agent", "leader"} {
				require.Equal(t, whole, finish(half, by), by)
				require.Equal(t, whole, finish(whole, by), "the %s changes nothing", by)
			}
		})
	}
}

// TestShutdown: at a shutdown an open node is closed, a closed node stays closed, and cordons
// of other clients do not change.
func TestShutdown(t *testing.T) {
	inService, inServiceBefore := recorded(Released, thisBoot, NetworkReady), recorded(Released, otherBoot, NetworkReady)
	bornHeld, forShutdown := recorded(Held, thisBoot, NewNode), recorded(Held, thisBoot, GoingDown)
	mismatched := recorded(Released, thisBoot, GatesMismatch)
	for _, c := range []struct {
		name   string
		node   *corev1.Node
		facts  Facts
		policy Policy
		// cordon is "on", "off", or empty if it does not change. record is the new record's
		// reason.
		cordon string
		record RecordReason
		held   bool
	}{
		{"in service", node(inService), readyFacts(), Policy{}, "on", GoingDown, true},
		{"held, gates closed", node(bornHeld, cordoned), closedFacts(), Policy{}, "", "", true},
		{"uncordoned since", node(forShutdown), readyFacts(), Policy{}, "", EndedByHand, false},
		{"held, exempt since", node(forShutdown, cordoned, exempt), readyFacts(), Policy{}, "off", NetworkReady, false},
		{"being deleted", node(inService, deleting), readyFacts(), Policy{}, "", "", false},
		{"gates mismatch", node(mismatched), closedFacts(), Policy{}, "", "", false},
		{"no record", node(), readyFacts(), Policy{HoldUnrecorded: true}, "", FirstSeen, false},
		{"another boot, gates open", node(inServiceBefore), readyFacts(), Policy{}, "", NetworkReady, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.facts.GoingDown = true
			d := Decide(c.node, c.facts, c.policy, noon())
			require.Equal(t, c.held, d.Held, d.Message)
			require.Equal(t, c.cordon, outcomeOf(t, d).cordon, d.Message)
			record := RecordReason("")
			if d.Record != nil {
				record = d.Record.Reason
			}
			require.Equal(t, c.record, record, d.Message)
			isNew := strings.Contains(c.node.Annotations[HoldAnnotation], string(NewNode))
			for _, condition := range d.Conditions {
				require.True(t, isNew || condition.Reason != HeldByHoldfast, "an old node that is not Ready alarms autoscalers")
			}
		})
	}
}

// TestShutdownHold: a cancelled shutdown ends only the hold that it began in this boot, also with
// closed gates. In another boot, or if it is not known to be cancelled, the gates count.
func TestShutdownHold(t *testing.T) {
	staysUp := func(f Facts, sawShutdown bool) Facts {
		f.StaysUp, f.SawShutdown = true, sawShutdown
		return f
	}
	noLogind := closedFacts()
	noLogind.SawShutdown = true
	awaits := readyFactsWith(func(f *Facts) { f.AwaitsLogind = true })
	nextBoot := readyFactsWith(func(f *Facts) { f.BootID, f.Subnet.Presence = otherBoot, Absent })
	shutdown, bornHeld := recorded(Held, thisBoot, GoingDown), recorded(Held, thisBoot, NewNode)
	for name, c := range map[string]struct {
		record nodeOption
		facts  Facts
		ended  RecordReason // empty if it is still held
	}{
		"cancelled":                     {shutdown, staysUp(readyFacts(), true), ShutdownCancelled},
		"cancelled, gates closed":       {shutdown, staysUp(closedFacts(), true), ShutdownCancelled},
		"soft reboot, gates closed":     {shutdown, staysUp(closedFacts(), false), ""},
		"agent restarts":                {shutdown, awaits, ""},
		"logind is gone":                {shutdown, noLogind, ""},
		"no logind, gates closed":       {shutdown, closedFacts(), ""},
		"next boot, gates closed":       {shutdown, nextBoot, ""},
		"hold of a shutdown before":     {recorded(Held, otherBoot, GoingDown), staysUp(closedFacts(), true), ""},
		"born held":                     {bornHeld, staysUp(closedFacts(), true), ""},
		"held after a reboot":           {recorded(Held, thisBoot, Rebooted), staysUp(closedFacts(), true), ""},
		"born held, waiting for logind": {bornHeld, awaits, NetworkReady},
	} {
		t.Run(name, func(t *testing.T) {
			d := Decide(node(c.record, cordoned), c.facts, Policy{}, noon())
			require.Equal(t, c.ended == "", d.Held, d.Message)
			require.Equal(t, c.ended == "", d.Unschedulable == nil, "released in one decision")
			if c.ended != "" {
				require.Equal(t, c.ended, d.Record.Reason)
				require.Equal(t, EventReleased, d.Event.Reason)
			}
		})
	}
	d := Decide(node(recorded(Released, thisBoot, NetworkReady)), shutdownFacts(), Policy{}, noon())
	require.Equal(t, []string{GoingDown, EventHeld}, []string{d.Reason, d.Event.Reason})
	require.Contains(t, d.Message, "shutting down")
}

func TestDecideByTaint(t *testing.T) {
	policy := Policy{TaintKey: holdTaint}
	own := []corev1.Taint{{Key: holdTaint, Effect: corev1.TaintEffectNoSchedule}}
	byTaint, byCordon := heldByTaint(holdTaint), recorded(Held, thisBoot, NewNode)

	d := Decide(node(recorded(Released, otherBoot, NetworkReady), cordoned), closedFacts(), policy, noon())
	require.Equal(t, own, d.AddTaints, "another client's cordon does not replace the taint")
	require.Equal(t, holdTaint, d.Record.Taint)
	require.Nil(t, d.Unschedulable)

	d = Decide(node(byTaint, tainted(holdTaint), available(CiliumIsUp)), closedFacts(), policy, noon())
	require.Len(t, d.Conditions, 1, "NetworkUnavailable is not part of a hold by taint")
	require.True(t, d.Held)

	n := node(byTaint, cordoned, tainted(corev1.TaintNodeUnschedulable), tainted(holdTaint), tainted("dedicated"))
	for name, p := range map[string]Policy{"same policy": policy, "policy changed to cordon": {}} {
		d = Decide(n, readyFacts(), p, noon())
		require.Equal(t, own, d.RemoveTaints, name)
		require.Nil(t, d.Unschedulable, "%s: the cordon belongs to another client", name)
		require.Equal(t, Released, d.Record.State, name)
		require.Empty(t, d.Record.Taint, name)
	}

	d = Decide(node(byCordon, tainted(holdTaint), cordoned, tainted("dedicated")), readyFacts(), policy, noon())
	require.False(t, *d.Unschedulable, "a record without a taint is a hold by cordon, even if the kubelet set the taint")
	require.Equal(t, own, d.RemoveTaints, "the policy's taint belongs to Holdfast")

	d = Decide(node(byCordon, cordoned), readyFacts(), policy, noon())
	require.False(t, *d.Unschedulable, "held by cordon before the policy changed to taint")
	require.Empty(t, d.RemoveTaints)

	d = Decide(node(byCordon, tainted(holdTaint)), closedFacts(), policy, noon())
	require.Equal(t, Overridden, d.Record.State, "another client uncordoned the node")
	require.Equal(t, own, d.RemoveTaints, "the taint would still keep pods away")

	d = Decide(node(byTaint), closedFacts(), policy, noon())
	require.Equal(t, Overridden, d.Record.State)
}

// TestRegisteredWithTaint follows the setup of docs/kubernetes-versions.md before Kubernetes 1.36.
func TestRegisteredWithTaint(t *testing.T) {
	const key = "holdfast.dev/held"
	policy := Policy{TaintKey: key, HoldUnrecorded: true}
	for _, status := range []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionTrue} {
		t.Run("Ready "+string(status), func(t *testing.T) {
			n := node(tainted(key), tainted("dedicated"), conditioned(corev1.NodeReady, status, "Kubelet"))
			waiting, err := settle(n, closedFacts(), policy, unchanged)
			require.NoError(t, err)
			held := Record{State: Held, BootID: thisBoot, Since: noon(), Reason: NewNode, Taint: key}
			held.Marks = autoscaler.Keys()
			require.Equal(t, held.Format(), waiting.Annotations[HoldAnnotation])
			require.True(t, hasTaint(waiting, key))
			require.False(t, waiting.Spec.Unschedulable)
			require.Equal(t, corev1.ConditionTrue, FindCondition(waiting, NetworkHeld).Status)
			atOnce := Decide(n, readyFacts(), policy, noon())
			require.Empty(t, atOnce.Annotations, "a node that is not held has no marks")
			for how, begin := range map[string]*corev1.Node{"held first": waiting, "gates already open": n} {
				end, err := settle(begin, readyFacts(), policy, unchanged)
				require.NoError(t, err, how)
				require.False(t, hasTaint(end, key), how)
				require.True(t, hasTaint(end, "dedicated"), how)
				released := Record{State: Released, BootID: thisBoot, Since: noon(), Reason: NetworkReady}
				require.Equal(t, released.Format(), end.Annotations[HoldAnnotation], how)
			}
		})
	}
	d := Decide(node(tainted(key)), closedFacts(), Policy{}, noon())
	require.Equal(t, FirstSeen, d.Record.Reason, "a taint that is not in the policy belongs to another component")
	require.Empty(t, d.RemoveTaints)
	d = Decide(node(), closedFacts(), policy, noon())
	require.Equal(t, NotReadyYet, d.Record.Reason, "a node that registered without the taint")
}

// TestRestoredTaint: Karpenter restores the startup taints of a NodePool when it registers a
// Node, even if the Node was already released (karpenter#1772).
func TestRestoredTaint(t *testing.T) {
	policy := Policy{TaintKey: holdTaint}
	own := []corev1.Taint{{Key: holdTaint, Effect: corev1.TaintEffectNoSchedule}}
	restored := func(state State, boot string, reason RecordReason) *corev1.Node {
		return node(recorded(state, boot, reason), tainted(holdTaint))
	}
	released, before := restored(Released, thisBoot, NetworkReady), restored(Released, otherBoot, NetworkReady)
	for name, n := range map[string]*corev1.Node{"released": released, "another boot, gates open": before} {
		d := Decide(n, readyFacts(), policy, noon())
		require.Equal(t, own, d.RemoveTaints, name)
		require.False(t, d.Held, name)
		require.Nil(t, d.Unschedulable, name)
	}

	d := Decide(before, closedFacts(), policy, noon())
	require.Equal(t, Held, d.Record.State, "in another boot with closed gates, the node has to be held")
	require.Equal(t, holdTaint, d.Record.Taint)
	require.Empty(t, d.RemoveTaints)

	d = Decide(released, readyFacts(), Policy{}, noon())
	require.Empty(t, d.RemoveTaints, "a taint that is not in the policy belongs to another component")
}
