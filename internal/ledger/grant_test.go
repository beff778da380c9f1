package ledger

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

func counted(t *testing.T, c prometheus.Metric) float64 {
	t.Helper()
	m := &dto.Metric{}
	require.NoError(t, c.Write(m))
	return m.GetCounter().GetValue()
}

func oneOfThree(t *testing.T, w *world) {
	w.observe()
	b := w.book()
	before := time.Now().Add(-time.Second) // metav1.Time counts seconds
	r := judge(t, b, w.question(0))
	require.True(t, r.Allowed, r.Message)
	require.Equal(t, protect.QuorumKept, r.Reason)
	require.NotEmpty(t, r.Warnings)

	c := w.now()
	require.Equal(t, int64(1), c.Spec.Ledger)
	g := grantFor(c, w.nodes[0].UID)
	require.NotNil(t, g)
	require.Equal(t, []v1alpha1.MemberID{w.member(0)}, g.Members)
	require.Equal(t, "alice", g.User)
	require.False(t, g.BreakGlass)
	require.False(t, g.Time.Time.Before(before.Truncate(time.Second)))

	r = judge(t, b, w.question(1))
	require.False(t, r.Allowed)
	require.Equal(t, protect.QuorumWouldBeLost, r.Reason)
	require.Len(t, w.now().Spec.Grants, 1)
	require.InDelta(t, 1, counted(t, b.metrics.verdicts.WithLabelValues("allowed", "QuorumKept")), 0)
	require.InDelta(t, 1, counted(t, b.metrics.verdicts.WithLabelValues("refused", "QuorumWouldBeLost")), 0)
	require.InDelta(t, 2, counted(t, b.metrics.asks), 1)

	// One DELETE calls the webhook several times: each allow renews the one grant.
	young := w.now()
	old := young.DeepCopy()
	old.Spec.Grants[0].Time = metav1.NewTime(time.Now().Add(-time.Hour))
	require.NoError(t, w.client.Patch(t.Context(), old, client.MergeFrom(young)))
	r = judge(t, b, w.question(0))
	require.True(t, r.Allowed, r.Message)
	c = w.now()
	require.Len(t, c.Spec.Grants, 1)
	require.WithinDuration(t, time.Now(), c.Spec.Grants[0].Time.Time, time.Minute)
	require.Equal(t, int64(2), c.Spec.Ledger)
}

func race(t *testing.T, w *world) {
	w.observe()
	books := []*Book{w.book(), w.book()}
	for round := range 25 {
		rulings := make([]protect.Ruling, 3)
		g, ctx := errgroup.WithContext(t.Context())
		for i := range rulings {
			g.Go(func() (err error) {
				bounded, cancel := context.WithTimeout(ctx, 8*time.Second)
				defer cancel()
				rulings[i], err = books[(i+round)%2].Judge(bounded, w.question(i))
				return err
			})
		}
		require.NoError(t, g.Wait())
		allowed := 0
		for _, r := range rulings {
			if r.Allowed {
				allowed++
			}
		}
		require.Equal(t, 1, allowed, "round %d: %+v", round, rulings)
		c := w.now()
		require.Len(t, c.Spec.Grants, 1)
		c.Spec.Grants, c.Spec.Ledger = nil, c.Spec.Ledger+1
		require.NoError(t, w.forgive(c))
	}
	conflicts := 0.0
	for _, b := range books {
		conflicts += counted(t, b.metrics.conflicts)
	}
	require.Positive(t, conflicts, "nobody has raced")
}

func (w *world) forgive(c *v1alpha1.EtcdCluster) error {
	body := fmt.Sprintf(`{"spec":{"grants":null,"ledger":%d}}`, c.Spec.Ledger)
	return w.client.Patch(w.t.Context(), c, client.RawPatch(types.MergePatchType, []byte(body)))
}

func conflict(t *testing.T, w *world) {
	w.observe()
	b := w.book(func(o *Options) { o.Pace = time.Millisecond }) // so that asking again would show
	question := w.question(0)
	c := w.now()
	l, err := b.look(t.Context(), question.Request, c)
	require.NoError(t, err)
	defer b.asker.release(c.UID, l.ask)
	require.True(t, l.verdict.Allowed, l.verdict.Message)
	nonce := w.now().Spec.Nonce

	// Between verdict and grant another replica grants another node.
	other := w.now()
	_, err = b.patch(t.Context(), other, replaceGrants(other, []v1alpha1.Grant{
		{NodeUID: w.nodes[1].UID, Node: w.nodes[1].Name, Members: []v1alpha1.MemberID{w.member(1)}, Time: metav1.Now()},
	}))
	require.NoError(t, err)

	asked := func() []string { return b.asker.sight(l.ask).asked }
	v, err := b.grant(t.Context(), question, l.sight.cluster, asked, protect.Decide)
	require.NoError(t, err)
	require.False(t, v.Allowed)
	require.Equal(t, protect.QuorumWouldBeLost, v.Reason, v.Message)
	after := w.now()
	require.Equal(t, nonce, after.Spec.Nonce, "the loser must not ask again")
	require.Equal(t, int64(1), after.Spec.Ledger)
	require.Nil(t, grantFor(after, w.nodes[0].UID))

	// The one that is granted already only renews.
	_, err = b.grant(t.Context(), w.question(1), l.sight.cluster, asked, protect.Decide)
	require.NoError(t, err)
	require.Equal(t, int64(2), w.now().Spec.Ledger)
}

