package readiness

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// requireGate checks one gate of a decision, which is the only one that may be closed.
func requireGate(t *testing.T, d Decision, name, reason, missing string) {
	t.Helper()
	i := slices.IndexFunc(d.Gates, func(g Gate) bool { return g.Name == name })
	require.GreaterOrEqual(t, i, 0, "gate %s is not evaluated: %+v", name, d.Gates)
	g := d.Gates[i]
	require.Equal(t, missing == "", g.Open, g.Missing)
	require.Contains(t, g.Missing, missing)
	require.Equal(t, !g.Open, d.Held)
	if d.Held {
		require.Equal(t, reason, d.Reason)
		require.Contains(t, d.Message, g.Missing)
	}
}

func TestUnitGate(t *testing.T) {
	const name = "network-plugin.service"
	policy := Policy{Force: []string{GateUnit + name, GateUnit + name}}
	require.Equal(t, []string{name}, policy.Units())
	unit := func(active, sub, result string, ran bool) Unit {
		return Unit{Name: name, Presence: Present, ActiveState: active, SubState: sub, Result: result, Ran: ran}
	}
	other := Unit{Name: "other.service", Presence: Present, ActiveState: "active"}
	masked := unit("inactive", "", "success", true)
	masked.Problem = "its load state is masked"
	const failed = "it failed (exit-code); to see why: `journalctl -b -u network-plugin.service`"
	for _, c := range []struct {
		name    string
		unit    Unit
		missing string // empty if the gate is open
	}{
		{"another unit", other, "network-plugin.service, which was not checked"},
		{"no answer", Unit{Name: name}, "could not be checked"},
		{"no answer, with a cause", Unit{Name: name, Problem: "no system bus"}, "could not be checked (no system bus)"},
		{"masked unit", masked, "network-plugin.service (its load state is masked)"},
		{"no such unit", Unit{Name: name, Presence: Absent}, "which does not exist"},
		{"not started", unit("inactive", "dead", "success", false), "has not run in this boot"},
		{"running", unit("activating", "start", "success", false), "to finish: it is activating (start)"},
		{"stopping", unit("deactivating", "stop", "success", true), "deactivating (stop)"},
		{"failed", unit("failed", "failed", "exit-code", true), failed},
		{"finished without success", unit("inactive", "dead", "timeout", true), "has not run"},
		{"answer without a state", unit("", "", "", false), "to finish"},
		{"finished, remains active", unit("active", "exited", "success", true), ""},
		{"finished, inactive", unit("inactive", "dead", "success", true), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			facts := readyFactsWith(func(f *Facts) { f.Units = []Unit{c.unit} })
			d := Decide(node(recorded(Held, thisBoot, NewNode), cordoned), facts, policy, noon())
			requireGate(t, d, "unit:"+name, WaitingForUnit, c.missing)
			require.Len(t, d.Gates, 3, "evaluated once, although it is named twice")
		})
	}
}

