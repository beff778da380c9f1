package holdwatch

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/holdfast-dev/holdfast/internal/shared/apiaccess"
	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/internal/testenv/process"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

func TestWatcher(t *testing.T) {
	server := apiserver.NewInstalled(t)
	apiserver.RequireBornHeld(t, server)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *fixture)
	}{
		{"agent missing", testAgentMissing},
		{"reason that is no text", testHostileReason},
		{"late agent", testLateAgent},
		{"agent at the last moment", testAgentAtLastMoment},
		{"printed command, taint", testPrintedTaintCommand},
		{"partly opened node", testPartlyOpened},
		{"overdue hold, kept", testOverdueKept},
		{"overdue hold, released", testOverdueReleased},
		{"overdue hold, drained", testOverdueDrained},
		{"drained at the last moment", testDrainAtLastMoment},
		{"stale cache", testStaleCache},
		{"follower", testFollower},
		{"wrong clocks", testWrongClocks},
		{"slow answer with the time", testSlowClock},
		{"fast clock", testFastClock},
		{"new boot", testNewBoot},
		{"new boot, network up", testNewBootNetworkUp},
		{"new boot, record without boot ID", testNewBootUnknown},
		{"new boot of a node that was born held", testNewBootBornHeld},
		{"another shutdown", testAnotherShutdown},
		{"interrupted release", testInterruptedRelease},
		{"interrupted leader", testInterruptedLeader},
		{"mass hold", testMassHold},
		{"few stuck nodes", testFewStuckNodes},
		// The last one, because it starts a controller that continues to write Nodes.
		{"printed command", testPrintedCommand},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, &fixture{server, t}) })
	}
}

func testAgentMissing(t *testing.T, f *fixture) {
	w := f.startLeader(0)
	before := f.createHeldNode("n1")
	w.advance(time.Minute)
	require.Equal(t, before.ResourceVersion, f.node("n1").ResourceVersion)
	require.Empty(t, w.events)
	require.Equal(t, 1, w.requests, "the API server's time")
	left, err := f.Client().CoreV1().ConfigMaps(namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	isClock := func(m corev1.ConfigMap) bool { return strings.HasPrefix(m.Name, "holdfast-clock") }
	require.False(t, slices.ContainsFunc(left.Items, isClock))
	require.Equal(t, 1, w.metric("holds", "waiting"))

	w.advance(time.Minute)
	held := f.node("n1")
	c := condition(held, readiness.NetworkHeld)
	require.Equal(t, corev1.ConditionTrue, c.Status)
	require.Equal(t, readiness.AgentMissing, c.Reason)
	require.WithinDuration(t, time.Now(), c.LastTransitionTime.Time, time.Minute)
	require.True(t, held.Spec.Unschedulable)
	require.Equal(t, before.Annotations, held.Annotations)
	require.True(t, slices.ContainsFunc(held.ManagedFields, func(entry metav1.ManagedFieldsEntry) bool {
		return entry.Manager == apiaccess.WebhookFieldManager && entry.Subresource == "status"
	}))
	require.Equal(t, []string{c.Message}, w.eventMessages("Node n1", readiness.AgentMissing))
	require.Equal(t, 1, w.metric("holds", "agent_missing"))
	require.Equal(t, 0, w.metric("holds", "waiting"))
	w.checkNodesTimes(1)
	require.Equal(t, 1, w.metric("held_nodes", readiness.AgentMissing))
	require.InDelta(t, 180, w.metric("oldest_hold_seconds", ""), 60)

	// This leader and the next one report it once in total, and then send no requests.
	requests := w.requests
	w.advance(time.Minute)
	require.Equal(t, held.ResourceVersion, f.node("n1").ResourceVersion)
	require.Equal(t, requests, w.requests)
	next := f.startLeader(0)
	next.advance(3 * time.Minute)
	require.Equal(t, held.ResourceVersion, f.node("n1").ResourceVersion)
	require.Empty(t, next.events)
	require.Len(t, w.events, 1)

	w.advance(7 * time.Minute)
	c = condition(f.node("n1"), readiness.NetworkHeld)
	require.Equal(t, readiness.Overdue, c.Reason)
	require.True(t, f.node("n1").Spec.Unschedulable)
	require.Equal(t, []string{c.Message}, w.eventMessages("Node n1", readiness.EventOverdue))
	require.Equal(t, 1, w.metric("holds", "overdue"))
	w.checkNodesTimes(1)
	require.Equal(t, map[string]int{readiness.Overdue: 1}, w.metrics.reasons)
	require.NotNil(t, f.parameter(), "one node is not a mass hold")

	f.deleteNode("n1")
	w.checkNodesTimes(1)
	require.Empty(t, w.metrics.reasons)
	require.Equal(t, 0, w.metric("holds", "overdue"))
	require.Equal(t, 0, w.metric("oldest_hold_seconds", ""))
	require.Empty(t, w.tracked)
}

// A kubelet writes protobuf, in which a text need not be UTF-8.
func testHostileReason(t *testing.T, f *fixture) {
	w := f.startLeader(0)
	f.createHeldNode("n1")
	f.createHeldNode("n2")
	config, err := f.Kubelet("n1")
	require.NoError(t, err)
	config.ContentType = runtime.ContentTypeProtobuf
	kubelet, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	node := f.node("n1")
	node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
		Type: readiness.NetworkHeld, Status: corev1.ConditionTrue, Reason: "\xff",
	})
	_, err = kubelet.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
	require.NoError(t, err)
	w.advance(3 * time.Minute)
	require.Equal(t, readiness.AgentMissing, condition(f.node("n2"), readiness.NetworkHeld).Reason)
}