// brokenGlassOldList breaks the glass while the last list that anybody gave is older than the members on the nodes.
func brokenGlassOldList(t *testing.T, w *world) {
	list := slices.Clone(w.list)
	w.see(func() { w.list = list[1:] })
	require.NoError(t, w.client.Patch(t.Context(), w.object(), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"nonce":"old"}}`))))
	for i, n := range w.nodes {
		require.NoError(t, w.answer(t.Context(), n, w.member(i), "old"))
	}
	force := func(q protect.Question, judge func(context.Context, protect.Question) (protect.Ruling, error)) {
		q.BreakGlass = &protect.BreakGlass{UID: q.Request.UID, Until: time.Now().Add(time.Hour), Reason: "the host burns"}
		r, err := judge(t.Context(), q)
		require.NoError(t, err)
		require.True(t, r.Allowed)
	}
	b := w.book()
	force(w.question(0), b.Judge)
	g := grantFor(w.now(), w.nodes[0].UID)
	require.NotNil(t, g, "a list without it is no proof that it is gone")
	require.Equal(t, []v1alpha1.MemberID{w.member(0)}, g.Members)

	// A node that neither label nor binding nor announcement knows of: two others list a member at its address.
	w.see(func() {
		w.list = append(list, v1alpha1.MemberStatus{ID: "4", Name: "etcd4", PeerURLs: []string{"https://10.97.0.4:2380"}})
	})
	for i, n := range w.nodes {
		require.NoError(t, w.answer(t.Context(), n, w.member(i), "old"))
	}
	q := w.question(2)
	extra := w.register("extra-"+string(w.id), "10.97.0.4", "4")
	t.Cleanup(func() { require.NoError(t, w.client.Delete(context.WithoutCancel(t.Context()), extra)) })
	q.Request = protect.Request{Node: extra.Name, UID: extra.UID, Addresses: []string{"10.97.0.4"}}
	require.Eventually(t, func() bool {
		r, err := b.JudgeUnlabelled(t.Context(), q)
		require.NoError(t, err)
		return !r.Allowed
	}, eventually, often)
	force(q, b.JudgeUnlabelled)
	g = grantFor(w.now(), extra.UID)
	require.NotNil(t, g)
	require.Equal(t, []v1alpha1.MemberID{"4"}, g.Members)
}

func brokenGlass(t *testing.T, w *world) {
	w.see(func() {
		w.silent = map[string]bool{w.nodes[0].Name: true, w.nodes[1].Name: true, w.nodes[2].Name: true}
	})
	w.observe()
	b := w.book()
	q := w.question(0)
	q.BreakGlass = &protect.BreakGlass{UID: q.Request.UID, Until: time.Now().Add(time.Hour), Reason: "the host burns"}
	begun := time.Now()
	r := judge(t, b, q)
	require.True(t, r.Allowed)
	require.Equal(t, protect.BreakGlassUsed, r.Reason)
	require.Contains(t, r.Message, "the host burns")
	require.Less(t, time.Since(begun), 2*time.Second)
	c := w.now()
	require.Empty(t, c.Spec.Nonce)
	g := grantFor(c, w.nodes[0].UID)
	require.NotNil(t, g)
	require.True(t, g.BreakGlass)
	require.Equal(t, "alice", g.User)
	require.Equal(t, []v1alpha1.MemberID{w.member(0)}, g.Members)

	// The second one goes too, and is recorded too: the next question must count both.
	q = w.question(1)
	q.Request.Labelled = false
	q.BreakGlass = &protect.BreakGlass{UID: q.Request.UID, Until: time.Now().Add(time.Hour), Reason: "so does this"}
	r, err := b.JudgeUnlabelled(t.Context(), q)
	require.NoError(t, err)
	require.True(t, r.Allowed)
	require.NotNil(t, grantFor(w.now(), w.nodes[1].UID))

	q.DryRun = true
	ledger := w.now().Spec.Ledger
	require.True(t, judge(t, b, q).Allowed)
	require.Equal(t, ledger, w.now().Spec.Ledger)
}

func madeUp(t *testing.T, w *world) {
	w.observe()
	b := w.book()
	q := w.question(0)
	q.Request.UID = "00000000-0000-0000-0000-000000000000"
	r, err := b.Judge(t.Context(), q)
	require.ErrorContains(t, err, "there is none with UID")
	require.False(t, r.Allowed)
	require.Equal(t, protect.CannotDecide, r.Reason)
	require.Empty(t, w.now().Spec.Grants)
}

func twoClusters(t *testing.T, w *world) {
	other := &world{
		t: t, config: w.config, scheme: w.scheme, client: w.client, id: w.id + "b", nodes: w.nodes,
		silent: map[string]bool{}, blind: map[string]bool{},
	}
	for i := range w.nodes {
		other.list = append(other.list, v1alpha1.MemberStatus{ID: other.member(i), Name: "events", Healthy: i != 2})
	}
	other.bound()
	t.Cleanup(func() { require.NoError(t, w.client.Delete(context.WithoutCancel(t.Context()), other.object())) })
	w.observe()
	other.observe()
	b := w.book()

	r := judge(t, b, w.question(0)) // the other cluster's m2 is down, and loses its quorum without m0
	require.False(t, r.Allowed)
	require.Equal(t, protect.QuorumWouldBeLost, r.Reason)
	require.Len(t, r.Verdicts, 2)
	require.Contains(t, r.Message, string(other.id))
	require.Empty(t, w.now().Spec.Grants, "what one cluster refuses must not block the other's nodes")
	require.Empty(t, other.now().Spec.Grants)

	r = judge(t, b, w.question(2))
	require.True(t, r.Allowed, r.Message)
	require.NotNil(t, grantFor(w.now(), w.nodes[2].UID))
	require.NotNil(t, grantFor(other.now(), w.nodes[2].UID))
}
