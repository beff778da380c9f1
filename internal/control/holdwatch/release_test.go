package holdwatch

import (
	"context"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

const scaleDownMark = "cluster-autoscaler.kubernetes.io/scale-down-disabled"

func testPrintedCommand(t *testing.T, f *fixture) {
	_, err := f.StartControllers("node-lifecycle-controller")
	require.NoError(t, err)
	w := f.startLeader(0)
	f.createHeldNode("n1")
	closingTaints := func() (keys []string) {
		for _, taint := range f.node("n1").Spec.Taints {
			if taint.Key == corev1.TaintNodeUnschedulable || taint.Key == corev1.TaintNodeNetworkUnavailable {
				keys = append(keys, taint.Key)
			}
		}
		return keys
	}
	require.Eventually(t, func() bool { return len(closingTaints()) == 2 }, timeout, pollInterval)
	require.Eventually(t, func() bool { // The controller may write between a read and a write.
		w.advance(3 * time.Minute)
		return condition(f.node("n1"), readiness.NetworkHeld).Reason != ""
	}, timeout, pollInterval)
	lines := commandsIn(condition(f.node("n1"), readiness.NetworkHeld).Message)
	require.Len(t, lines, 3)
	f.runShell(lines[0])
	require.Equal(t, "kubectl holdfast release n1", lines[1])
	require.Equal(t, readiness.ReleaseCommand(f.node("n1")), lines[2])
	f.runShell(lines[2])

	free := f.node("n1")
	require.False(t, free.Spec.Unschedulable)
	require.Equal(t, corev1.ConditionFalse, condition(free, corev1.NodeNetworkUnavailable).Status)
	require.Eventually(t, func() bool { return len(closingTaints()) == 0 }, timeout, pollInterval, "pods can be scheduled")

	overridden := f.runAgent("n1", false)
	require.Equal(t, readiness.Overridden, record(t, overridden).State)
	require.False(t, overridden.Spec.Unschedulable, "a later agent respects the override")
}

func testPrintedTaintCommand(t *testing.T, f *fixture) {
	w := f.startLeader(0)
	f.createHeldNode("n1")
	const key = "readiness.k8s.io/holdfast"
	f.uncordon("n1")
	f.patch("n1", `{"spec":{"taints":[{"key":"`+key+`","value":"x","effect":"NoSchedule"},
		{"key":"example.org/mine","effect":"NoSchedule"}]}}`)
	held := readiness.Record{
		State: readiness.Held, BootID: f.node("n1").Status.NodeInfo.BootID, Reason: readiness.NewNode, Taint: key,
	}
	f.setRecord("n1", held.Format())
	w.advance(3 * time.Minute)
	lines := commandsIn(condition(f.node("n1"), readiness.NetworkHeld).Message)
	require.Len(t, lines, 3)
	f.runShell(lines[2])
	hasTaint := func(key string) bool {
		return slices.ContainsFunc(f.node("n1").Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == key })
	}
	require.False(t, hasTaint(key))
	require.True(t, hasTaint("example.org/mine"))
	require.Equal(t, readiness.Overridden, record(t, f.runAgent("n1", false)).State)
}

// testPartlyOpened: kubectl uncordon leaves NetworkUnavailable, which keeps pods away.
func testPartlyOpened(t *testing.T, f *fixture) {
	w := f.startLeader(0)
	f.createHeldNode("n1")
	w.advance(3 * time.Minute)
	f.uncordon("n1")
	w.checkNodesTimes(2)
	free := f.node("n1")
	require.Equal(t, readiness.Overridden, record(t, free).State)
	require.Equal(t, corev1.ConditionFalse, condition(free, corev1.NodeNetworkUnavailable).Status)
	require.Equal(t, readiness.NotHeld, condition(free, readiness.NetworkHeld).Reason)
	require.Contains(t, free.Annotations, scaleDownMark, "no agent has scanned for etcd")
	require.Len(t, w.eventMessages("Node n1", readiness.EventOverridden), 1)
	w.advance(time.Hour)
	require.Equal(t, free.ResourceVersion, f.node("n1").ResourceVersion)
	f.requireMarksRemoved("n1")
}

// requireMarksRemoved runs the agent of a released node, which detects that there is no etcd.
func (f *fixture) requireMarksRemoved(name string) {
	f.t.Helper()
	after := f.runAgentWithFacts(name, readiness.Facts{Etcd: readiness.Absent})
	require.NotContains(f.t, after.Annotations, scaleDownMark)
	require.Empty(f.t, record(f.t, after).Marks)
	require.False(f.t, after.Spec.Unschedulable)
}

func testOverdueKept(t *testing.T, f *fixture) {
	w := f.startLeader(0)
	f.createHeldNode("n1")
	waiting := f.runAgent("n1", false)
	w.advance(8 * time.Minute)
	require.Empty(t, w.events)
	w.advance(3 * time.Minute)
	w.advance(time.Hour)
	messages := w.eventMessages("Node n1", readiness.EventOverdue)
	require.Len(t, messages, 1)
	require.Contains(t, messages[0], condition(waiting, readiness.NetworkHeld).Message)
	require.Equal(t, 1, w.metric("holds", "overdue"))
	require.Equal(t, waiting.ResourceVersion, f.node("n1").ResourceVersion)
}

