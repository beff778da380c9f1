package readiness

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// named returns the gate of a decision by its name.
func named(t *testing.T, d Decision, name string) Gate {
	t.Helper()
	for _, g := range d.Gates {
		if g.Name == name {
			return g
		}
	}
	require.Fail(t, "the gate is not asked", "%s of %+v", name, d.Gates)
	panic("unreachable")
}

func TestUnitGate(t *testing.T) {
	const name = "network-plugin.service"
	policy := Policy{Force: []string{GateUnit + name, GateUnit + name}}
	require.Equal(t, []string{name}, policy.Units())
	for test, c := range map[string]struct {
		unit    Unit
		missing string // empty if the gate is open
	}{
		"another unit was looked at":      {Unit{Name: "other.service", Presence: Present, ActiveState: "active"}, "network-plugin.service, which was not looked at"},
		"systemd could not be asked":      {Unit{Name: name}, "could not be looked at"},
		"a unit that never runs":          {Unit{Name: name, Presence: Present, ActiveState: "inactive", Ran: true, Result: "success", Problem: "its load state is masked"}, "network-plugin.service (its load state is masked)"},
		"systemd could not be asked, why": {Unit{Name: name, Problem: "no system bus"}, "could not be looked at (no system bus)"},
		"an answer with a problem":        {Unit{Name: name, Presence: Present, ActiveState: "active", Problem: "cut off"}, "cut off"},
		"no such unit":                    {Unit{Name: name, Presence: Absent}, "which is not there"},
		"has not been started":            {Unit{Name: name, Presence: Present, ActiveState: "inactive", SubState: "dead", Result: "success"}, "has not run in this boot"},
		"runs":                            {Unit{Name: name, Presence: Present, ActiveState: "activating", SubState: "start", Result: "success"}, "to finish: it is activating (start)"},
		"runs again":                      {Unit{Name: name, Presence: Present, ActiveState: "activating", SubState: "auto-restart", Result: "exit-code", Ran: true}, "activating (auto-restart)"},
		"reloads":                         {Unit{Name: name, Presence: Present, ActiveState: "reloading", SubState: "reload"}, "reloading (reload)"},
		"stops":                           {Unit{Name: name, Presence: Present, ActiveState: "deactivating", SubState: "stop", Ran: true, Result: "success"}, "deactivating (stop)"},
		"failed":                          {Unit{Name: name, Presence: Present, ActiveState: "failed", SubState: "failed", Result: "exit-code", Ran: true}, "it failed (exit-code); `journalctl -b -u network-plugin.service`"},
		"ran without success":             {Unit{Name: name, Presence: Present, ActiveState: "inactive", SubState: "dead", Result: "timeout", Ran: true}, "has not run"},
		"an answer without a state":       {Unit{Name: name, Presence: Present}, "to finish"},
		"has finished and stays":          {Unit{Name: name, Presence: Present, ActiveState: "active", SubState: "exited", Result: "success", Ran: true}, ""},
		"has finished and is gone":        {Unit{Name: name, Presence: Present, ActiveState: "inactive", SubState: "dead", Result: "success", Ran: true}, ""},
		"a target that is reached":        {Unit{Name: name, Presence: Present, ActiveState: "active", SubState: "active"}, ""},
	} {
		t.Run(test, func(t *testing.T) {
			facts := with(func(f *Facts) { f.Units = []Unit{c.unit} })
			d := Decide(node(recorded(Held, thisBoot, NewNode), cordoned), facts, policy, noon())
			g := named(t, d, "unit:"+name)
			require.Equal(t, c.missing == "", g.Open, g.Missing)
			require.Contains(t, g.Missing, c.missing)
			require.Len(t, d.Gates, 3, "asked once, however often it is named")
			require.Equal(t, !g.Open, d.Held)
			if d.Held {
				require.Equal(t, WaitingForUnit, d.Reason)
				require.Contains(t, d.Message, g.Missing)
			}
		})
	}
}

// written is a condition with the time at which it was written.
func written(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason string, at time.Time) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
			Type: kind, Status: status, Reason: reason, LastHeartbeatTime: metav1.NewTime(at), LastTransitionTime: metav1.NewTime(at.Add(-time.Hour)),
		})
	}
}

func holding(r Record) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Annotations[HoldAnnotation] = r.Format() }
}

