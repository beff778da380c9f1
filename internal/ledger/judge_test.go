package ledger

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

func TestJudge(t *testing.T) {
	config := newServer(t)
	for i, test := range []struct {
		name string
		run  func(*testing.T, *world)
	}{
		{"of three healthy members one may be lost, and no second one", oneOfThree},
		{"two replicas at once never allow two nodes", race},
		{"silent observers refuse within the wait, and say that nobody could see", silence},
		{"an answer to another replica's newer question counts", overwritten},
		{"an answer from before the question does not count", stale},
		{"a grant that came first is counted without asking again", conflict},
		{"a broken glass allows and is recorded", brokenGlass},
		{"a dry run asks nobody and writes nothing", dryRun},
		{"a request for a node that is not there records nothing", madeUp},
		{"a labelled node of no cluster is refused", unattributed},
		{"a node without the label is answered from the cache", unlabelledNode},
		{"an API server that is away refuses with words of its own", away},
		{"a dead node does not make everybody wait", deadNode},
		{"a node of two clusters needs both, and is granted in both or none", twoClusters},
		{"a cache that has not started decides nothing", coldCache},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, config, 0x10+i)
			w.bound()
			test.run(t, w)
		})
	}
}

func judge(t *testing.T, b *Book, q protect.Question) protect.Ruling {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
	defer cancel()
	r, err := b.Judge(ctx, q)
	require.NoError(t, err)
	return r
}

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
	old := w.now().DeepCopy()
	old.Spec.Grants[0].Time = metav1.NewTime(time.Now().Add(-time.Hour))
	require.NoError(t, w.client.Update(t.Context(), old))
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

// forgive takes all grants off, as no reader of the ledger could miss.
func (w *world) forgive(c *v1alpha1.EtcdCluster) error {
	body := fmt.Sprintf(`{"spec":{"grants":null,"ledger":%d}}`, c.Spec.Ledger)
	return w.client.Patch(w.t.Context(), c, client.RawPatch(types.MergePatchType, []byte(body)))
}

func silence(t *testing.T, w *world) {
	w.see(func() {
		w.silent = map[string]bool{w.nodes[0].Name: true, w.nodes[1].Name: true, w.nodes[2].Name: true}
	})
	w.observe()
	b := w.book(func(o *Options) { o.Wait = time.Second })
	begun := time.Now()
	r := judge(t, b, w.question(0))
	require.False(t, r.Allowed)
	require.Equal(t, protect.CannotSee, r.Reason)
	require.GreaterOrEqual(t, time.Since(begun), time.Second)
	require.Less(t, time.Since(begun), 3*time.Second)
	require.Empty(t, w.now().Spec.Grants)

	// Agents that answer that they cannot see end the wait.
	w.see(func() { w.silent, w.blind = map[string]bool{}, w.silent })
	b = w.book(func(o *Options) { o.Wait = 6 * time.Second })
	begun = time.Now()
	r = judge(t, b, w.question(0))
	require.False(t, r.Allowed)
	require.Equal(t, protect.CannotSee, r.Reason)
	require.Contains(t, r.Message, "connection refused")
	require.Less(t, time.Since(begun), 4*time.Second)
}

func overwritten(t *testing.T, w *world) {
	// These agents have missed the first question: they see the object only after the other replica has asked again, and
	// a third question stands there before they have answered the second.
	b := w.book()
	var g errgroup.Group
	g.Go(func() error {
		var first string
		for first == "" {
			first = w.now().Spec.Nonce
		}
		for _, nonce := range []string{"second", "third"} {
			c := w.object()
			body := fmt.Sprintf(`{"spec":{"nonce":%q}}`, nonce)
			if err := w.client.Patch(t.Context(), c, client.RawPatch(types.MergePatchType, []byte(body))); err != nil {
				return err
			}
		}
		for i, n := range w.nodes {
			if err := w.answer(t.Context(), n, w.member(i), "second"); err != nil {
				return err
			}
		}
		return nil
	})
	r := judge(t, b, w.question(0))
	require.NoError(t, g.Wait())
	require.True(t, r.Allowed, r.Message)
}

