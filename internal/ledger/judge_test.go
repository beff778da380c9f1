package ledger

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
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
		{"a broken glass is recorded whatever an old list lacks", brokenGlassOldList},
		{"a dry run asks nobody and writes nothing", dryRun},
		{"a request for a node that is not there records nothing", madeUp},
		{"a labelled node of no cluster is refused", unattributed},
		{"a node without the label is answered from the cache", unlabelledNode},
		{"an API server that is away refuses with words of its own", away},
		{"a dead node does not make everybody wait", deadNode},
		{"a member that is bound nowhere goes with the node at whose address it is", placedOnly},
		{"a node of two clusters needs both, and is granted in both or none", twoClusters},
		{"a cache that has not started decides nothing", coldCache},
		{"a tolerance that is asked for is kept", tolerance},
		{"a server that never said who it is refuses without asking", unverified},
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

// forgive takes all grants off, as no reader of the ledger could miss.
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

// placedOnly: the agent on the third node has never run, and the two others list its member at the node's address.
func placedOnly(t *testing.T, w *world) {
	c := w.now()
	c.Spec.Members = c.Spec.Members[:2]
	require.NoError(t, w.client.Update(t.Context(), c))
	w.see(func() { w.silent[w.nodes[2].Name] = true })
	w.observe()
	b := w.book()
	taint := func(body string) {
		require.NoError(t, w.client.Patch(t.Context(), w.nodes[2].DeepCopy(), client.RawPatch(types.MergePatchType, []byte(body))))
	}
	taint(`{"spec":{"taints":[{"key":"ToBeDeletedByClusterAutoscaler","effect":"NoSchedule"}]}}`)
	r := judge(t, b, w.question(0))
	require.False(t, r.Allowed, r.Message)
	require.Contains(t, r.Message, "its node "+w.nodes[2].Name+" is about to be deleted (taint ToBeDeletedByClusterAutoscaler)")
	require.Empty(t, w.now().Spec.Grants)
	taint(`{"spec":{"taints":null}}`)
	r = judge(t, b, w.question(0))
	require.True(t, r.Allowed, r.Message)
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

	// So are the addresses of nodes, if a member is bound to none.
	c := w.now()
	c.Spec.Members = c.Spec.Members[:2]
	require.NoError(t, w.client.Update(t.Context(), c))
	taint := func(body string) {
		require.NoError(t, w.client.Patch(t.Context(), w.nodes[2].DeepCopy(), client.RawPatch(types.MergePatchType, []byte(body))))
	}
	taint(`{"spec":{"taints":[{"key":"ToBeDeletedByClusterAutoscaler","effect":"NoSchedule"}]}}`)
	r = judge(t, b, q)
	require.False(t, r.Allowed)
	require.Contains(t, r.Message, "is about to be deleted")
	taint(`{"spec":{"taints":null}}`)
	r = judge(t, b, q)
	require.True(t, r.Allowed, r.Message)

	w.delete(1)
	r = judge(t, b, q)
	require.False(t, r.Allowed)
	require.Contains(t, r.Message, "is gone")
}
