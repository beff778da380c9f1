package ledger

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

func TestStateOfANode(t *testing.T) {
	now := metav1.NewTime(time.Now())
	node := func(change func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"}}
		change(n)
		return n
	}
	taint := func(key string) *corev1.Node {
		return node(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "other"}, {Key: key}} })
	}
	for name, test := range map[string]struct {
		read live
		want protect.NodeState
	}{
		"unreadable is unknown":   {live{err: errors.New("timeout")}, protect.NodeState{}},
		"absent is known":         {live{}, protect.NodeState{Known: true}},
		"there":                   {live{node: node(func(*corev1.Node) {})}, protect.NodeState{Known: true, UID: "u"}},
		"being deleted":           {live{node: node(func(n *corev1.Node) { n.DeletionTimestamp = &now })}, protect.NodeState{Known: true, UID: "u", Deleting: true}},
		"cluster-autoscaler":      {live{node: taint("ToBeDeletedByClusterAutoscaler")}, protect.NodeState{Known: true, UID: "u", DeletionTaint: "ToBeDeletedByClusterAutoscaler"}},
		"karpenter":               {live{node: taint("karpenter.sh/disrupted")}, protect.NodeState{Known: true, UID: "u", DeletionTaint: "karpenter.sh/disrupted"}},
		"only a candidate so far": {live{node: taint("DeletionCandidateOfClusterAutoscaler")}, protect.NodeState{Known: true, UID: "u"}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, test.want, test.read.state()) })
	}
}

func TestRulingOverSeveralClusters(t *testing.T) {
	yes := protect.Verdict{Allowed: true, Reason: protect.QuorumKept, Message: "kept", Warning: "careful"}
	no := protect.Verdict{Reason: protect.QuorumWouldBeLost, Message: "lost"}
	blind := protect.Verdict{Reason: protect.CannotSee, Message: "blind"}
	for name, test := range map[string]struct {
		verdicts []protect.Verdict
		allowed  bool
		reason   protect.Reason
		message  string
		warnings []string
	}{
		"none refuses":              {nil, false, "", "", nil},
		"all allow":                 {[]protect.Verdict{yes, yes}, true, protect.QuorumKept, "kept\nkept", []string{"careful", "careful"}},
		"one refuses":               {[]protect.Verdict{yes, no}, false, protect.QuorumWouldBeLost, "lost", nil},
		"the first refusal reasons": {[]protect.Verdict{blind, no}, false, protect.CannotSee, "blind\nlost", nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := ruling(test.verdicts)
			require.Equal(t, test.allowed, r.Allowed)
			require.Equal(t, test.reason, r.Reason)
			require.Equal(t, test.message, r.Message)
			require.Equal(t, test.warnings, r.Warnings)
		})
	}
}

func TestANodeThatCouldNotBeReadMakesNoClaims(t *testing.T) {
	n := census{"n": {Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "cached"}}}}
	_, err := n.claims(map[string]live{"n": {err: errors.New("timeout")}})
	require.ErrorContains(t, err, "timeout", "a node that is not among the claims is taken to be gone")

	gone, err := n.claims(map[string]live{"n": {}})
	require.NoError(t, err)
	require.Empty(t, gone, "what was read just now overrides the cache")

	cached, err := n.claims(nil)
	require.NoError(t, err)
	require.Len(t, cached, 1)
}

func TestSceneIgnoresWhatEveryLookChanges(t *testing.T) {
	n := census{}
	c := &v1alpha1.EtcdCluster{}
	c.Spec.Members = []v1alpha1.Binding{{MemberID: "a", Node: "n", NodeUID: "u"}}
	c.Status.Observations = []v1alpha1.Observation{{
		Node: "n", NodeUID: "u", Nonce: "1", Linearizable: true, Members: []v1alpha1.MemberStatus{{ID: "a", Healthy: true}},
	}}
	before := sceneOf(c, n, []string{"1", "2"})
	answered := c.DeepCopy()
	answered.Spec.Nonce = "2"
	answered.Status.Observations[0].Nonce, answered.Status.Observations[0].Time = "2", metav1.Now()
	answered.Status.Observations[0].Members[0].Healthy = false
	require.Equal(t, before, sceneOf(answered, n, []string{"1", "2"}), "or each look would be the reason for the next")

	left := answered.DeepCopy()
	left.Status.Observations[0].Members[0].ID = "b"
	require.NotEqual(t, before, sceneOf(left, n, []string{"1", "2"}))
	left.Status.Observations[0].Nonce = "0"
	require.Equal(t, before, sceneOf(left, n, []string{"1", "2"}), "an old list has nobody leave")

	granted := c.DeepCopy()
	granted.Spec.Grants = []v1alpha1.Grant{{NodeUID: "u"}}
	require.NotEqual(t, before, sceneOf(granted, n, []string{"1", "2"}))
}