func TestConditionGate(t *testing.T) {
	const yes, no = corev1.ConditionTrue, corev1.ConditionFalse
	unavailable := corev1.NodeNetworkUnavailable
	network := Policy{Force: []string{"condition:NetworkUnavailable"}}
	storage := Policy{Force: []string{"condition:StorageReady"}}
	const noonStamp = "2026-08-01T12:00:00Z"
	before := map[string]Stamp{"NetworkUnavailable": {noonStamp, otherBoot}, "StorageReady": {noonStamp, otherBoot}}
	ofThis := map[string]Stamp{"StorageReady": {noonStamp, thisBoot}}
	fresh := Record{State: Held, BootID: thisBoot, Reason: NewNode}
	rebooted := Record{State: Held, BootID: thisBoot, Reason: Rebooted, Stamps: before}
	onTheWayDown := Record{State: Held, BootID: otherBoot, Reason: GoingDown, Stamps: before}
	for name, c := range map[string]struct {
		policy    Policy
		record    Record
		condition func(*corev1.Node)
		missing   string
	}{
		"nobody has written it":            {storage, fresh, cordoned, "StorageReady=True, which nobody has written"},
		"it is as wanted":                  {storage, fresh, conditioned("StorageReady", yes, "Up"), ""},
		"it is not":                        {storage, fresh, conditioned("StorageReady", no, "Down"), "StorageReady=True: it is False (Down: )"},
		"it is unknown":                    {storage, fresh, conditioned("StorageReady", corev1.ConditionUnknown, "Lost"), "it is Unknown (Lost"},
		"Calico says so":                   {network, fresh, conditioned(unavailable, no, "CalicoIsUp"), ""},
		"Calico says no":                   {network, fresh, conditioned(unavailable, yes, "CalicoIsDown"), "NetworkUnavailable=False: it is True (CalicoIsDown"},
		"only the hold has written it":     {network, fresh, conditioned(unavailable, yes, HeldByHoldfast), "nobody but Holdfast has written it"},
		"only the release has written it":  {network, rebooted, conditioned(unavailable, no, ReleasedByHoldfast), "nobody but Holdfast has written it"},
		"written in the boot before":       {network, rebooted, written(unavailable, no, "CalicoIsUp", noon()), "it stands as it was written at 2026-08-01T12:00:00Z"},
		"written in this boot":             {network, rebooted, written(unavailable, no, "CalicoIsUp", noon().Add(time.Minute)), ""},
		"by a clock that went back":        {network, rebooted, written(unavailable, no, "CalicoIsUp", noon().Add(-100*time.Hour)), ""},
		"Cilium writes it once for a Node": {network, rebooted, written(unavailable, no, CiliumIsUp, noon()), ""},
		"a route is written once as well":  {network, rebooted, written(unavailable, no, RouteCreated, noon()), ""},
		"another's word of that name":      {storage, rebooted, written("StorageReady", yes, RouteCreated, noon()), "it stands as it was written"},
		"noted as the host went down":      {storage, onTheWayDown, written("StorageReady", yes, "Up", noon()), "it stands as it was written"},
		"written since the host went down": {storage, onTheWayDown, written("StorageReady", yes, "Up", noon().Add(time.Second)), ""},
		"noted in this boot":               {storage, Record{State: Held, BootID: otherBoot, Reason: Rebooted, Stamps: ofThis}, written("StorageReady", yes, "Up", noon()), ""},
		"no note of it was taken":          {storage, Record{State: Held, BootID: thisBoot, Reason: Rebooted}, written("StorageReady", yes, "Up", noon()), ""},
		"said, and then written over": {
			network,
			Record{State: Held, BootID: thisBoot, Reason: NewNode, NetworkUp: "FlannelIsUp"},
			conditioned(unavailable, yes, HeldByHoldfast), "",
		},
		"said, and then taken back": {
			network,
			Record{State: Held, BootID: thisBoot, Reason: NewNode, NetworkUp: "CalicoIsUp"},
			conditioned(unavailable, yes, "CalicoIsDown"), "CalicoIsDown",
		},
		"said in the boot before": {
			network,
			Record{State: Held, BootID: otherBoot, Reason: NewNode, NetworkUp: "FlannelIsUp"},
			conditioned(unavailable, yes, HeldByHoldfast), "nobody but Holdfast",
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := Decide(node(holding(c.record), cordoned, c.condition), ready(), c.policy, noon())
			g := named(t, d, c.policy.Force[0])
			require.Equal(t, c.missing == "", g.Open, g.Missing)
			require.Contains(t, g.Missing, c.missing)
			require.Equal(t, !g.Open, d.Held)
			if d.Held {
				require.Equal(t, WaitingForCondition, d.Reason)
			}
		})
	}
}

