package leader

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/clusterstore/storetest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// unreviewedOverride deletes a Node as docs/refusals/NoAnswer.md describes while no webhook
// answers: the override, the label, the Node.
func unreviewedOverride(t *testing.T, f *storetest.Fixture) {
	f.RunAgents()
	h := newHarness(t, f)
	h.bindAll()
	f.PatchNode(0, fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, quorum.BreakGlassAnnotation,
		overrideOf(f.Nodes[0].UID, time.Now().Add(time.Minute))))
	require.Eventually(t, func() bool {
		_, isKnown := h.leader.overrides.of(f.Nodes[0].UID)
		return isKnown
	}, storetest.WaitTimeout, storetest.PollInterval, "without a round of the leader")
	f.DeleteNode(0)
	c := h.reconcileUntil("a tombstone", func(c *v1alpha1.EtcdCluster) bool { return len(c.Spec.Grants) == 1 })
	g := storetest.GrantFor(c, f.Nodes[0].UID)
	require.NotNil(t, g)
	require.Empty(t, g.User)
	require.True(t, g.BreakGlass)
	decision := h.review(t, f.Request(1))
	require.False(t, decision.Allowed)
	require.Contains(t, decision.Message, "was deleted with a break-glass override, and without a review")
}

func overrideOf(uid types.UID, until time.Time) string {
	return fmt.Sprintf(`{"uid":%q,"until":%q,"reason":"the host burns"}`, uid, until.UTC().Format(time.RFC3339))
}

// TestTombstoneMessage tells what is known about a deletion that no review saw.
func TestTombstoneMessage(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	g := v1alpha1.Grant{Node: "w1", NodeUID: "u1", Members: []v1alpha1.MemberID{"a"}}
	node := func(uid types.UID, override string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w1", UID: uid}}
		if override != "" {
			n.Annotations = map[string]string{quorum.BreakGlassAnnotation: override}
		}
		return n
	}
	var o overrides
	o.record(node("u1", ""), now)
	o.record(node("u2", overrideOf("u2", now.Add(time.Minute))), now)
	o.record(node("u1", overrideOf("u2", now.Add(time.Minute))), now) // void: for another UID
	require.Equal(t, "node w1 is gone: its deletion was not reviewed, for example because the webhook did not answer; "+
		"the audit log of the API server names the users (verbs patch and delete, nodes, w1, UID u1); "+
		"a count as lost until they are removed from etcd or confirmed healthy on a new node", o.tombstoneMessage(g))
	require.Equal(t, corev1.EventTypeWarning, EventType(tombstoneEvent))
	require.Equal(t, corev1.EventTypeNormal, EventType("Bound"))

	o.record(node("u1", overrideOf("u1", now.Add(time.Minute))), now)
	require.Contains(t, o.tombstoneMessage(g),
		`had a break-glass override until 2026-05-01T12:01:00Z with the reason "the host burns"; the audit log`)
	o.record(node("u3", overrideOf("u3", now.Add(3*time.Hour))), now.Add(2*time.Hour+30*time.Minute))
	_, isKnown := o.of("u1")
	require.False(t, isKnown, "forgotten")
}