func testLateAgent(t *testing.T, f *fixture) {
	w := f.startLeader(0)
	f.createHeldNode("n1")
	w.advance(3 * time.Minute)
	require.Equal(t, readiness.AgentMissing, condition(f.node("n1"), readiness.NetworkHeld).Reason)

	waiting := f.runAgent("n1", false)
	require.Equal(t, readiness.WaitingForCNI, condition(waiting, readiness.NetworkHeld).Reason)
	w.advance(time.Minute)
	require.Equal(t, waiting.ResourceVersion, f.node("n1").ResourceVersion, "the agent maintains the condition now")
	require.Equal(t, 1, w.metric("holds", "waiting"))

	released := f.runAgent("n1", true)
	require.False(t, released.Spec.Unschedulable)
	require.Equal(t, readiness.Released, record(t, released).State)
	w.advance(time.Hour)
	require.Equal(t, released.ResourceVersion, f.node("n1").ResourceVersion)
}

// testOverdueDrained: the leader opens no node whose drain relies on the cordon of its hold.
func testOverdueDrained(t *testing.T, f *fixture) {
	w := f.startLeader(0, releasing)
	f.drain(f.createHeldNode("n1"))
	w.waitForCache()
	w.checkNodesTimes(1)
	w.clockOffset += time.Hour
	w.checkNodesTimes(3)
	require.True(t, f.node("n1").Spec.Unschedulable)
	require.Equal(t, 1, w.metric("holds", string(readiness.HoldBehindOthers)))
}

// testDrainAtLastMoment: a drain is allowed after the leader has decided to end the hold.
func testDrainAtLastMoment(t *testing.T, f *fixture) {
	node, isDrained := f.createHeldNode("n1"), false
	w := f.startLeader(0, releasing, func(o *Options) {
		o.Nodes = interruptedReader{o.Nodes, func() {
			if !isDrained {
				f.drain(node)
			}
			isDrained = true
		}}
	})
	w.checkNodesTimes(1)
	require.False(t, isDrained, "the Node has not been read")
	w.clockOffset += time.Hour
	w.checkNodesTimes(1)
	require.True(t, isDrained)
	require.True(t, f.node("n1").Spec.Unschedulable)
}

func testStaleCache(t *testing.T, f *fixture) {
	w := f.startLeader(0, releasing)
	for _, name := range []string{"n1", "n2", "n3"} {
		f.createHeldNode(name)
	}
	w.checkNodesTimes(1)
	w.freeze()
	var versions []string
	for _, name := range []string{"n1", "n2"} {
		versions = append(versions, f.runAgent(name, true).ResourceVersion)
	}
	f.deleteNode("n3")
	// It is another Node, and young.
	versions = append(versions, f.createHeldNode("n3").ResourceVersion)
	for range 3 {
		w.clockOffset += 5 * time.Minute
		require.NoError(t, w.check())
	}
	require.Empty(t, w.events)
	for i, name := range []string{"n1", "n2", "n3"} {
		require.Equal(t, versions[i], f.node(name).ResourceVersion)
	}
	require.NotNil(t, f.parameter(), "the policy stays enabled")
}

// interruptedReader calls a function after each read of a Node, before the write that follows.
type interruptedReader struct {
	typedcorev1.NodeInterface
	meanwhile func()
}

func (r interruptedReader) Get(ctx context.Context, name string, o metav1.GetOptions) (*corev1.Node, error) {
	node, err := r.NodeInterface.Get(ctx, name, o)
	r.meanwhile()
	return node, err
}

func testAgentAtLastMoment(t *testing.T, f *fixture) {
	for _, age := range []time.Duration{2 * time.Minute, 10 * time.Minute} {
		var byAgent *corev1.Node
		w := f.startLeader(0, releasing, func(o *Options) {
			o.Nodes = interruptedReader{o.Nodes, func() {
				if byAgent == nil {
					byAgent = f.runAgent("n1", false)
				}
			}}
		})
		f.createHeldNode("n1")
		w.checkNodesTimes(1)
		w.clockOffset += age
		w.checkNodesTimes(1)
		require.NotNil(t, byAgent)
		require.Equal(t, byAgent.ResourceVersion, f.node("n1").ResourceVersion, "the agent's write is kept")
		require.Empty(t, w.eventMessages("Node n1", readiness.EventGivenUp))
		f.deleteNode("n1")
	}
}

