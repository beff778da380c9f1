package holdwatch

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// bornLater says whether nodes are still born held, as soon as the API server has heard of the last change.
func (s *site) bornLater(held bool) {
	s.t.Helper()
	require.NoError(s.t, s.Obeyed(s.t.Context()))
	require.Equal(s.t, held, s.born("later").Spec.Unschedulable)
	s.remove("later")
}

func outbreak(t *testing.T, s *site) {
	w := s.watch(0)
	for i := range 12 {
		s.born(fmt.Sprintf("n%d", i))
	}
	for i := 3; i < 12; i++ {
		s.agent(fmt.Sprintf("n%d", i), true)
	}
	s.agent("n3", true)
	w.pass(5*time.Minute + 30*time.Second)
	require.NotNil(t, s.parameter(), "an image may take so long")
	first := s.parameter()
	w.pass(time.Minute)
	require.Nil(t, s.parameter(), "a quarter of the nodes are held without an agent")
	told := w.told("ConfigMap "+Parameter, EventSwitchedOff)
	require.Len(t, told, 1)
	require.Contains(t, told[0], "3 of 12 nodes")
	require.Equal(t, 1, w.metric("born_held_switched_off_total", ""))
	require.True(t, s.node("n0").Spec.Unschedulable, "those that are held stay so")
	s.bornLater(false)

	// Put back as the event says, while the nodes are still stuck.
	lines := quoted(told[0])
	require.Len(t, lines, 2)
	s.paste(lines[0])
	stuck := s.node("n2").CreationTimestamp
	require.Eventually(t, func() bool { return time.Now().Unix() > stuck.Unix() }, eventually, often, "timestamps count whole seconds")
	s.paste(lines[1])
	second := s.parameter()
	require.NotEqual(t, first.UID, second.UID)
	s.bornLater(true)
	w.pass(30 * time.Minute)
	require.NotNil(t, s.parameter())
	left := w.told("ConfigMap "+Parameter, EventLeftOn)
	require.Len(t, left, 1, "said once")
	require.Contains(t, left[0], "kubectl -n holdfast-system delete configmap "+Parameter)

	// A leader that has just started remembers nothing, and does not fight either. After an hour it asks anew.
	next := s.watch(0)
	next.pass(30 * time.Minute)
	require.NotNil(t, s.parameter())
	require.Len(t, next.told("ConfigMap "+Parameter, EventLeftOn), 1)
	next.pass(31 * time.Minute)
	require.Nil(t, s.parameter())
	require.Len(t, next.told("ConfigMap "+Parameter, EventSwitchedOff), 1)

	// One that remembers does not fight over nodes that were born since.
	s.paste(lines[1])
	require.NoError(t, s.Obeyed(t.Context()))
	for i := range 3 {
		s.remove(fmt.Sprintf("n%d", i))
		require.True(t, s.born(fmt.Sprintf("m%d", i)).Spec.Unschedulable)
	}
	w.pass(7 * time.Minute)
	require.NotNil(t, s.parameter())
	require.Len(t, w.told("ConfigMap "+Parameter, EventLeftOn), 2)
	w.pass(31 * time.Minute)
	require.Nil(t, s.parameter())
	require.Len(t, w.told("ConfigMap "+Parameter, EventSwitchedOff), 2)

	s.paste(lines[1])
	require.NoError(t, s.Obeyed(t.Context()))
	for i := range 3 {
		s.remove(fmt.Sprintf("m%d", i))
	}
	w.pass(2 * time.Hour)
	require.NotNil(t, s.parameter(), "nothing is stuck any more")
}

func tooFew(t *testing.T, s *site) {
	w := s.watch(0)
	for _, name := range []string{"n1", "n2", "n3", "n4"} {
		s.born(name)
	}
	s.agent("n3", false)
	s.agent("n4", true)
	s.goDown("n4")
	s.boot("n4", "the-next")
	w.pass(time.Hour)
	require.Equal(t, 4, w.metric("holds", "overdue"))
	require.NotNil(t, s.parameter(), "two that were born held are without an agent; one has an agent, which waits, and one was in service")
}