// TestWhatThePluginSaysIsNotForgotten: a CNI clears NetworkUnavailable once. With another gate closed the hold sets it
// again, and must still know afterwards that it was cleared.
func TestWhatThePluginSaysIsNotForgotten(t *testing.T) {
	policy := Policy{Force: []string{"condition:NetworkUnavailable"}, HoldUnrecorded: true}
	said := conditioned(corev1.NodeNetworkUnavailable, corev1.ConditionFalse, "FlannelIsUp")
	for name, n := range map[string]*corev1.Node{
		"born held":                 node(recorded(Held, thisBoot, NewNode), cordoned, said),
		"born held without boot ID": node(recorded(Held, "", NewNode), cordoned, said),
		"held by the agent":         node(said),
	} {
		t.Run(name, func(t *testing.T) {
			d := Decide(n, closed(), policy, noon())
			require.Equal(t, "FlannelIsUp", d.Record.NetworkUp)
			require.Equal(t, thisBoot, d.Record.BootID)
			require.Equal(t, HeldByHoldfast, d.Conditions[1].Reason)
			require.False(t, d.StatusFirst, "what it said is written down before it is written over")
			half, whole := write(n, d, func(*corev1.Node) {})
			for how, after := range map[string]*corev1.Node{"written": whole, "crash between the writes": half} {
				end, err := settle(&world{facts: ready(), policy: policy}, after, func(*corev1.Node) {})
				require.NoError(t, err)
				require.False(t, end.Spec.Unschedulable, how)
			}
			again := Decide(whole, closed(), policy, noon())
			require.Nil(t, again.Record, "written once")
		})
	}
	d := Decide(node(recorded(Held, thisBoot, NewNode), cordoned, said), closed(), Policy{}, noon())
	require.Equal(t, "FlannelIsUp", d.Record.NetworkUp, "whoever waits for it: gates are flags, and flags change")
	for _, reason := range []string{CiliumIsUp, RouteCreated} {
		d = Decide(node(recorded(Held, thisBoot, NewNode), cordoned, conditioned(corev1.NodeNetworkUnavailable, corev1.ConditionFalse, reason)), closed(), policy, noon())
		require.Nil(t, d.Record, "%s is not written over", reason)
		require.Len(t, d.Conditions, 1, "%s would be put back, and that would never end", reason)
	}
	d = Decide(node(recorded(Held, thisBoot, NewNode), cordoned, conditioned(corev1.NodeNetworkUnavailable, corev1.ConditionFalse, "")), closed(), policy, noon())
	require.NotEmpty(t, d.Record.NetworkUp, "a reason is no must")
}

// TestStampsAreTakenAtTheEndOfABoot follows a node whose only signal is a condition through a reboot.
func TestStampsAreTakenAtTheEndOfABoot(t *testing.T) {
	policy := Policy{Force: []string{"condition:StorageReady"}}
	up := written("StorageReady", corev1.ConditionTrue, "Up", noon())
	d := Decide(node(recorded(Held, otherBoot, NewNode), cordoned, up), with(func(f *Facts) { f.BootID = otherBoot }), policy, noon())
	require.Equal(t, Released, d.Record.State)
	noted := map[string]Stamp{"StorageReady": {"2026-08-01T12:00:00Z", otherBoot}}
	require.Equal(t, noted, d.Record.Stamps)

	n := node(holding(*d.Record), up)
	d = Decide(n, ready(), policy, noon())
	require.Equal(t, Rebooted, d.Record.Reason, "the condition is of the boot before, all else is there")
	require.Equal(t, noted, d.Record.Stamps, "the note outlives the reboot")
	_, n = write(n, d, func(*corev1.Node) {})
	require.True(t, Decide(n, ready(), policy, noon()).Held)
	n.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(noon().Add(time.Hour))
	require.Equal(t, Released, Decide(n, ready(), policy, noon()).Record.State)

	then := map[string]Stamp{"StorageReady": {"then", otherBoot}}
	goingDown := with(func(f *Facts) { f.GoingDown = true })
	noted = map[string]Stamp{"StorageReady": {"2026-08-01T12:00:00Z", thisBoot}}
	for name, r := range map[string]Record{
		"in service":           {State: Released, BootID: thisBoot, Reason: NetworkReady, Stamps: then},
		"held since the birth": {State: Held, BootID: otherBoot, Reason: NewNode, Stamps: then},
		"held after a reboot":  {State: Held, BootID: thisBoot, Reason: Rebooted, Stamps: then},
	} {
		n := node(holding(r), up, func(n *corev1.Node) { n.Spec.Unschedulable = r.State == Held })
		down := Decide(n, goingDown, policy, noon())
		require.Equal(t, noted, down.Record.Stamps, "%s, as the host goes down", name)
		_, n = write(n, down, func(*corev1.Node) {})
		require.Nil(t, Decide(n, goingDown, policy, noon()).Record, "%s: noted once", name)
		next := with(func(f *Facts) { f.GoingDown, f.BootID = true, "the-next-boot" })
		require.Nil(t, Decide(n, next, policy, noon()).Record, "%s: and it stays of this boot", name)
	}
}

