package holdwatch

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// requireBornHeld checks whether a new node is born held, after the API server has observed the
// last change of the parameter.
func (f *fixture) requireBornHeld(held bool) {
	f.t.Helper()
	require.NoError(f.t, f.WaitForPolicies(f.t.Context()))
	require.Equal(f.t, held, f.createHeldNode("later").Spec.Unschedulable)
	f.deleteNode("later")
}

func testMassHold(t *testing.T, f *fixture) {
	w := f.startLeader(0)
	for i := range 12 {
		f.createHeldNode(fmt.Sprintf("n%d", i))
	}
	for i := 3; i < 12; i++ {
		f.runAgent(fmt.Sprintf("n%d", i), true)
	}
	f.runAgent("n3", true)
	w.advance(4 * time.Minute)
	require.NotNil(t, f.parameter(), "pulling an image may take this long")
	first := f.parameter()
	w.advance(2*time.Minute + 30*time.Second)
	require.Nil(t, f.parameter(), "a quarter of the nodes are held without an agent")
	messages := w.eventMessages("ConfigMap "+Parameter, EventSwitchedOff)
	require.Len(t, messages, 1)
	require.Contains(t, messages[0], "3 of 12 nodes")
	require.Equal(t, 1, w.metric("born_held_switched_off_total", ""))
	require.True(t, f.node("n0").Spec.Unschedulable, "held nodes stay held")
	f.requireBornHeld(false)

	// The parameter is restored with the command from the event, while nodes are still stuck.
	lines := commandsIn(messages[0])
	require.Len(t, lines, 2)
	f.runShell(lines[0])
	stuck := f.node("n2").CreationTimestamp
	require.Eventually(t, func() bool { return time.Now().Unix() > stuck.Unix() }, timeout, pollInterval,
		"timestamps have whole seconds")
	f.runShell(lines[1])
	second := f.parameter()
	require.NotEqual(t, first.UID, second.UID)
	f.requireBornHeld(true)
	w.advance(30 * time.Minute)
	require.NotNil(t, f.parameter())
	left := w.eventMessages("ConfigMap "+Parameter, EventLeftOn)
	require.Len(t, left, 1, "reported once")
	require.Contains(t, left[0], "kubectl -n holdfast-system delete configmap "+Parameter)

	// A new leader has no state, and also leaves the parameter. After an hour it decides again.
	next := f.startLeader(0)
	next.advance(30 * time.Minute)
	require.NotNil(t, f.parameter())
	require.Len(t, next.eventMessages("ConfigMap "+Parameter, EventLeftOn), 1)
	next.advance(31 * time.Minute)
	require.Nil(t, f.parameter())
	require.Len(t, next.eventMessages("ConfigMap "+Parameter, EventSwitchedOff), 1)

	// The first leader knows when it deleted the parameter, and does not delete it again because of
	// nodes that were created since.
	f.runShell(lines[1])
	require.NoError(t, f.WaitForPolicies(t.Context()))
	for i := range 3 {
		f.deleteNode(fmt.Sprintf("n%d", i))
		require.True(t, f.createHeldNode(fmt.Sprintf("m%d", i)).Spec.Unschedulable)
	}
	w.advance(7 * time.Minute)
	require.NotNil(t, f.parameter())
	require.Len(t, w.eventMessages("ConfigMap "+Parameter, EventLeftOn), 2)
	w.advance(31 * time.Minute)
	require.Nil(t, f.parameter())
	require.Len(t, w.eventMessages("ConfigMap "+Parameter, EventSwitchedOff), 2)

	f.runShell(lines[1])
	require.NoError(t, f.WaitForPolicies(t.Context()))
	for i := range 3 {
		f.deleteNode(fmt.Sprintf("m%d", i))
	}
	w.advance(2 * time.Hour)
	require.NotNil(t, f.parameter(), "no node is stuck any more")
}

func testFewStuckNodes(t *testing.T, f *fixture) {
	w := f.startLeader(0)
	for _, name := range []string{"n1", "n2", "n3", "n4"} {
		f.createHeldNode(name)
	}
	f.runAgent("n3", false)
	f.runAgent("n4", true)
	f.shutDown("n4")
	f.reportBoot("n4", "the-next")
	w.advance(time.Hour)
	require.Equal(t, 4, w.metric("holds", "overdue"))
	require.NotNil(t, f.parameter(), "only two nodes count: n3 has an agent, and n4 was in service")
}