func TestConditionGate(t *testing.T) {
	const yes, no = corev1.ConditionTrue, corev1.ConditionFalse
	const kind, other = corev1.NodeNetworkUnavailable, corev1.NodeConditionType("StorageReady")
	network := Policy{Force: []string{"condition:NetworkUnavailable"}}
	storage := Policy{Force: []string{"condition:StorageReady"}}
	notStorage := Policy{Force: []string{"condition:StorageReady=False"}}
	at := func(boot string) Stamp { return Stamp{"2026-08-01T12:00:00Z", boot} }
	before := map[string]Stamp{"NetworkUnavailable": at(otherBoot), "StorageReady": at(otherBoot)}
	first := Record{State: Held, BootID: thisBoot, Reason: NewNode}
	rebooted := Record{State: Held, BootID: thisBoot, Reason: Rebooted, Stamps: before}
	shutdown := Record{State: Held, BootID: otherBoot, Reason: GoingDown, Stamps: before}
	stampedHere := Record{
		State: Held, BootID: otherBoot, Reason: Rebooted, Stamps: map[string]Stamp{"StorageReady": at(thisBoot)},
	}
	const lastWritten = "it was last written at 2026-08-01T12:00:00Z"
	cleared := Record{State: Held, BootID: thisBoot, Reason: NewNode, NetworkUp: "FlannelIsUp"}
	clearedBefore := Record{State: Held, BootID: otherBoot, Reason: NewNode, NetworkUp: "FlannelIsUp"}
	for _, c := range []struct {
		name      string
		policy    Policy
		record    Record
		condition nodeOption
		missing   string
	}{
		{"not set", storage, first, cordoned, "StorageReady=True, which is not set"},
		{"as required", storage, first, conditioned(other, yes, "Up"), ""},
		{"not as required", storage, first, conditioned(other, no, "Down"), "StorageReady=True: it is False (Down: )"},
		{"status not as required", notStorage, first, conditioned(other, yes, "Up"), "StorageReady=False: it is True (Up: )"},
		{"status of the boot before", notStorage, shutdown, written(other, no, "Down", noon()), lastWritten},
		{"Calico down", network, first, unavailable("CalicoIsDown"), "NetworkUnavailable=False: it is True (CalicoIsDown"},
		{"written by the hold", network, first, unavailable(HeldByHoldfast), "only Holdfast has written it"},
		{"written by the release", network, rebooted, available(ReleasedByHoldfast), "only Holdfast has written it"},
		{"written by a release by hand", network, first, available(ReleasedByHand), "only Holdfast has written it"},
		{"written in the boot before", network, rebooted, written(kind, no, "CalicoIsUp", noon()), lastWritten},
		{"written in this boot", network, rebooted, written(kind, no, "CalicoIsUp", noon().Add(time.Minute)), ""},
		{"clock set back", network, rebooted, written(kind, no, "CalicoIsUp", noon().Add(-100*time.Hour)), ""},
		{"written once by Cilium", network, rebooted, written(kind, no, CiliumIsUp, noon()), ""},
		{"written once for a route", network, rebooted, written(kind, no, RouteCreated, noon()), ""},
		{"another type with that reason", storage, rebooted, written(other, yes, RouteCreated, noon()), lastWritten},
		{"another type with the reason of a hold", storage, first, conditioned(other, yes, HeldByHoldfast), ""},
		{"stamped in this boot", storage, stampedHere, written(other, yes, "Up", noon()), ""},
		{"cleared, then overwritten", network, cleared, unavailable(HeldByHoldfast), ""},
		{"cleared in the boot before", network, clearedBefore, unavailable(HeldByHoldfast), "only Holdfast"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := Decide(node(recordedAs(c.record), cordoned, c.condition), readyFacts(), c.policy, noon())
			requireGate(t, d, c.policy.Force[0], WaitingForCondition, c.missing)
		})
	}
}

// TestPluginReasonIsRecorded: a CNI clears NetworkUnavailable once. With another gate closed,
// the hold sets the condition again, and the record has to keep that the CNI cleared it.
func TestPluginReasonIsRecorded(t *testing.T) {
	policy := Policy{Force: []string{"condition:NetworkUnavailable"}, HoldUnrecorded: true}
	cleared := available("FlannelIsUp")
	bornHeld := recorded(Held, thisBoot, NewNode)
	for name, n := range map[string]*corev1.Node{
		"born held":                 node(bornHeld, cordoned, cleared),
		"born held without boot ID": node(recorded(Held, "", NewNode), cordoned, cleared),
		"held by the agent":         node(cleared),
	} {
		t.Run(name, func(t *testing.T) {
			d := Decide(n, closedFacts(), policy, noon())
			require.Equal(t, "FlannelIsUp", d.Record.NetworkUp)
			require.Equal(t, thisBoot, d.Record.BootID)
			require.Equal(t, HeldByHoldfast, d.Conditions[1].Reason)
			require.False(t, d.StatusFirst, "the reason is recorded before the condition is overwritten")
			half, whole := write(n, d, unchanged)
			for how, after := range map[string]*corev1.Node{"written": whole, "crash between the writes": half} {
				end, err := settle(after, readyFacts(), policy, unchanged)
				require.NoError(t, err)
				require.False(t, end.Spec.Unschedulable, how)
			}
			require.Nil(t, Decide(whole, closedFacts(), policy, noon()).Record, "written once")
		})
	}
	d := Decide(node(bornHeld, cordoned, cleared), closedFacts(), Policy{}, noon())
	require.Equal(t, "FlannelIsUp", d.Record.NetworkUp, "recorded without such a gate, because flags may change")
	for _, reason := range []string{CiliumIsUp, RouteCreated} {
		d = Decide(node(bornHeld, cordoned, available(reason)), closedFacts(), policy, noon())
		require.Nil(t, d.Record, "%s is not overwritten", reason)
		require.Len(t, d.Conditions, 1, "%s would be restored endlessly", reason)
	}
	for _, reason := range []string{ReleasedByHoldfast, ReleasedByHand} {
		up := Record{State: Held, BootID: thisBoot, Reason: NewNode, NetworkUp: "FlannelIsUp"}
		for _, record := range []nodeOption{bornHeld, recordedAs(up)} {
			d = Decide(node(record, cordoned, available(reason)), closedFacts(), policy, noon())
			require.Nil(t, d.Record, "%s is not the plugin's", reason)
			require.Equal(t, HeldByHoldfast, d.Conditions[1].Reason)
		}
	}
	d = Decide(node(bornHeld, cordoned, available("")), closedFacts(), policy, noon())
	require.NotEmpty(t, d.Record.NetworkUp, "the reason of a condition is optional")
}

