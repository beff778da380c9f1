package agent

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// holdsMember lets the host show a member that answers.
func holdsMember(r *rig) {
	r.sightings = []protect.Sighting{{Source: protect.SystemdUnit, Where: "systemd unit etcd.service", Unit: "etcd.service", PID: 812}}
	r.answer = protect.Answer{Ref: protect.MemberRef{Cluster: testCluster, Member: testMember}, Name: "etcd1"}
	r.seen = v1alpha1.Observation{
		LocalMember: testMember, Linearizable: true, Leader: testMember,
		Members: []v1alpha1.MemberStatus{{ID: testMember, Name: "etcd1", Healthy: true}},
	}
}

// found lets nothing of etcd be on the host, provably.
func holdsNothing(r *rig) { r.sightings, r.unknown = nil, nil }

func marked(n *corev1.Node) bool {
	return n.Labels[protect.EtcdMemberLabel] == "true" && status(n, protect.EtcdMemberCondition) == corev1.ConditionTrue
}

func unmarked(n *corev1.Node) bool {
	_, labelled := n.Labels[protect.EtcdMemberLabel]
	return !labelled && status(n, protect.EtcdMemberCondition) == corev1.ConditionFalse
}

// leader makes the EtcdCluster as the webhook's leader does, or asks in it.
func (c cluster) leader(t *testing.T, nonce string) {
	t.Helper()
	_, err := c.Kubectl(t.Context(), "apply", "--server-side", "-f", manifest(t, `{
		"apiVersion": "holdfast.dev/v1alpha1", "kind": "EtcdCluster",
		"metadata": {"name": "`+string(testCluster)+`"}, "spec": {"ledger": 0, "nonce": "`+nonce+`"}}`))
	require.NoError(t, err)
}

// entries reads the observations, by node.
func (r *rig) entries() map[string]v1alpha1.Observation {
	r.t.Helper()
	list, err := r.agent.cfg.Clusters.List(r.t.Context(), metav1.ListOptions{})
	require.NoError(r.t, err)
	found := map[string]v1alpha1.Observation{}
	for _, c := range list.Items {
		for _, o := range c.Status.Observations {
			found[o.Node] = o
		}
	}
	return found
}

