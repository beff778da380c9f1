package holdwatch

import (
	"context"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

func TestWatcher(t *testing.T) {
	server := testenv.NewInstalledAPIServer(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *site)
	}{
		{"a hold without an agent is loud, and stays a hold", agentMissing},
		{"the agent that comes at last takes over", agentComesLate},
		{"the printed command releases from a taint", printedReleaseOfTaint},
		{"a node that was opened by halves is opened", openedByHalves},
		{"a hold that lasts is told, and is left to its agent", overdueKept},
		{"a hold that lasts is ended if that is asked for", overdueReleased},
		{"an old cache releases nothing", staleCache},
		{"an agent that comes at the last moment is not spoken over", lastMoment},
		{"who does not lead counts, and does nothing", followers},
		{"no clock but the API server's makes a hold old", skewedClocks},
		{"a new boot is a new hold", rebooted},
		{"a release that crashed is finished", crashed},
		{"a leader that crashes leaves its release to the next", crashedLeader},
		{"the parameter is taken away, and not fought over", outbreak},
		{"few stuck nodes leave the parameter", tooFew},
		// The last, for the controller that it starts goes on writing Nodes.
		{"the printed command releases", printedRelease},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, &site{server, t}) })
	}
}

func agentMissing(t *testing.T, s *site) {
	w := s.watch(0)
	before := s.born("n1")
	w.pass(time.Minute + 50*time.Second)
	require.Equal(t, before.ResourceVersion, s.node("n1").ResourceVersion)
	require.Empty(t, w.stories)
	require.Equal(t, 1, w.requests, "for the API server's time")
	left, err := s.Client().CoreV1().ConfigMaps(namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.False(t, slices.ContainsFunc(left.Items, func(m corev1.ConfigMap) bool { return strings.HasPrefix(m.Name, "holdfast-clock") }))
	require.Equal(t, 1, w.metric("holds", "waiting"))

	w.pass(10 * time.Second)
	held := s.node("n1")
	c := condition(held, readiness.NetworkHeld)
	require.Equal(t, corev1.ConditionTrue, c.Status)
	require.Equal(t, readiness.AgentMissing, c.Reason)
	require.WithinDuration(t, time.Now(), c.LastTransitionTime.Time, time.Minute)
	require.True(t, held.Spec.Unschedulable)
	require.Equal(t, before.Annotations, held.Annotations)
	require.True(t, slices.ContainsFunc(held.ManagedFields, func(f metav1.ManagedFieldsEntry) bool {
		return f.Manager == FieldManager && f.Subresource == "status"
	}))
	require.Equal(t, []string{c.Message}, w.told("Node n1", readiness.AgentMissing))
	require.Equal(t, 1, w.metric("holds", "agent_missing"))
	require.Equal(t, 0, w.metric("holds", "waiting"))
	require.InDelta(t, 120, w.metric("oldest_hold_seconds", ""), 30)

	// Said once, by this leader and by the next, and then nothing is asked of the API server.
	asked := w.requests
	w.pass(time.Minute)
	require.Equal(t, held.ResourceVersion, s.node("n1").ResourceVersion)
	require.Equal(t, asked, w.requests)
	next := s.watch(0)
	next.pass(3 * time.Minute)
	require.Equal(t, held.ResourceVersion, s.node("n1").ResourceVersion)
	require.Empty(t, next.stories)
	require.Len(t, w.stories, 1)

	w.pass(7 * time.Minute)
	c = condition(s.node("n1"), readiness.NetworkHeld)
	require.Equal(t, readiness.Overdue, c.Reason)
	require.True(t, s.node("n1").Spec.Unschedulable)
	require.Equal(t, []string{c.Message}, w.told("Node n1", readiness.EventOverdue))
	require.Equal(t, 1, w.metric("holds", "overdue"))
	require.NotNil(t, s.parameter(), "one node is no outbreak")

	s.remove("n1")
	w.rounds(1)
	require.Equal(t, 0, w.metric("holds", "overdue"))
	require.Equal(t, 0, w.metric("oldest_hold_seconds", ""))
	require.Empty(t, w.sightings)
}

func agentComesLate(t *testing.T, s *site) {
	w := s.watch(0)
	s.born("n1")
	w.pass(3 * time.Minute)
	require.Equal(t, readiness.AgentMissing, condition(s.node("n1"), readiness.NetworkHeld).Reason)

	waiting := s.agent("n1", false)
	require.Equal(t, readiness.WaitingForCNI, condition(waiting, readiness.NetworkHeld).Reason)
	w.pass(time.Minute)
	require.Equal(t, waiting.ResourceVersion, s.node("n1").ResourceVersion, "the condition is the agent's now")
	require.Equal(t, 1, w.metric("holds", "waiting"))

	released := s.agent("n1", true)
	require.False(t, released.Spec.Unschedulable)
	require.Equal(t, readiness.Released, record(t, released).State)
	w.pass(time.Hour)
	require.Equal(t, released.ResourceVersion, s.node("n1").ResourceVersion)
}

func staleCache(t *testing.T, s *site) {
	w := s.watch(0, releasing)
	for _, name := range []string{"n1", "n2", "n3"} {
		s.born(name)
	}
	w.rounds(1)
	w.freeze()
	var released []string
	for _, name := range []string{"n1", "n2"} {
		released = append(released, s.agent(name, true).ResourceVersion)
	}
	s.remove("n3")
	released = append(released, s.born("n3").ResourceVersion) // Another one, and young.
	for range 3 {
		w.ahead += 5 * time.Minute
		require.NoError(t, w.round(t.Context()))
	}
	require.Empty(t, w.stories)
	for i, name := range []string{"n1", "n2", "n3"} {
		require.Equal(t, released[i], s.node(name).ResourceVersion)
	}
	require.NotNil(t, s.parameter(), "nor is the policy switched off by it")
}

// lateReader lets something happen between a look at a Node and the write that follows.
type lateReader struct {
	typedcorev1.NodeInterface
	meanwhile func()
}

func (l lateReader) Get(ctx context.Context, name string, o metav1.GetOptions) (*corev1.Node, error) {
	node, err := l.NodeInterface.Get(ctx, name, o)
	l.meanwhile()
	return node, err
}

func lastMoment(t *testing.T, s *site) {
	for _, age := range []time.Duration{2 * time.Minute, 10 * time.Minute} {
		var spoken *corev1.Node
		w := s.watch(0, releasing, func(o *Options) {
			o.Nodes = lateReader{o.Nodes, func() {
				if spoken == nil {
					spoken = s.agent("n1", false)
				}
			}}
		})
		s.born("n1")
		w.rounds(1)
		w.ahead += age
		w.rounds(1)
		require.NotNil(t, spoken)
		require.Equal(t, spoken.ResourceVersion, s.node("n1").ResourceVersion)
		require.Empty(t, w.told("Node n1", readiness.EventGivenUp))
		s.remove("n1")
	}
}

func followers(t *testing.T, s *site) {
	w := s.follow(0, releasing)
	node := s.born("n1")
	w.pass(20 * time.Minute)
	require.Equal(t, node.ResourceVersion, s.node("n1").ResourceVersion)
	require.Empty(t, w.stories)
	require.Equal(t, 0, w.metric("holds", "overdue"))

	// Elected, it gives agents a moment: after an outage they have as much to catch up on as it has.
	w.elect()
	w.rounds(3)
	require.Equal(t, node.ResourceVersion, s.node("n1").ResourceVersion)
	require.Equal(t, 1, w.metric("holds", "overdue"), "it has counted all the while")
	w.pass(30 * time.Second)
	require.False(t, s.node("n1").Spec.Unschedulable)
}

func skewedClocks(t *testing.T, s *site) {
	s.born("n1")
	for _, off := range []time.Duration{-time.Hour, time.Hour} {
		w := s.watch(off, releasing)
		w.pass(time.Minute)
		require.True(t, s.node("n1").Spec.Unschedulable, "clock off by %s", off)
		require.Empty(t, w.stories, "clock off by %s", off)
		require.InDelta(t, 60, w.metric("oldest_hold_seconds", ""), 30)
	}
	// A replica that has just started knows a hold's age by the API server's clock.
	w := s.watch(time.Hour, releasing)
	w.rounds(1)
	require.WithinDuration(t, time.Now(), w.clock.at(w.o.Now()), 5*time.Second)
	w.clock.stamp = w.clock.stamp.Add(9 * time.Minute)
	w.pass(40 * time.Second)
	require.True(t, s.node("n1").Spec.Unschedulable)
	w.pass(time.Minute)
	require.False(t, s.node("n1").Spec.Unschedulable)
}

func rebooted(t *testing.T, s *site) {
	w := s.watch(0, releasing)
	s.born("n1")
	w.rounds(1)
	s.agent("n1", true)
	s.goDown("n1")
	w.pass(9 * time.Minute)
	require.True(t, s.node("n1").Spec.Unschedulable)

	s.boot("n1", "the-next")
	require.NotZero(t, w.clock.at(w.o.Now()))
	w.clock.stamp = w.clock.stamp.Add(time.Hour) // The Node is old, the hold is not.
	w.pass(time.Minute + 30*time.Second)
	require.True(t, s.node("n1").Spec.Unschedulable)
	require.Empty(t, w.stories)
	w.pass(time.Minute)
	require.Len(t, w.told("Node n1", readiness.AgentMissing), 1)
	w.pass(8 * time.Minute)
	require.False(t, s.node("n1").Spec.Unschedulable)
	require.Equal(t, "the-next", record(t, s.node("n1")).BootID)
}

func crashed(t *testing.T, s *site) {
	w := s.watch(0)
	s.born("n1")
	s.agent("n1", false)
	half := readiness.Record{State: readiness.Released, BootID: s.node("n1").Status.NodeInfo.BootID, Reason: readiness.NetworkReady}
	_, err := s.Kubectl(t.Context(), "annotate", "node", "n1", "--overwrite", readiness.HoldAnnotation+"="+half.Format())
	require.NoError(t, err)
	_, err = s.Kubectl(t.Context(), "uncordon", "n1")
	require.NoError(t, err)
	w.pass(time.Minute)
	require.Equal(t, corev1.ConditionTrue, condition(s.node("n1"), corev1.NodeNetworkUnavailable).Status)
	require.Equal(t, 1, w.metric("holds", "ending"))
	w.pass(time.Minute)
	after := s.node("n1")
	require.Equal(t, corev1.ConditionFalse, condition(after, corev1.NodeNetworkUnavailable).Status)
	require.Equal(t, readiness.NotHeld, condition(after, readiness.NetworkHeld).Reason)
	require.Equal(t, 0, w.metric("holds", "ending"))
	require.Equal(t, after.ResourceVersion, s.agent("n1", false).ResourceVersion, "an agent that comes later has nothing to add")
}

// crashedLeader: the leader opens a node on which no agent has ever looked, and its second write fails. Whoever leads next
// owes what is left, at once.
func crashedLeader(t *testing.T, s *site) {
	w := s.watch(0, releasing, func(o *Options) { o.Nodes = halfWriter{o.Nodes} })
	s.born("n1")
	w.rounds(1)
	w.ahead += 11 * time.Minute
	require.Error(t, w.round(t.Context()))
	half := s.node("n1")
	require.False(t, half.Spec.Unschedulable)
	require.Equal(t, readiness.Released, record(t, half).State)
	require.Equal(t, corev1.ConditionTrue, condition(half, corev1.NodeNetworkUnavailable).Status)
	require.Len(t, w.told("Node n1", readiness.EventGivenUp), 1, "it is open, and that is told")

	next := s.watch(0)
	next.pass(30 * time.Second)
	free := s.node("n1")
	require.Equal(t, corev1.ConditionFalse, condition(free, corev1.NodeNetworkUnavailable).Status)
	require.Equal(t, readiness.NotHeld, condition(free, readiness.NetworkHeld).Reason)
	require.Empty(t, next.stories)
	next.pass(time.Hour)
	require.Equal(t, free.ResourceVersion, s.node("n1").ResourceVersion)
}

// halfWriter is an API server that is gone for every write of conditions.
type halfWriter struct{ typedcorev1.NodeInterface }

func (h halfWriter) Patch(ctx context.Context, name string, kind types.PatchType, body []byte, o metav1.PatchOptions, sub ...string) (*corev1.Node, error) {
	if len(sub) > 0 {
		return nil, syscall.ECONNREFUSED
	}
	return h.NodeInterface.Patch(ctx, name, kind, body, o)
}