// TestTheMarkerIsAskedForUntilTheNodeHasServed: after a reboot no Ansible runs, and no marker would ever come.
func TestTheMarkerIsAskedForUntilTheNodeHasServed(t *testing.T) {
	policy := Policy{Force: []string{GateNetworkPlugin}, HoldUnrecorded: true}
	isReady := conditioned(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady")
	for name, c := range map[string]struct {
		node  *corev1.Node
		asked bool
	}{
		"born held":                         {node(recorded(Held, thisBoot, NewNode), cordoned), true},
		"born held, rebooted by Ansible":    {node(recorded(Held, otherBoot, NewNode), cordoned), true},
		"held by the agent at first sight":  {node(recorded(Held, thisBoot, NotReadyYet), cordoned), true},
		"not seen before, not Ready":        {node(), true},
		"not seen before, in service":       {node(isReady), false},
		"rebooted":                          {node(recorded(Released, otherBoot, NetworkReady)), false},
		"held after a reboot":               {node(recorded(Held, thisBoot, Rebooted), cordoned), false},
		"held on the way down":              {node(recorded(Held, otherBoot, GoingDown), cordoned), false},
		"released":                          {node(recorded(Released, thisBoot, NetworkReady)), false},
		"opened by somebody, then rebooted": {node(recorded(Overridden, otherBoot, EndedByHand)), false},
	} {
		t.Run(name, func(t *testing.T) {
			d := Decide(c.node, ready(), policy, noon())
			asked := len(d.Gates) == 3
			require.Equal(t, c.asked, asked, "%+v", d.Gates)
			require.Equal(t, c.asked, d.Held)
		})
	}

	// Ansible has finished in the boot before, with flannel not there yet, and does not come back.
	built := with(func(f *Facts) { f.Marker.Presence, f.Marker.BootID, f.Subnet.Presence = Present, thisBoot, Absent })
	for how, n := range map[string]*corev1.Node{"born held": node(recorded(Held, thisBoot, NewNode), cordoned), "held by the agent": node()} {
		for range 2 {
			_, n = write(n, Decide(n, built, policy, noon()), func(*corev1.Node) {})
			require.True(t, n.Spec.Unschedulable, how)
		}
		require.Nil(t, Decide(n, built, policy, noon()).Record, "%s: noted once", how)
		next := with(func(f *Facts) { f.BootID = otherBoot })
		require.False(t, Decide(n, next, policy, noon()).Held, how)
		next.Subnet.Presence = Absent
		require.True(t, Decide(n, next, policy, noon()).Held, "%s: the other gates are asked as ever", how)
	}
	stale := with(func(f *Facts) { f.Marker.Presence, f.Marker.BootID = Present, otherBoot })
	require.Nil(t, Decide(node(recorded(Held, thisBoot, NewNode), cordoned, conditioned(corev1.NodeNetworkUnavailable, corev1.ConditionTrue, HeldByHoldfast)), stale, policy, noon()).Record, "what nobody has seen in its own boot is no word")

	byTaint := Policy{TaintKey: holdTaint, Force: []string{GateNetworkPlugin}}
	require.True(t, Decide(node(tainted(holdTaint), isReady), ready(), byTaint, noon()).Held, "a node that registered with the taint has not served, Ready or not")
}