func testFollower(t *testing.T, f *fixture) {
	w := f.startFollower(0, releasing)
	node := f.createHeldNode("n1")
	w.advance(20 * time.Minute)
	require.Equal(t, node.ResourceVersion, f.node("n1").ResourceVersion)
	require.Empty(t, w.events)
	require.Equal(t, 0, w.metric("holds", "overdue"))

	// After its election it waits: after an outage, the agents also have work to catch up on.
	w.isLeading = true
	w.checkNodesTimes(3)
	require.Equal(t, node.ResourceVersion, f.node("n1").ResourceVersion)
	require.Equal(t, 1, w.metric("holds", "overdue"), "it measured the age as a follower")
	w.advance(30 * time.Second)
	require.False(t, f.node("n1").Spec.Unschedulable)
}

func testWrongClocks(t *testing.T, f *fixture) {
	f.createHeldNode("n1")
	for _, offset := range []time.Duration{-time.Hour, time.Hour} {
		w := f.startLeader(offset, releasing)
		w.advance(time.Minute)
		require.True(t, f.node("n1").Spec.Unschedulable, "clock wrong by %s", offset)
		require.Empty(t, w.events, "clock wrong by %s", offset)
		require.InDelta(t, 90, w.metric("oldest_hold_seconds", ""), 30)
	}
	// A new replica measures the age of a hold with the API server's clock.
	w := f.startLeader(time.Hour, releasing)
	w.checkNodesTimes(1)
	require.WithinDuration(t, time.Now(), w.serverTimeAt(w.Now()), time.Minute)
	w.serverTime = w.serverTime.Add(8 * time.Minute)
	w.advance(30 * time.Second)
	require.True(t, f.node("n1").Spec.Unschedulable)
	w.advance(2 * time.Minute)
	require.False(t, f.node("n1").Spec.Unschedulable)
}

// testSlowClock: the answer with the API server's time takes minutes. Later nodes are not older for
// that.
func testSlowClock(t *testing.T, f *fixture) {
	slow := &slowCreator{}
	w := f.startLeader(0, func(o *Options) { slow.ConfigMapInterface, o.ConfigMaps = o.ConfigMaps, slow })
	slow.meanwhile = func() { w.clockOffset += 5 * time.Minute }
	f.createHeldNode("n1")
	w.checkNodesTimes(1)
	require.NotZero(t, w.readAt)
	f.createHeldNode("n2")
	w.checkNodesTimes(1)
	require.Len(t, w.eventMessages("Node n1", readiness.AgentMissing), 1)
	require.Empty(t, w.eventMessages("Node n2", readiness.AgentMissing))
}

// testFastClock: the clock of this machine gains an hour in a day. Later nodes are not older for
// that.
func testFastClock(t *testing.T, f *fixture) {
	w := f.startLeader(0)
	f.createHeldNode("n1")
	w.advance(serverTimeLife + time.Hour)
	f.createHeldNode("n2")
	w.checkNodesTimes(1)
	require.Equal(t, 1, w.metric("holds", "waiting"))
}

// slowCreator calls a function during each creation of a ConfigMap.
type slowCreator struct {
	typedcorev1.ConfigMapInterface
	meanwhile func()
}

func (c slowCreator) Create(
	ctx context.Context, m *corev1.ConfigMap, o metav1.CreateOptions,
) (*corev1.ConfigMap, error) {
	c.meanwhile()
	return c.ConfigMapInterface.Create(ctx, m, o)
}

// TestOperatorPages checks that the pages for operators explain the names in messages and metrics.
func TestOperatorPages(t *testing.T) {
	root, err := process.RepositoryRoot()
	require.NoError(t, err)
	var page string
	for _, name := range []string{"operations.md", "holds/README.md", "holds/BornHeldSwitchedOff.md"} {
		text, err := os.ReadFile(filepath.Join(root, "docs", name))
		require.NoError(t, err)
		page += string(text)
	}
	held := readiness.Record{State: readiness.Held, Reason: readiness.NewNode}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "NAME", Annotations: map[string]string{readiness.HoldAnnotation: held.Format()},
	}}
	node.Spec.Unschedulable = true
	require.Contains(t, page, readiness.ReleaseCommand(node))
	require.Contains(t, page, "kubectl -n "+namespace+" create configmap "+Parameter)
	words := []string{
		readiness.AgentMissing, readiness.Overdue, readiness.EventOverdue, readiness.EventGivenUp,
		EventSwitchedOff, EventLeftOn,
	}
	for _, state := range readiness.HoldStates() {
		words = append(words, string(state))
	}
	for _, word := range words {
		require.Contains(t, page, "`"+word+"`")
	}
	registry := prometheus.NewRegistry()
	newMetrics(registry)
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		require.Contains(t, page, family.GetName())
	}
}