// TestStamps follows a node that waits only for a condition through a reboot.
func TestStamps(t *testing.T) {
	policy := Policy{Force: []string{"condition:StorageReady"}}
	up := written("StorageReady", corev1.ConditionTrue, "Up", noon())
	inOtherBoot := readyFactsWith(func(f *Facts) { f.BootID = otherBoot })
	d := Decide(node(recorded(Held, otherBoot, NewNode), cordoned, up), inOtherBoot, policy, noon())
	require.Equal(t, Released, d.Record.State)
	stamps := map[string]Stamp{"StorageReady": {"2026-08-01T12:00:00Z", otherBoot}}
	require.Equal(t, stamps, d.Record.Stamps)

	n := node(recordedAs(*d.Record), up)
	d = Decide(n, readyFacts(), policy, noon())
	require.Equal(t, Rebooted, d.Record.Reason, "only the condition is stale")
	require.Equal(t, stamps, d.Record.Stamps, "the stamp survives the reboot")
	n = writeAll(n, d)
	require.True(t, Decide(n, readyFacts(), policy, noon()).Held)
	n.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(noon().Add(time.Hour))
	require.Equal(t, Released, Decide(n, readyFacts(), policy, noon()).Record.State)
	require.Nil(t, Decide(n, closedFacts(), policy, noon()).Record, "a heartbeat alone is not written")

	old := map[string]Stamp{"StorageReady": {"then", otherBoot}}
	stamps = map[string]Stamp{"StorageReady": {"2026-08-01T12:00:00Z", thisBoot}}
	for name, r := range map[string]Record{
		"in service":          {State: Released, BootID: thisBoot, Reason: NetworkReady, Stamps: old},
		"cordoned by another": {State: Overridden, BootID: thisBoot, Reason: EndedByHand, Stamps: old},
		"born held":           {State: Held, BootID: otherBoot, Reason: NewNode, Stamps: old},
		"held after a reboot": {State: Held, BootID: thisBoot, Reason: Rebooted, Stamps: old},
	} {
		n := node(recordedAs(r), up, func(n *corev1.Node) { n.Spec.Unschedulable = r.State != Released })
		down := Decide(n, shutdownFacts(), policy, noon())
		require.Equal(t, stamps, down.Record.Stamps, "%s, at the shutdown", name)
		n = writeAll(n, down)
		require.Nil(t, Decide(n, shutdownFacts(), policy, noon()).Record, "%s: stamped once", name)
		next := readyFactsWith(func(f *Facts) { f.GoingDown, f.BootID = true, "the-next-boot" })
		require.Nil(t, Decide(n, next, policy, noon()).Record, "%s: the stamp keeps its boot", name)
	}
}

// TestStampTimes: a condition is stamped with the later of its times. Without a time it has no
// stamp.
func TestStampTimes(t *testing.T) {
	policy := Policy{Force: []string{"condition:A", "condition:B", "condition:C", "condition:D"}}
	condition := func(kind corev1.NodeConditionType, heartbeat, transition metav1.Time) nodeOption {
		return func(n *corev1.Node) {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
				Type: kind, Status: corev1.ConditionTrue, LastHeartbeatTime: heartbeat, LastTransitionTime: transition,
			})
		}
	}
	earlier, later := metav1.NewTime(noon()), metav1.NewTime(noon().Add(time.Hour))
	n := node(
		recorded(Held, thisBoot, NewNode), cordoned, condition("A", later, earlier), condition("B", earlier, later),
		condition("C", metav1.Time{}, later), condition("D", metav1.Time{}, metav1.Time{}),
	)
	d := Decide(n, readyFacts(), policy, noon())
	require.Equal(t, Released, d.Record.State, d.Message)
	at := Stamp{"2026-08-01T13:00:00Z", thisBoot}
	require.Equal(t, map[string]Stamp{"A": at, "B": at, "C": at}, d.Record.Stamps)
}

