package holdwatch

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

func testNewBoot(t *testing.T, f *fixture) {
	w := f.startLeader(0, releasing)
	f.createHeldNode("n1")
	w.checkNodesTimes(1)
	f.runAgent("n1", true)
	f.shutDown("n1")
	w.advance(8 * time.Minute)
	require.True(t, f.node("n1").Spec.Unschedulable)

	f.reportBoot("n1", "the-next")
	require.NotZero(t, w.serverTimeAt(w.Now()))
	w.serverTime = w.serverTime.Add(time.Hour) // The Node is old, the hold is not.
	w.advance(time.Minute)
	require.True(t, f.node("n1").Spec.Unschedulable)
	require.Empty(t, w.events)
	w.advance(time.Minute + 30*time.Second)
	require.Len(t, w.eventMessages("Node n1", readiness.AgentMissing), 1)
	w.advance(8 * time.Minute)
	require.False(t, f.node("n1").Spec.Unschedulable)
	require.Equal(t, "the-next", record(t, f.node("n1")).BootID)
}

// testNewBootNetworkUp: the machine of a node that was born held is off for an hour. In the next
// boot flannel clears the condition while another gate is closed. The record keeps the boot in
// which the hold began, so that a new leader does not count from the creation of the Node.
func testNewBootNetworkUp(t *testing.T, f *fixture) {
	f.createHeldNode("n1")
	f.runAgentWithFacts("n1", readiness.Facts{GoingDown: true})
	f.reportBoot("n1", "the-next")
	f.patch("n1", `{"status":{"conditions":[{"type":"NetworkUnavailable","status":"False","reason":"FlannelIsUp"}]}}`,
		"status")
	r := record(t, f.runAgent("n1", false))
	require.Equal(t, "FlannelIsUp", r.NetworkUp)
	require.Equal(t, "the-next", r.BootID)

	w := f.startLeader(0, releasing)
	w.checkNodesTimes(1)
	require.NotZero(t, w.serverTimeAt(w.Now()))
	requireNewAge(t, f, w)
}

// testNewBootUnknown: the record has no boot, because the kubelet reported none when it registered.
// Only a leader that has observed the reboot can know that the hold is younger than the Node.
func testNewBootUnknown(t *testing.T, f *fixture) {
	f.createHeldNode("n1")
	held := readiness.Record{State: readiness.Held, Reason: readiness.NewNode}
	f.setRecord("n1", held.Format())
	w := f.startLeader(0, releasing)
	w.checkNodesTimes(1)
	require.NotZero(t, w.serverTimeAt(w.Now()))
	f.reportBoot("n1", "the-next")
	requireNewAge(t, f, w)
}

// testNewBootBornHeld: the machine of a node that was born held is off for an hour. The age of its
// hold begins again, also for a later leader if the record shows the earlier boot.
func testNewBootBornHeld(t *testing.T, f *fixture) {
	w := f.startLeader(0, releasing)
	created := f.createHeldNode("n1")
	w.checkNodesTimes(1)
	f.runAgentWithFacts("n1", readiness.Facts{GoingDown: true})
	f.reportBoot("n1", "the-next")
	w.serverTime = w.serverTime.Add(time.Hour)
	w.advance(time.Minute)
	require.True(t, f.node("n1").Spec.Unschedulable)
	require.Empty(t, w.events)

	held := readiness.Record{
		State: readiness.Held, Reason: readiness.NewNode, BootID: created.Status.NodeInfo.BootID, NetworkUp: "FlannelIsUp",
	}
	f.setRecord("n1", held.Format())
	next := f.startLeader(0, releasing)
	next.checkNodesTimes(1)
	require.NotZero(t, next.serverTimeAt(next.Now()))
	next.serverTime = next.serverTime.Add(time.Hour)
	next.advance(time.Minute)
	require.True(t, f.node("n1").Spec.Unschedulable)
	require.Empty(t, next.events)
}

// requireNewAge checks that the age of a hold counts from now, although the Node is an hour old.
func requireNewAge(t *testing.T, f *fixture, w *testWatcher) {
	t.Helper()
	w.serverTime = w.serverTime.Add(time.Hour)
	w.advance(time.Minute)
	require.True(t, f.node("n1").Spec.Unschedulable)
	require.Empty(t, w.events)
	w.advance(9*time.Minute + 30*time.Second)
	require.False(t, f.node("n1").Spec.Unschedulable)
}

// testAnotherShutdown: the host of a node that is held since an earlier boot shuts down again, for
// longer than an agent may be missing. The agent is reported only after the next boot.
func testAnotherShutdown(t *testing.T, f *fixture) {
	w := f.startLeader(0)
	f.createHeldNode("n1")
	w.advance(time.Minute)
	f.runAgent("n1", false)
	f.reportBoot("n1", "the-next")
	w.advance(3 * time.Minute)
	require.NotEqual(t, "the-next", record(t, f.node("n1")).BootID)

	down := f.runAgentWithFacts("n1", readiness.Facts{GoingDown: true})
	require.Equal(t, readiness.GoingDown, condition(down, readiness.NetworkHeld).Reason)
	w.advance(3 * time.Minute)
	require.Equal(t, down.ResourceVersion, f.node("n1").ResourceVersion)
	require.Empty(t, w.events)
	require.Equal(t, 1, w.metric("holds", "waiting"))

	f.reportBoot("n1", "the-one-after")
	w.advance(3 * time.Minute)
	require.Equal(t, readiness.AgentMissing, condition(f.node("n1"), readiness.NetworkHeld).Reason)
	require.Len(t, w.eventMessages("Node n1", readiness.AgentMissing), 1)
}
