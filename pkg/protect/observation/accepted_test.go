package observation_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/membership"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

func TestHasLeft(t *testing.T) {
	removed := func() *quorumtest.Cluster { return quorumtest.Voters(3).Removed(0) }
	require.False(t, observation.HasLeft(quorumtest.Voters(3).Cluster, "a"), "bound and listed")
	require.False(t, observation.HasLeft(removed().Cluster, "a"), "still bound")
	require.False(t, observation.HasLeft(quorumtest.Voters(3).Unbound(0).Cluster, "a"), "still listed")
	require.True(t, observation.HasLeft(removed().Unbound(0).Cluster, "a"))
	require.False(t, observation.HasLeft(removed().Unbound(0).Unconfirmed(1, 2).Cluster, "a"), "no confirmed list")
}

func TestIgnored(t *testing.T) {
	now := quorumtest.Noon().Add(time.Minute)
	unbound := v1alpha1.Observation{
		Node: "w9", NodeUID: "u9", Nonce: quorumtest.Nonce, Linearizable: true, LocalMember: "e",
		Members: []v1alpha1.MemberStatus{quorumtest.Member(0)},
	}
	second := func(change func(o *v1alpha1.Observation)) func(*quorumtest.Cluster) {
		return func(w *quorumtest.Cluster) { change(w.Observer(1)) }
	}
	firstListedID := func(id v1alpha1.MemberID) func(*quorumtest.Cluster) {
		return second(func(o *v1alpha1.Observation) { o.Members[0].ID = id })
	}
	seen := map[string]bool{}
	for name, c := range map[string]struct {
		change func(w *quorumtest.Cluster)
		want   string
		// accepted means that the verdict uses the answer of w2.
		accepted bool
	}{
		"nothing":               {func(*quorumtest.Cluster) {}, "", true},
		"unbound":               {func(w *quorumtest.Cluster) { w.With(unbound) }, "w9 NotBound", true},
		"same name, other UID":  {second(func(o *v1alpha1.Observation) { o.NodeUID = "u2-again" }), "w2 OtherNode", false},
		"claimed only":          {func(w *quorumtest.Cluster) { w.Basis(v1alpha1.BasisClaim, 1) }, "w2 NotHeard", false},
		"disputed":              {func(w *quorumtest.Cluster) { w.Basis(v1alpha1.BasisDisputed, 1) }, "", true},
		"no UID":                {second(func(o *v1alpha1.Observation) { o.NodeUID = "" }), "w2 OtherNode", false},
		"no nonce":              {second(func(o *v1alpha1.Observation) { o.Nonce = "" }), "w2 NeverAsked", false},
		"old nonce":             {func(w *quorumtest.Cluster) { w.Silent(1) }, "", false},
		"listed ID 0":           {firstListedID("0"), "w2 Invalid", false},
		"listed ID without hex": {firstListedID("etcd1"), "w2 Invalid", false},
		"local ID 0":            {func(w *quorumtest.Cluster) { w.LocalMember(1, "0") }, "w2 Invalid", false},
		"10,000 members": {second(func(o *v1alpha1.Observation) {
			for i := range 10_000 {
				id := v1alpha1.MemberID(fmt.Sprintf("%x", i+16))
				o.Members = append(o.Members, v1alpha1.MemberStatus{ID: id, Name: "x", Healthy: true})
			}
		}), "w2 Invalid", false},
		"listed twice": {second(func(o *v1alpha1.Observation) {
			o.Members = append(o.Members, quorumtest.Member(0))
		}), "w2 Invalid", false},
		"member of another Node": {func(w *quorumtest.Cluster) { w.LocalMember(1, "c") }, "w2 OthersMember", true},
		"clock an hour ahead": {second(func(o *v1alpha1.Observation) {
			o.Time = metav1.NewTime(now.Add(time.Hour))
		}), "w2 TimeAhead", true},
		"clock within the skew": {second(func(o *v1alpha1.Observation) {
			o.Time = metav1.NewTime(now.Add(observation.ClockSkew))
		}), "", true},
		"all at once": {func(w *quorumtest.Cluster) {
			o := w.Observer(1)
			o.Nonce, o.NodeUID, o.Members[0].ID, o.LocalMember = "", "", "0", "c"
			w.Observer(0).Time = metav1.NewTime(now.Add(time.Hour))
		}, "w1 TimeAhead, w2 Invalid, w2 NeverAsked, w2 OtherNode, w2 OthersMember", false},
	} {
		t.Run(name, func(t *testing.T) {
			w := quorumtest.Voters(3)
			c.change(w)
			var ignored []string
			for _, i := range observation.Ignored(w.Cluster, now) {
				ignored = append(ignored, i.Node+" "+string(i.Reason))
				seen[string(i.Reason)] = true
			}
			require.Equal(t, c.want, strings.Join(ignored, ", "))
			var answers []string
			for _, o := range observation.AcceptedWithNonce(w.Cluster, w.Nonces) {
				answers = append(answers, o.Node)
			}
			require.Equal(t, c.accepted, slices.Contains(answers, "w2"))
			require.NotContains(t, answers, "w9")
			v := quorum.Decide(w.View, quorumtest.Deletion(0))
			require.True(t, v.Allowed, words.Message(v))
			require.Equal(t, 3, v.Facts.Tally.Voters, "one invalid observation changes nothing while other agents answer")
			require.False(t, quorum.Decide(w.Unhealthy(2).View, quorumtest.Deletion(0)).Allowed)
		})
	}
	for _, reason := range observation.IgnoredReasons() {
		require.True(t, seen[string(reason)], "no case has the reason %s", reason)
	}
}

// An invalid list is also ignored before its Node is bound, and from the Node that is deleted.
func TestInvalids(t *testing.T) {
	invalidate := func(o *v1alpha1.Observation) {
		o.Members = append(o.Members, v1alpha1.MemberStatus{ID: "0", Name: "x"})
	}
	w := quorumtest.Voters(1).NeverBound()
	invalidate(w.Observer(0))
	bindings, _ := membership.Bind(w.Cluster, quorumtest.Nodes(1), w.Nonces, quorumtest.Noon())
	require.Empty(t, bindings)

	own := quorumtest.Voters(3).Unbound(0)
	for range 40 {
		invalidate(own.Observer(0)) // with these voters, quorum would be lost
	}
	require.True(t, quorum.Decide(own.View, quorumtest.Deletion(0)).Allowed)
}

func TestRecent(t *testing.T) {
	w := quorumtest.Voters(3)
	for i, age := range []time.Duration{observation.SilentAfter, observation.SilentAfter + time.Second, -time.Hour} {
		w.Observer(i).Time = metav1.NewTime(quorumtest.Noon().Add(-age))
	}
	recent := observation.Recent(w.Cluster, quorumtest.Noon())
	require.Len(t, w.Cluster.Observations, 3, "the cluster itself must not change")
	require.Len(t, recent.Observations, 2)
	require.Equal(t, "w1", recent.Observations[0].Node)
	require.Equal(t, "w3", recent.Observations[1].Node)
}