func stale(t *testing.T, w *world) {
	require.NoError(t, w.client.Patch(t.Context(), w.object(), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"nonce":"old"}}`))))
	for i, n := range w.nodes {
		require.NoError(t, w.answer(t.Context(), n, w.member(i), "old"))
	}
	b := w.book(func(o *Options) { o.Wait = time.Second })
	r := judge(t, b, w.question(0))
	require.False(t, r.Allowed)
	require.Equal(t, protect.CannotSee, r.Reason)
}

func conflict(t *testing.T, w *world) {
	w.observe()
	b := w.book(func(o *Options) { o.ShareWithin = time.Millisecond }) // so that asking again would show
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

func dryRun(t *testing.T, w *world) {
	b := w.book(func(o *Options) { o.Wait = time.Second })
	q := w.question(0)
	q.DryRun = true
	r := judge(t, b, q)
	require.False(t, r.Allowed)
	require.Contains(t, r.Message, "dry run: judged from what was last seen")
	require.Empty(t, w.now().Spec.Nonce)

	w.observe()
	require.NoError(t, w.client.Patch(t.Context(), w.object(), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"nonce":"last"}}`))))
	require.Eventually(t, func() bool {
		c := w.object()
		err := w.client.Get(t.Context(), client.ObjectKeyFromObject(c), c)
		return err == nil && len(c.Status.Observations) == 3 &&
			!slices.ContainsFunc(c.Status.Observations, func(o v1alpha1.Observation) bool { return o.Nonce != "last" })
	}, eventually, often)
	r = judge(t, b, q)
	require.True(t, r.Allowed, r.Message)
	require.Contains(t, r.Message, "dry run: judged from what was last seen")
	c := w.now()
	require.Equal(t, "last", c.Spec.Nonce)
	require.Empty(t, c.Spec.Grants)
	require.Zero(t, c.Spec.Ledger)
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

func unattributed(t *testing.T, w *world) {
	b := w.book()
	q := protect.Question{Request: protect.Request{Node: "stranger", UID: "u", Labelled: true, Addresses: []string{"10.9.9.9"}}}
	r := judge(t, b, q)
	require.False(t, r.Allowed)
	require.Equal(t, protect.UnknownMember, r.Reason)

	q.Request.Announced = []protect.MemberRef{{Cluster: "dead", Member: "beef"}}
	r = judge(t, b, q)
	require.False(t, r.Allowed)
	require.Equal(t, protect.CannotSee, r.Reason)

	q.Request.Labelled, q.Request.Announced = false, nil
	require.True(t, judge(t, b, q).Allowed)
}

func unlabelledNode(t *testing.T, w *world) {
	b := w.book()
	q := w.question(0)
	q.Request.Labelled, q.Request.Announced = false, nil
	r, err := b.JudgeUnlabelled(t.Context(), q)
	require.NoError(t, err)
	require.False(t, r.Allowed)
	require.Equal(t, protect.UnknownMember, r.Reason)
	r, err = b.JudgeUnlabelled(t.Context(), protect.Question{Request: protect.Request{Node: "worker", UID: "u"}})
	require.NoError(t, err)
	require.True(t, r.Allowed)
	require.Empty(t, w.now().Spec.Nonce)
}

func away(t *testing.T, w *world) {
	w.observe()
	b := w.book()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r, err := b.Judge(ctx, w.question(0))
	require.Error(t, err)
	require.False(t, r.Allowed)
	require.Equal(t, protect.CannotDecide, r.Reason)
	require.Contains(t, r.Message, "says nothing about its etcd")
	require.Empty(t, w.now().Spec.Grants)
}

func deadNode(t *testing.T, w *world) {
	w.see(func() { w.silent[w.nodes[2].Name], w.list[2].Healthy = true, false })
	w.observe()
	b := w.book(func(o *Options) { o.Wait = 6 * time.Second })
	begun := time.Now()
	r := judge(t, b, w.question(2)) // the dead machine is the one to be replaced
	require.True(t, r.Allowed, r.Message)
	require.Less(t, time.Since(begun), 4*time.Second)
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

func coldCache(t *testing.T, w *world) {
	cold, err := cache.New(w.config, cache.Options{Scheme: w.scheme})
	require.NoError(t, err)
	b, err := New(t.Context(), Options{
		Client: w.client, Reader: w.client, Cache: cold, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	require.NoError(t, err)
	r, err := b.JudgeUnlabelled(t.Context(), w.question(0))
	require.Error(t, err)
	require.Equal(t, protect.Ruling{}, r)

	// What decides about a labelled node is read from the API server, so that no stalled watch can hide a deletion.
	require.NoError(t, w.client.Patch(t.Context(), w.object(), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"nonce":"last"}}`))))
	for i, n := range w.nodes {
		require.NoError(t, w.answer(t.Context(), n, w.member(i), "last"))
	}
	q := w.question(0)
	q.DryRun = true
	r = judge(t, b, q)
	require.True(t, r.Allowed, r.Message)
	w.delete(1)
	r = judge(t, b, q)
	require.False(t, r.Allowed)
	require.Contains(t, r.Message, "is gone")
}