// TestStaleReasonIsNotRecorded: what the plugin wrote in the boot before does not open its gate in
// this boot.
func TestStaleReasonIsNotRecorded(t *testing.T) {
	held := Record{State: Held, BootID: otherBoot, Reason: NewNode}
	held.Stamps = map[string]Stamp{"NetworkUnavailable": {"2026-08-01T12:00:00Z", otherBoot}}
	stale := written(corev1.NodeNetworkUnavailable, corev1.ConditionFalse, "CalicoIsUp", noon())
	n := node(recordedAs(held), cordoned, stale)
	d := Decide(n, closedFacts(), Policy{}, noon())
	require.Nil(t, d.Record)
	require.Equal(t, HeldByHoldfast, d.Conditions[1].Reason)
	gate := Policy{Force: []string{"condition:NetworkUnavailable"}}
	require.True(t, Decide(writeAll(n, d), readyFacts(), gate, noon()).Held)
}

// TestMarkerGate: after a reboot Ansible does not run, and no marker appears.
func TestMarkerGate(t *testing.T) {
	policy := Policy{Force: []string{GateNetworkPlugin}, HoldUnrecorded: true}
	isReady := conditioned(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady")
	bornHeld := recorded(Held, thisBoot, NewNode)
	for name, c := range map[string]struct {
		node      *corev1.Node
		evaluated bool
	}{
		"born held":              {node(bornHeld, cordoned), true},
		"held by the agent":      {node(recorded(Held, thisBoot, NotReadyYet), cordoned), true},
		"unrecorded, not Ready":  {node(), true},
		"unrecorded, in service": {node(isReady), false},
		"rebooted":               {node(recorded(Released, otherBoot, NetworkReady)), false},
		"held after a reboot":    {node(recorded(Held, thisBoot, Rebooted), cordoned), false},
		"held for a shutdown":    {node(recorded(Held, otherBoot, GoingDown), cordoned), false},
	} {
		t.Run(name, func(t *testing.T) {
			d := Decide(c.node, readyFacts(), policy, noon())
			require.Equal(t, c.evaluated, len(d.Gates) == 3, "%+v", d.Gates)
			require.Equal(t, c.evaluated, d.Held)
		})
	}

	// Ansible finished in the boot before, when flannel was not ready, and does not run again.
	built := readyFactsWith(func(f *Facts) {
		f.Marker.Presence, f.Marker.BootID, f.Subnet.Presence = Present, thisBoot, Absent
	})
	for how, n := range map[string]*corev1.Node{"born held": node(bornHeld, cordoned), "held by the agent": node()} {
		for range 2 {
			n = writeAll(n, Decide(n, built, policy, noon()))
			require.True(t, n.Spec.Unschedulable, how)
		}
		require.Nil(t, Decide(n, built, policy, noon()).Record, "%s: recorded once", how)
		next := readyFactsWith(func(f *Facts) { f.BootID = otherBoot })
		require.False(t, Decide(n, next, policy, noon()).Held, how)
		next.Subnet.Presence = Absent
		require.True(t, Decide(n, next, policy, noon()).Held, "%s: the other gates are still evaluated", how)
	}
	stale := readyFactsWith(func(f *Facts) { f.Marker.Presence, f.Marker.BootID = Present, otherBoot })
	d := Decide(node(bornHeld, cordoned, unavailable(HeldByHoldfast)), stale, policy, noon())
	require.Nil(t, d.Record, "a marker of another boot is not recorded")

	byTaint := Policy{TaintKey: holdTaint, Force: []string{GateNetworkPlugin}}
	d = Decide(node(tainted(holdTaint), isReady), readyFacts(), byTaint, noon())
	require.True(t, d.Held, "a node that registered with the taint has not been in service, even if it is Ready")
}
