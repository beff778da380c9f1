package agent

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/autoscaler"
	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/presence"
)

// holdsMember gives the host a member that answers.
func holdsMember(f *fixture) {
	f.servers = []evidence.Server{
		{Source: evidence.SystemdUnit, Where: "systemd unit etcd.service", Unit: "etcd.service", PID: 812},
	}
	f.answer = evidence.Identity{Ref: evidence.MemberRef{Cluster: testCluster, Member: testMember}, Name: "etcd1"}
	f.observation = v1alpha1.Observation{
		LocalMember: testMember, Linearizable: true, Leader: testMember,
		Members: []v1alpha1.MemberStatus{{ID: testMember, Name: "etcd1", Healthy: true}},
	}
}

// testShutdownAnnounced checks that the shutdown of a host with etcd is announced before the agent
// allows it, also on a node that kured has cordoned.
func testShutdownAnnounced(t *testing.T, s testServer) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "etcd-rebooted"}}
	s.register(t, n)
	f := start(t, s, n.Name, func(f *fixture) { holdsMember(f); f.facts = openNetwork() })
	s.until(t, f.name, "marked and not held", func(n *corev1.Node) bool { return isMarked(n) && isReleased(n) })
	patch(t, s.nodes, f.name, `{"spec":{"unschedulable":true}}`)
	f.host(func(f *fixture) { f.facts.GoingDown = true })
	select {
	case <-f.shutdowns:
	case <-time.After(soon):
		require.Fail(t, "the shutdown was not allowed")
	}
	announced := departure.Table{}.Of(s.get(t, f.name))
	require.Equal(t, departure.ShutdownAnnotation, announced.Key)
	require.WithinDuration(t, time.Now(), announced.Since, time.Minute)
	f.host(func(f *fixture) { f.facts.GoingDown, f.facts.StaysUp = false, true })
	s.until(t, f.name, "no longer announced", func(n *corev1.Node) bool {
		return departure.Table{}.Of(n).Class == departure.None
	})
	require.True(t, s.get(t, f.name).Spec.Unschedulable)
}

// holdsNothing removes etcd from the host. A scan proves it.
func holdsNothing(f *fixture) { f.servers, f.unknown = nil, nil }

func isMarked(n *corev1.Node) bool {
	return n.Labels[observation.EtcdMemberLabel] == "true" &&
		status(n, observation.EtcdMemberCondition) == corev1.ConditionTrue
}

func isUnmarked(n *corev1.Node) bool {
	_, labeled := n.Labels[observation.EtcdMemberLabel]
	return !labeled && status(n, observation.EtcdMemberCondition) == corev1.ConditionFalse
}

func testEtcd(t *testing.T, s testServer) {
	t.Run("shutdown of a cordoned node", func(t *testing.T) { testShutdownAnnounced(t, s) })
	t.Run("marks", func(t *testing.T) {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: "etcd-1", Annotations: map[string]string{autoscaler.ClusterAutoscaler: "true"},
		}}
		s.register(t, n)
		f := start(t, s, n.Name, holdsMember)
		s.until(t, f.name, "marked", isMarked)
		marked := s.get(t, f.name)
		require.Contains(t, marked.Annotations[presence.BecauseAnnotation], string(testMember))
		require.Contains(t, condition(marked, observation.EtcdMemberCondition).Message, "systemd unit etcd.service")
		require.JSONEq(t, `[{"cluster":"cdf818194e3a8c32","member":"3a1575389de83a83"}]`,
			marked.Annotations[observation.AnnouncementAnnotation])
		require.Equal(t, "true", marked.Annotations[autoscaler.Karpenter])
		require.Contains(t, f.event("EtcdMemberFound"), string(testMember))

		patch(t, s.nodes, f.name, `{"metadata":{"labels":{"`+observation.EtcdMemberLabel+`":null}}}`)
		s.until(t, f.name, "marked again", isMarked)

		f.host(func(f *fixture) { f.servers, f.unknown = nil, []string{"the process table: permission denied"} })
		f.requireLog("permission denied")
		require.True(t, observation.IsLabelled(s.get(t, f.name)), "a place that cannot be read ends no protection")

		f.host(holdsNothing)
		s.until(t, f.name, "unmarked", isUnmarked)
		unmarked := s.get(t, f.name)
		require.Equal(t, "true", unmarked.Annotations[autoscaler.ClusterAutoscaler], "this mark was set by hand")
		require.NotContains(t, unmarked.Annotations, autoscaler.Karpenter)
		require.NotContains(t, unmarked.Annotations, observation.AnnouncementAnnotation)
		f.event("EtcdMemberGone")
	})

	t.Run("all attempts are in the condition", func(t *testing.T) {
		s.register(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "closed-1"}})
		attempts := "https://127.0.0.1:2379" +
			strings.Repeat(" (a certificate): it does not take it;", 20) + " name a client certificate"
		f := start(t, s, "closed-1", func(f *fixture) {
			holdsMember(f)
			f.answer = evidence.Identity{Problem: attempts}
		})
		s.until(t, f.name, "protected and unverified", func(n *corev1.Node) bool {
			c := condition(n, observation.EtcdMemberCondition)
			return isMarked(n) && c.Reason == presence.ReasonUnverified && strings.Contains(c.Message, attempts)
		})
	})

	t.Run("observations", func(t *testing.T) {
		s.register(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "observer-1"}})
		s.register(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "observer-2"}})
		one := start(t, s, "observer-1", holdsMember)
		start(t, s, "observer-2", holdsMember)
		one.requireLog("waiting for the webhook's leader")
		s.applyCluster(t, "first")
		s.allowObservations(t, "observer-1", "observer-2")
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

		s.applyCluster(t, "second")
		began := time.Now()
		require.Eventually(t, answered("second"), soon, 5*time.Millisecond)
		t.Logf("answered after %s", time.Since(began))

		_, err := s.Kubectl(t.Context(), "delete", "etcdobservation", v1alpha1.ObservationName(testCluster, "observer-2"))
		require.NoError(t, err)
		require.Eventually(t, func() bool { return len(one.entries()) == 1 }, soon, 10*time.Millisecond)
		s.allowObservations(t, "observer-2")
		require.Eventually(t, answered("second"), soon, 10*time.Millisecond)
	})
}

