package ledger

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

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

func TestRowOfProofs(t *testing.T) {
	begun := time.Now()
	view := func(node types.UID, nonce string, healthy bool) protect.View {
		c := &v1alpha1.EtcdCluster{}
		c.Spec.Members = []v1alpha1.Binding{{MemberID: "a", Node: "n", NodeUID: node}}
		c.Status.Observations = []v1alpha1.Observation{{
			Node: "n", NodeUID: node, Nonce: nonce, Linearizable: true, LocalMember: "a",
			Members: []v1alpha1.MemberStatus{{ID: "a", Name: "a", Healthy: healthy}},
		}}
		return protect.View{Cluster: c, Asked: []string{"now"}}
	}
	proven, sick, silent, other := view("u", "now", true), view("u", "now", false), view("u", "before", true), view("v", "now", true)
	type step struct {
		after time.Duration
		view  protect.View
	}
	for name, test := range map[string]struct {
		steps []step
		want  time.Duration // when the row began, -1 if there is none
	}{
		"looks in a row":                       {[]step{{0, proven}, {time.Minute, proven}, {time.Minute, proven}}, 0},
		"an answer without proof":              {[]step{{0, proven}, {time.Minute, sick}}, -1},
		"proof after an answer without":        {[]step{{0, proven}, {time.Minute, sick}, {time.Minute, proven}}, 2 * time.Minute},
		"one silent look":                      {[]step{{0, proven}, {time.Minute, silent}, {time.Minute, proven}}, 0},
		"silence that lasts":                   {[]step{{0, proven}, {time.Minute, silent}, {time.Minute, silent}, {time.Second, silent}}, -1},
		"proof after silence that lasted":      {[]step{{0, proven}, {time.Minute, silent}, {time.Minute, silent}, {time.Second, proven}}, 121 * time.Second},
		"silence does not prolong itself":      {[]step{{0, proven}, {110 * time.Second, silent}, {20 * time.Second, silent}}, -1},
		"no looks for long":                    {[]step{{0, proven}, {121 * time.Second, proven}}, 121 * time.Second},
		"another Node":                         {[]step{{0, proven}, {time.Minute, other}}, time.Minute},
		"silence of somebody never proven yet": {[]step{{0, silent}}, -1},
	} {
		t.Run(name, func(t *testing.T) {
			m, now := &memory{}, begun
			for _, s := range test.steps {
				now = now.Add(s.after)
				m.remember(s.view, now, 2*time.Minute)
			}
			row, there := m.proven["a"]
			require.Equal(t, test.want >= 0, there)
			if there {
				require.Equal(t, test.want, row.since.Sub(begun))
			}
		})
	}
}

func TestGrantIsAsYoungAsEitherClockSays(t *testing.T) {
	now := time.Now()
	m := &memory{}
	grant := func(ago time.Duration) v1alpha1.Grant {
		return v1alpha1.Grant{NodeUID: "u", Time: metav1.NewTime(now.Add(-ago))}
	}
	slow, ahead, fast := grant(time.Hour), grant(-aheadAtMost), grant(-time.Hour)
	m.notice([]v1alpha1.Grant{slow}, now)
	m.notice([]v1alpha1.Grant{slow}, now.Add(time.Minute))
	require.Equal(t, now, m.dated(slow).Time.Time, "the writer's clock is an hour behind")
	m.notice([]v1alpha1.Grant{ahead}, now)
	require.Equal(t, ahead.Time, m.dated(ahead).Time, "the writer's clock is a little ahead")
	require.Equal(t, fast.Time, (&memory{}).dated(fast).Time, "never seen yet")
	m.notice([]v1alpha1.Grant{fast}, now.Add(2*time.Minute))
	require.Equal(t, now.Add(2*time.Minute), m.dated(fast).Time.Time, "the writer's clock is an hour ahead, and the grant would outlive its deletion by that")
	m.notice(nil, now)
	m.notice([]v1alpha1.Grant{slow}, now.Add(3*time.Minute))
	require.Equal(t, now.Add(3*time.Minute), m.dated(slow).Time.Time, "a grant that is written again is a new one")
}
