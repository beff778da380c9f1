package protect

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

func TestUnheard(t *testing.T) {
	now := noon().Add(time.Minute)
	stranger := v1alpha1.Observation{Node: "w9", NodeUID: "u9", Nonce: asked, Linearizable: true, LocalMember: "e", Members: []v1alpha1.MemberStatus{member(0)}}
	seen := map[IgnoredReason]bool{}
	for name, c := range map[string]struct {
		change func(w *world)
		want   []Ignored
		// heard: the verdict rests on this observer's answer all the same.
		heard bool
	}{
		"nothing odd": {func(*world) {}, nil, true},
		"no member is bound to it": {
			func(w *world) { w.with(stranger) }, []Ignored{{"w9", NotBound}}, true,
		},
		"another Node of the name of one that is bound": {func(w *world) { w.observer(1).NodeUID = "u2-again" }, []Ignored{{"w2", OtherNode}}, false},
		"no Node":              {func(w *world) { w.observer(1).NodeUID = "" }, []Ignored{{"w2", OtherNode}}, false},
		"no nonce":             {func(w *world) { w.observer(1).Nonce = "" }, []Ignored{{"w2", NeverAsked}}, false},
		"an old answer is due": {func(w *world) { w.silent(1) }, nil, false},
		"a member of ID 0": {
			func(w *world) { w.inList(1, 0, func(m *v1alpha1.MemberStatus) { m.ID = "0" }) }, []Ignored{{"w2", BadID}}, false,
		},
		"a member of no hex": {
			func(w *world) { w.inList(1, 0, func(m *v1alpha1.MemberStatus) { m.ID = "etcd1" }) }, []Ignored{{"w2", BadID}}, false,
		},
		"its own member of ID 0": {func(w *world) { w.localMember(1, "0") }, []Ignored{{"w2", BadID}}, false},
		"10,000 members": {
			func(w *world) {
				for i := range 10_000 {
					w.observer(1).Members = append(w.observer(1).Members, v1alpha1.MemberStatus{ID: v1alpha1.MemberID(fmt.Sprintf("%x", i+16)), Name: "x", Healthy: true})
				}
			},
			[]Ignored{{"w2", TooManyMembers}},
			false,
		},
		"a member twice": {
			func(w *world) { w.observer(1).Members = append(w.observer(1).Members, member(0)) }, []Ignored{{"w2", MemberTwice}}, true,
		},
		"another's member":             {func(w *world) { w.localMember(1, "c") }, []Ignored{{"w2", OthersMember}}, true},
		"a clock that is off":          {func(w *world) { w.observer(1).Time = metav1.NewTime(now.Add(time.Hour)) }, []Ignored{{"w2", TimeAhead}}, true},
		"a clock that is a little off": {func(w *world) { w.observer(1).Time = metav1.NewTime(now.Add(clockSkew)) }, nil, true},
		"all at once": {
			func(w *world) {
				o := w.observer(1)
				o.Nonce, o.NodeUID, o.Members[0].ID, o.LocalMember = "", "", "0", "c"
				w.observer(0).Time = metav1.NewTime(now.Add(time.Hour))
			},
			[]Ignored{{"w1", TimeAhead}, {"w2", BadID}, {"w2", NeverAsked}, {"w2", OtherNode}, {"w2", OthersMember}},
			false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := voters(3)
			c.change(w)
			require.Equal(t, c.want, Unheard(w.Cluster, now))
			for _, i := range c.want {
				seen[i.Reason] = true
			}
			answers := answersTo(w.Cluster, w.Asked)
			require.Equal(t, c.heard, slices.ContainsFunc(answers, func(o v1alpha1.Observation) bool { return o.Node == "w2" }))
			require.False(t, slices.ContainsFunc(answers, func(o v1alpha1.Observation) bool { return o.Node == "w9" }))
			v := Decide(w.View, deletion(0))
			require.True(t, v.Allowed, v.Message)
			require.Equal(t, 3, v.Voters, "what is odd about one observation changes nothing while others answer")
			require.False(t, Decide(w.sick(2).View, deletion(0)).Allowed)
		})
	}
	for _, reason := range IgnoredReasons() {
		require.True(t, seen[reason], "nothing is ignored for %s", reason)
	}
}

// A list that cannot be one is not heard from those either whose word counts before they are bound.
func TestAListThatCannotBeOneFoundsNothing(t *testing.T) {
	absurd := func(o *v1alpha1.Observation) {
		o.Members = append(o.Members, v1alpha1.MemberStatus{ID: "0", Name: "x"})
	}
	w := voters(1).neverBound()
	absurd(w.observer(0))
	bindings, _ := Bind(w.Cluster, claims(1), w.Asked)
	require.Empty(t, bindings)

	own := voters(3).unbound(0)
	for range 40 {
		absurd(own.observer(0)) // by which quorum would be lost
	}
	require.True(t, Decide(own.View, deletion(0)).Allowed)
}