// testOtherMembers lets other members of the cluster die, join and go with their nodes. The agent
// of a bound node writes nothing to its Node: each write makes the API server review a deletion
// that is in progress once more (F31).
func testOtherMembers(t *testing.T, s testServer) {
	const name = "unmoved-1"
	uid := s.register(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}).UID
	s.applyCluster(t, "other-members")
	binding := fmt.Sprintf(`{"memberID":%q,"node":%q,"nodeUID":%q}`, testMember, name, uid)
	s.patchCluster(t, "", `{"spec":{"members":[`+binding+`]}}`)
	calm := s.patchCluster(t, "status", `{"status":{"voters":3,"healthy":3,"quorum":2,"mayLose":1}}`)
	f := start(t, s, name, holdsMember)
	s.until(t, name, "marked", isMarked)
	f.awaitPasses(calm)
	before := s.get(t, name)
	for _, step := range []struct{ change, subresource, patch string }{
		{
			"grant", "", `{"spec":{"grants":[
				{"nodeUID":"u2","node":"n2","members":["b"],"delete":{"time":"2026-05-01T12:00:00Z","user":"alice"}}]}}`,
		},
		{"death", "status", `{"status":{"healthy":2,"mayLose":0}}`},
		{
			"join", "",
			`{"spec":{"members":[` + binding + `,{"memberID":"c","node":"n3","nodeUID":"u3"}]}}`,
		},
		{"join, counted", "status", `{"status":{"voters":4,"healthy":3,"quorum":3,"mayLose":0}}`},
	} {
		f.awaitPasses(s.patchCluster(t, step.subresource, step.patch))
		after := s.get(t, name)
		require.Equal(t, before.ResourceVersion, after.ResourceVersion, "%s: %+v", step.change, after.Status.Conditions)
	}
}

// testRestart stops an agent and starts the next one, as every update does.
func testRestart(t *testing.T, s testServer) {
	s.register(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "updated-1"}})
	s.applyCluster(t, "recreated")
	t.Run("first agent", func(t *testing.T) {
		start(t, s, "updated-1", holdsMember)
		s.until(t, "updated-1", "marked", isMarked)
	})
	before := s.get(t, "updated-1")

	t.Run("next agent writes nothing", func(t *testing.T) {
		start(t, s, "updated-1", holdsMember).awaitPasses(s.patchCluster(t, "", `{}`))
		require.Equal(t, before.ResourceVersion, s.get(t, "updated-1").ResourceVersion)
	})

	t.Run("EtcdClusters unreadable", func(t *testing.T) {
		for _, resource := range []string{v1alpha1.Resource, v1alpha1.ObservationResource} {
			t.Run(resource, func(t *testing.T) {
				f := start(t, s, "updated-1", func(f *fixture) {
					holdsNothing(f)
					f.transport.set(func(req *http.Request) int {
						if strings.Contains(req.URL.Path, resource) {
							return http.StatusForbidden
						}
						return 0
					})
				})
				require.Eventually(t, func() bool { return strings.Contains(f.logs(), "decided about etcd membership") },
					2*clustersGrace+f.agent.cfg.Tick, 10*time.Millisecond)
				require.True(t, observation.IsLabelled(s.get(t, "updated-1")), "what cannot be read ends no protection")
			})
		}
	})
}

func testServerAway(t *testing.T, s testServer) {
	for _, c := range []struct {
		name            string
		leave, comeBack func() error
	}{
		{
			name:     "paused",
			leave:    func() error { return s.Process().Pause() },
			comeBack: func() error { return s.Process().Resume() },
		},
		{
			name:     "killed",
			leave:    func() error { return s.Process().Kill() },
			comeBack: func() error { return s.Restart(t.Context()) },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			name := "away-" + c.name
			isAnswered := func(f *fixture, nonce string) func() bool {
				return func() bool { return f.entries()[f.name].Nonce == nonce }
			}
			s.register(t, bornHeld(name))
			f := start(t, s, name, holdsMember)
			s.until(t, f.name, "marked", isMarked)
			s.applyCluster(t, "before-"+name)
			s.allowObservations(t, name)
			require.Eventually(t, isAnswered(f, "before-"+name), soon, 10*time.Millisecond)

			require.NoError(t, c.leave())
			f.host(func(f *fixture) { f.facts = openNetwork() })
			f.requireLog("failed to reconcile the Node; retrying")
			require.NoError(t, f.agent.Healthy(time.Now()))
			require.NoError(t, c.comeBack())

			s.until(t, f.name, "released", isReleased)
			s.applyCluster(t, "after-"+name)
			require.Eventually(t, isAnswered(f, "after-"+name), soon, 10*time.Millisecond)
			f.requireLog("the Node is reconciled again")
			require.LessOrEqual(t, strings.Count(f.logs(), "level=WARN"), 8, "each failure is logged once:\n%s", f.logs())
		})
	}
}