func etcdOnTheNode(t *testing.T, c cluster) {
	t.Run("a member is marked with its reasons, and what a person had set outlives it", func(t *testing.T) {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "etcd-1", Annotations: map[string]string{protect.ClusterAutoscalerAnnotation: "true"}}}
		c.register(t, n)
		r := start(t, c, n.Name, holdsMember)
		c.until(t, r.name, "marked", marked)
		after, err := c.nodes.Get(t.Context(), r.name, metav1.GetOptions{})
		require.NoError(t, err)
		require.Contains(t, after.Annotations[protect.BecauseAnnotation], string(testMember))
		require.Contains(t, condition(after, protect.EtcdMemberCondition).Message, "systemd unit etcd.service")
		require.JSONEq(t, `[{"cluster":"cdf818194e3a8c32","member":"3a1575389de83a83"}]`, after.Annotations[protect.AnnouncementAnnotation])
		require.Equal(t, "true", after.Annotations[protect.KarpenterAnnotation])
		require.Contains(t, r.told("EtcdMemberFound"), string(testMember))

		patch(t, c.nodes, r.name, `{"metadata":{"labels":{"`+protect.EtcdMemberLabel+`":null}}}`)
		c.until(t, r.name, "marked again", marked)

		r.host(func(r *rig) { r.sightings, r.unknown = nil, []string{"the process table: permission denied"} })
		require.Eventually(t, func() bool { return strings.Contains(r.said(), "permission denied") }, soon, 10*time.Millisecond)
		blind, err := c.nodes.Get(t.Context(), r.name, metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, "true", blind.Labels[protect.EtcdMemberLabel], "what cannot be looked at unprotects nothing")

		r.host(holdsNothing)
		c.until(t, r.name, "unmarked", unmarked)
		after, err = c.nodes.Get(t.Context(), r.name, metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, "true", after.Annotations[protect.ClusterAutoscalerAnnotation], "a person has set this one")
		require.NotContains(t, after.Annotations, protect.KarpenterAnnotation)
		require.NotContains(t, after.Annotations, protect.AnnouncementAnnotation)
		r.told("EtcdMemberGone")
	})

	t.Run("what was tried in vain is said whole", func(t *testing.T) {
		c.register(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "closed-1"}})
		tried := "https://127.0.0.1:2379" + strings.Repeat(" (a certificate): it does not take it;", 20) + " name a client certificate"
		r := start(t, c, "closed-1", func(r *rig) {
			holdsMember(r)
			r.answer = protect.Answer{Problem: tried}
		})
		c.until(t, r.name, "protected and unverified", func(n *corev1.Node) bool {
			said := condition(n, protect.EtcdMemberCondition)
			return marked(n) && said.Reason == protect.Unverified && strings.Contains(said.Message, tried)
		})
	})

	t.Run("what is seen is published beside what others see, and a question is answered", func(t *testing.T) {
		c.register(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "observer-1"}})
		c.register(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "observer-2"}})
		one, two := start(t, c, "observer-1", holdsMember), start(t, c, "observer-2", holdsMember)
		require.Eventually(t, func() bool { return strings.Contains(one.said(), "waiting for the webhook's leader") }, soon, 10*time.Millisecond)
		c.leader(t, "first")
		answered := func(nonce string) func() bool {
			return func() bool {
				found := one.entries()
				return found["observer-1"].Nonce == nonce && found["observer-2"].Nonce == nonce
			}
		}
		require.Eventually(t, answered("first"), soon, 10*time.Millisecond)
		entry := one.entries()["observer-1"]
		require.True(t, entry.Linearizable)
		require.Equal(t, testMember, entry.Members[0].ID)
		require.False(t, entry.Time.IsZero())

		c.leader(t, "second")
		began := time.Now()
		require.Eventually(t, answered("second"), soon, 5*time.Millisecond)
		t.Logf("answered after %s", time.Since(began))

		two.host(holdsNothing)
		require.Eventually(t, func() bool { return len(one.entries()) == 1 }, soon, 10*time.Millisecond, "the entry of a member that is gone")
		require.Contains(t, one.entries(), "observer-1")
	})
}

func serverIsAway(t *testing.T, c cluster) {
	tests := []struct {
		name           string
		leave, returns func() error
	}{
		{
			name:    "it-hangs",
			leave:   func() error { return c.Process().Pause() },
			returns: func() error { return c.Process().Resume() },
		},
		{
			name:    "it-is-killed-and-started-again",
			leave:   func() error { return c.Process().Kill() },
			returns: func() error { return c.Restart(t.Context()) },
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c.register(t, bornHeld(test.name))
			r := start(t, c, test.name, holdsMember)
			c.until(t, r.name, "marked", marked)
			c.leader(t, "before-"+test.name)
			require.Eventually(t, func() bool { return r.entries()[r.name].Nonce == "before-"+test.name }, soon, 10*time.Millisecond)

			require.NoError(t, test.leave())
			r.host(func(r *rig) { r.facts = open() })
			require.Eventually(t, func() bool { return strings.Contains(r.said(), "not as it should be, trying again") }, soon, 50*time.Millisecond)
			require.NoError(t, r.agent.Healthy(time.Now()))
			require.NoError(t, test.returns())

			c.until(t, r.name, "released", released)
			c.leader(t, "after-"+test.name)
			require.Eventually(t, func() bool { return r.entries()[r.name].Nonce == "after-"+test.name }, soon, 10*time.Millisecond)
			require.Eventually(t, func() bool { return strings.Contains(r.said(), "the node is as it should be again") }, soon, 10*time.Millisecond)
			require.LessOrEqual(t, strings.Count(r.said(), "level=WARN"), 8, "each failure is said once:\n%s", r.said())
		})
	}
}