func testOverdueReleased(t *testing.T, f *fixture) {
	w := f.startLeader(0, releasing)
	for _, name := range []string{"n1", "n2", "n3"} {
		f.createHeldNode(name)
	}
	f.runAgent("n2", false)
	f.patch("n3", `{"spec":{"taints":[{"key":"ToBeDeletedByClusterAutoscaler","value":"1","effect":"NoSchedule"}]}}`)
	w.advance(8 * time.Minute)
	for _, name := range []string{"n1", "n2", "n3"} {
		require.True(t, f.node(name).Spec.Unschedulable)
	}
	w.advance(2 * time.Minute)
	for _, name := range []string{"n1", "n2"} {
		free := f.node(name)
		require.False(t, free.Spec.Unschedulable)
		require.Equal(t, corev1.ConditionFalse, condition(free, corev1.NodeNetworkUnavailable).Status)
		require.Equal(t, readiness.NotHeld, condition(free, readiness.NetworkHeld).Reason)
		r := record(t, free)
		require.Equal(t, []any{readiness.Released, readiness.RecordReason(readiness.Overdue), free.Status.NodeInfo.BootID},
			[]any{r.State, r.Reason, r.BootID})
		require.Contains(t, free.Annotations, scaleDownMark, "no agent has scanned for etcd")
		require.Len(t, w.eventMessages("Node "+name, readiness.EventGivenUp), 1)
		require.Equal(t, free.ResourceVersion, f.runAgent(name, false).ResourceVersion, "the agent changes nothing")
		f.requireMarksRemoved(name)
	}
	require.True(t, f.node("n3").Spec.Unschedulable, "an autoscaler is deleting it")
	require.Equal(t, 2, w.metric("holds_given_up_total", ""))
	require.Equal(t, 1, w.metric("holds", "behind_others"))
}

func testInterruptedRelease(t *testing.T, f *fixture) {
	w := f.startLeader(0)
	f.createHeldNode("n1")
	f.runAgent("n1", false)
	half := readiness.Record{
		State: readiness.Released, BootID: f.node("n1").Status.NodeInfo.BootID, Reason: readiness.NetworkReady,
	}
	f.setRecord("n1", half.Format())
	f.uncordon("n1")
	w.advance(time.Minute)
	require.Equal(t, corev1.ConditionTrue, condition(f.node("n1"), corev1.NodeNetworkUnavailable).Status)
	require.Equal(t, 1, w.metric("holds", "ending"))
	w.advance(time.Minute)
	after := f.node("n1")
	require.Equal(t, corev1.ConditionFalse, condition(after, corev1.NodeNetworkUnavailable).Status)
	require.Equal(t, readiness.NotHeld, condition(after, readiness.NetworkHeld).Reason)
	require.Equal(t, 0, w.metric("holds", "ending"))
	require.Equal(t, after.ResourceVersion, f.runAgent("n1", false).ResourceVersion, "a later agent changes nothing")
}

// testInterruptedLeader: the leader releases a node without an agent, and its second write fails.
// The next leader finishes the release at once.
func testInterruptedLeader(t *testing.T, f *fixture) {
	w := f.startLeader(0, releasing, func(o *Options) { o.Nodes = statusFailer{o.Nodes} })
	f.createHeldNode("n1")
	w.checkNodesTimes(1)
	w.clockOffset += 11 * time.Minute
	require.Error(t, w.check())
	half := f.node("n1")
	require.False(t, half.Spec.Unschedulable)
	require.Equal(t, readiness.Released, record(t, half).State)
	require.Equal(t, corev1.ConditionTrue, condition(half, corev1.NodeNetworkUnavailable).Status)
	require.Len(t, w.eventMessages("Node n1", readiness.EventGivenUp), 1, "the release is reported")

	next := f.startLeader(0)
	next.advance(30 * time.Second)
	free := f.node("n1")
	require.Equal(t, corev1.ConditionFalse, condition(free, corev1.NodeNetworkUnavailable).Status)
	require.Equal(t, readiness.NotHeld, condition(free, readiness.NetworkHeld).Reason)
	require.Empty(t, next.events)
	next.advance(time.Hour)
	require.Equal(t, free.ResourceVersion, f.node("n1").ResourceVersion)
}

// statusFailer fails every write of conditions.
type statusFailer struct{ typedcorev1.NodeInterface }

func (s statusFailer) Patch(
	ctx context.Context, name string, kind types.PatchType, body []byte, o metav1.PatchOptions, sub ...string,
) (*corev1.Node, error) {
	if len(sub) > 0 {
		return nil, syscall.ECONNREFUSED
	}
	return s.NodeInterface.Patch(ctx, name, kind, body, o)
}
