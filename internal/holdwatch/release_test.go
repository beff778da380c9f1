package holdwatch

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

func printedRelease(t *testing.T, s *site) {
	_, err := s.StartControllers("node-lifecycle-controller")
	require.NoError(t, err)
	w := s.watch(0)
	s.born("n1")
	closedFor := func() (keys []string) {
		for _, taint := range s.node("n1").Spec.Taints {
			if taint.Key == corev1.TaintNodeUnschedulable || taint.Key == corev1.TaintNodeNetworkUnavailable {
				keys = append(keys, taint.Key)
			}
		}
		return keys
	}
	require.Eventually(t, func() bool { return len(closedFor()) == 2 }, eventually, often)
	require.Eventually(t, func() bool { // The controller writes as it likes, in between.
		w.pass(3 * time.Minute)
		return condition(s.node("n1"), readiness.NetworkHeld).Reason != ""
	}, eventually, often)
	lines := quoted(condition(s.node("n1"), readiness.NetworkHeld).Message)
	require.Len(t, lines, 2)
	s.paste(lines[0])
	require.Equal(t, readiness.ManualRelease(s.node("n1")), lines[1])
	s.paste(lines[1])

	free := s.node("n1")
	require.False(t, free.Spec.Unschedulable)
	require.Equal(t, corev1.ConditionFalse, condition(free, corev1.NodeNetworkUnavailable).Status)
	require.Eventually(t, func() bool { return len(closedFor()) == 0 }, eventually, often, "nothing keeps pods away")

	overridden := s.agent("n1", false)
	require.Equal(t, readiness.Overridden, record(t, overridden).State)
	require.False(t, overridden.Spec.Unschedulable, "the agent that comes later respects it")
}

func printedReleaseOfTaint(t *testing.T, s *site) {
	w := s.watch(0)
	s.born("n1")
	const key = "readiness.k8s.io/holdfast"
	_, err := s.Kubectl(t.Context(), "uncordon", "n1")
	require.NoError(t, err)
	_, err = s.Kubectl(t.Context(), "taint", "node", "n1", key+"=x:NoSchedule", "example.org/mine:NoSchedule")
	require.NoError(t, err)
	held := readiness.Record{State: readiness.Held, BootID: s.node("n1").Status.NodeInfo.BootID, Reason: readiness.NewNode, Taint: key}
	_, err = s.Kubectl(t.Context(), "annotate", "node", "n1", "--overwrite", readiness.HoldAnnotation+"="+held.Format())
	require.NoError(t, err)
	w.pass(3 * time.Minute)
	lines := quoted(condition(s.node("n1"), readiness.NetworkHeld).Message)
	require.Len(t, lines, 2)
	s.paste(lines[1])
	free := s.node("n1")
	require.False(t, slices.ContainsFunc(free.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == key }))
	require.True(t, slices.ContainsFunc(free.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == "example.org/mine" }))
	require.Equal(t, readiness.Overridden, record(t, s.agent("n1", false)).State)
}

// Plain kubectl uncordon leaves NetworkUnavailable, with which no pod comes.
func openedByHalves(t *testing.T, s *site) {
	w := s.watch(0)
	s.born("n1")
	w.pass(3 * time.Minute)
	_, err := s.Kubectl(t.Context(), "uncordon", "n1")
	require.NoError(t, err)
	w.rounds(2)
	free := s.node("n1")
	require.Equal(t, readiness.Overridden, record(t, free).State)
	require.Equal(t, corev1.ConditionFalse, condition(free, corev1.NodeNetworkUnavailable).Status)
	require.Equal(t, readiness.NotHeld, condition(free, readiness.NetworkHeld).Reason)
	require.Contains(t, free.Annotations, "cluster-autoscaler.kubernetes.io/scale-down-disabled", "nobody has looked for etcd")
	require.Len(t, w.told("Node n1", readiness.EventOverridden), 1)
	w.pass(time.Hour)
	require.Equal(t, free.ResourceVersion, s.node("n1").ResourceVersion)
	s.agentTakesOffTheMarks("n1")
}

// agentTakesOffTheMarks has the agent of a node that was released come, and find that there is no etcd.
func (s *site) agentTakesOffTheMarks(name string) {
	s.t.Helper()
	after := s.agentSees(name, readiness.Facts{Etcd: readiness.Absent})
	require.NotContains(s.t, after.Annotations, "cluster-autoscaler.kubernetes.io/scale-down-disabled")
	require.Empty(s.t, record(s.t, after).Marks)
	require.False(s.t, after.Spec.Unschedulable)
}

func overdueKept(t *testing.T, s *site) {
	w := s.watch(0)
	s.born("n1")
	waiting := s.agent("n1", false)
	w.pass(9 * time.Minute)
	require.Empty(t, w.stories)
	w.pass(2 * time.Minute)
	w.pass(time.Hour)
	messages := w.told("Node n1", readiness.EventOverdue)
	require.Len(t, messages, 1)
	require.Contains(t, messages[0], condition(waiting, readiness.NetworkHeld).Message)
	require.Equal(t, 1, w.metric("holds", "overdue"))
	require.Equal(t, waiting.ResourceVersion, s.node("n1").ResourceVersion)
}

func overdueReleased(t *testing.T, s *site) {
	w := s.watch(0, releasing)
	for _, name := range []string{"n1", "n2", "n3"} {
		s.born(name)
	}
	s.agent("n2", false)
	_, err := s.Kubectl(t.Context(), "taint", "node", "n3", "ToBeDeletedByClusterAutoscaler=1:NoSchedule")
	require.NoError(t, err)
	w.pass(9 * time.Minute)
	for _, name := range []string{"n1", "n2", "n3"} {
		require.True(t, s.node(name).Spec.Unschedulable)
	}
	w.pass(time.Minute)
	for _, name := range []string{"n1", "n2"} {
		free := s.node(name)
		require.False(t, free.Spec.Unschedulable)
		require.Equal(t, corev1.ConditionFalse, condition(free, corev1.NodeNetworkUnavailable).Status)
		require.Equal(t, readiness.NotHeld, condition(free, readiness.NetworkHeld).Reason)
		r := record(t, free)
		require.Equal(t, []any{readiness.Released, readiness.Overdue, free.Status.NodeInfo.BootID}, []any{r.State, r.Reason, r.BootID})
		require.Contains(t, free.Annotations, "cluster-autoscaler.kubernetes.io/scale-down-disabled", "nobody has looked for etcd")
		require.Len(t, w.told("Node "+name, readiness.EventGivenUp), 1)
		require.Equal(t, free.ResourceVersion, s.agent(name, false).ResourceVersion, "the agent leaves it alone, and has nothing to add")
		s.agentTakesOffTheMarks(name)
	}
	require.True(t, s.node("n3").Spec.Unschedulable, "somebody is deleting it")
	require.Equal(t, 2, w.metric("holds_given_up_total", ""))
	require.Equal(t, 1, w.metric("holds", "behind_others"))
}
