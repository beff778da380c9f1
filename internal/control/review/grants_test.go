package review

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore/storetest"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

func oneOfThreeMembers(t *testing.T, f *storetest.Fixture) {
	f.RunAgents()
	reviewer := newReviewer(f, 0)
	before := time.Now().Add(-time.Second) // metav1.Time counts seconds
	decision := review(t, reviewer, f.Request(0))
	require.True(t, decision.Allowed, decision.Message)
	require.Equal(t, quorum.QuorumKept, decision.Reason)
	require.NotEmpty(t, decision.Warnings)

	c := f.Cluster()
	require.Equal(t, int64(1), c.Spec.Ledger)
	g := storetest.GrantFor(c, f.Nodes[0].UID)
	require.NotNil(t, g)
	require.Equal(t, []v1alpha1.MemberID{f.MemberID(0)}, g.Members)
	require.Equal(t, "alice", g.Delete.User)
	require.False(t, g.Delete.BreakGlass)
	require.False(t, g.Delete.Time.Time.Before(before.Truncate(time.Second)))

	decision = review(t, reviewer, f.Request(1))
	require.False(t, decision.Allowed)
	require.Equal(t, quorum.QuorumWouldBeLost, decision.Reason)
	require.Len(t, f.Cluster().Spec.Grants, 1)
	require.InDelta(t, 2, reviewer.counter(t, "holdfast_webhook_asks_total"), 1)

	// Each decision that allows renews the grant.
	young := f.Cluster()
	old := young.DeepCopy()
	old.Spec.Grants[0].Delete.Time = metav1.NewTime(time.Now().Add(-time.Hour))
	require.NoError(t, f.Client.Patch(t.Context(), old, client.MergeFrom(young)))
	decision = review(t, reviewer, f.Request(0))
	require.True(t, decision.Allowed, decision.Message)
	c = f.Cluster()
	require.Len(t, c.Spec.Grants, 1)
	require.WithinDuration(t, time.Now(), c.Spec.Grants[0].Delete.Time.Time, time.Minute)
	require.Equal(t, int64(2), c.Spec.Ledger)
}

// twoReplicas reviews the deletions of all three nodes at once, until two replicas have written
// their grants at the same time. One deletion of each round is allowed.
func twoReplicas(t *testing.T, f *storetest.Fixture) {
	f.RunAgents()
	reviewers := []testReviewer{newReviewer(f, 0), newReviewer(f, 0)}
	conflicts := func() float64 {
		const name = "holdfast_webhook_grant_conflicts_total"
		return reviewers[0].counter(t, name) + reviewers[1].counter(t, name)
	}
	for round := 0; round < 3 || conflicts() == 0; round++ {
		require.Less(t, round, 25, "no grant conflict occurred")
		decisions := make([]quorum.Decision, 3)
		g, ctx := errgroup.WithContext(t.Context())
		for i := range decisions {
			g.Go(func() (err error) {
				bounded, cancel := context.WithTimeout(ctx, reviewTime)
				defer cancel()
				decisions[i], err = reviewers[(i+round)%2].Review(bounded, f.Request(i))
				return err
			})
		}
		require.NoError(t, g.Wait())
		allowed := 0
		for _, decision := range decisions {
			if decision.Allowed {
				allowed++
			}
		}
		require.Equal(t, 1, allowed, "round %d: %+v", round, decisions)
		c := f.Cluster()
		require.Len(t, c.Spec.Grants, 1)
		c.Spec.Grants, c.Spec.Ledger = nil, c.Spec.Ledger+1
		require.NoError(t, removeGrants(t, f, c))
	}
}

func removeGrants(t *testing.T, f *storetest.Fixture, c *v1alpha1.EtcdCluster) error {
	body := fmt.Sprintf(`{"spec":{"grants":null,"ledger":%d}}`, c.Spec.Ledger)
	return f.Client.Patch(t.Context(), c, client.RawPatch(types.MergePatchType, []byte(body)))
}

// grantConflict: another replica writes a grant between the reads and the write of a turn.
func grantConflict(t *testing.T, f *storetest.Fixture) {
	f.RunAgents()
	reviewer := newReviewer(f, 0)
	probe := answeredProbe(t, f, reviewer)
	nonce := f.Cluster().Spec.Nonce
	attemptFor := func(i int, judge func(quorum.View, quorum.Request) quorum.Verdict) *attempt {
		return &attempt{
			ctx: t.Context(), request: f.Request(i), result: probe.Result, mayGrant: true, judge: judge,
		}
	}
	calls := 0
	v, err := reviewer.turns.take(attemptFor(0, func(v quorum.View, req quorum.Request) quorum.Verdict {
		verdict := quorum.Decide(v, req)
		if calls++; calls == 1 {
			require.True(t, verdict.Allowed, words.Message(verdict))
			other := f.Cluster()
			_, err := reviewer.store.Patch(t.Context(), other, clusterstore.ReplaceGrants(other, []v1alpha1.Grant{{
				NodeUID: f.Nodes[1].UID, Node: f.Nodes[1].Name, Members: []v1alpha1.MemberID{f.MemberID(1)},
				Drain: &v1alpha1.Door{Time: metav1.Now()},
			}}))
			require.NoError(t, err)
		}
		return verdict
	}), reviewer.turn)
	require.NoError(t, err)
	require.Equal(t, 2, calls)
	require.False(t, v.Allowed)
	require.Equal(t, quorum.QuorumWouldBeLost, v.Reason, words.Message(v))
	after := f.Cluster()
	require.Equal(t, nonce, after.Spec.Nonce, "a grant conflict must not request a probe")
	require.Equal(t, int64(1), after.Spec.Ledger)
	require.Nil(t, storetest.GrantFor(after, f.Nodes[0].UID))

	// A node that has a grant already only renews it.
	_, err = reviewer.turns.take(attemptFor(1, quorum.Decide), reviewer.turn)
	require.NoError(t, err)
	require.Equal(t, int64(2), f.Cluster().Spec.Ledger)
}

// breakGlassWithOldList uses the override while the last member list is older than the
// members on the nodes.
func breakGlassWithOldList(t *testing.T, f *storetest.Fixture) {
	list := slices.Clone(f.Members)
	f.ChangeAgents(func() { f.Members = list[1:] })
	f.WriteNonce("old")
	f.PublishAll("old")
	force := func(req quorum.Request, review func(context.Context, quorum.Request) (quorum.Decision, error)) {
		req.BreakGlass = &quorum.BreakGlass{UID: req.UID, Until: time.Now().Add(time.Hour), Reason: "the host burns"}
		decision, err := review(t.Context(), req)
		require.NoError(t, err)
		require.True(t, decision.Allowed)
	}
	reviewer := newReviewer(f, 0)
	force(f.Request(0), reviewer.Review)
	g := storetest.GrantFor(f.Cluster(), f.Nodes[0].UID)
	require.NotNil(t, g, "a list without the member does not prove that it is gone")
	require.Equal(t, []v1alpha1.MemberID{f.MemberID(0)}, g.Members)

	// The Node has no label, no binding and no announcement. Two other agents list a member at
	// its address.
	f.ChangeAgents(func() {
		f.Members = append(list, v1alpha1.MemberStatus{ID: "4", Name: "etcd4", PeerURLs: []string{"https://10.97.0.4:2380"}})
	})
	f.PublishAll("old")
	req := f.Request(2)
	extra := f.CreateNode("extra-"+string(f.ClusterID), "10.97.0.4", "4")
	f.DeleteAfterTest(extra)
	req = quorum.Request{Node: extra.Name, UID: extra.UID, Addresses: []string{"10.97.0.4"}, User: req.User}
	require.Eventually(t, func() bool {
		decision, err := reviewer.ReviewUnlabelled(t.Context(), req)
		require.NoError(t, err)
		return !decision.Allowed
	}, storetest.WaitTimeout, storetest.PollInterval)
	force(req, reviewer.ReviewUnlabelled)
	g = storetest.GrantFor(f.Cluster(), extra.UID)
	require.NotNil(t, g)
	require.Equal(t, []v1alpha1.MemberID{"4"}, g.Members)
}

func breakGlassGrant(t *testing.T, f *storetest.Fixture) {
	f.SilenceAgents()
	f.RunAgents()
	reviewer := newReviewer(f, longWait)
	req := f.Request(0)
	req.BreakGlass = &quorum.BreakGlass{UID: req.UID, Until: time.Now().Add(time.Hour), Reason: "the host burns"}
	begun := time.Now()
	decision := review(t, reviewer, req)
	require.True(t, decision.Allowed)
	require.Equal(t, quorum.BreakGlassUsed, decision.Reason)
	require.Contains(t, decision.Message, "the host burns")
	require.Less(t, time.Since(begun), longWait)
	c := f.Cluster()
	require.Empty(t, c.Spec.Nonce)
	g := storetest.GrantFor(c, f.Nodes[0].UID)
	require.NotNil(t, g)
	require.True(t, g.Delete.BreakGlass)
	require.Equal(t, "alice", g.Delete.User)
	require.Equal(t, []v1alpha1.MemberID{f.MemberID(0)}, g.Members)

	// The second override is allowed and recorded too: later reviews must count both.
	req = f.Request(1)
	req.Labelled = false
	req.BreakGlass = &quorum.BreakGlass{UID: req.UID, Until: time.Now().Add(time.Hour), Reason: "so does this"}
	decision, err := reviewer.ReviewUnlabelled(t.Context(), req)
	require.NoError(t, err)
	require.True(t, decision.Allowed)
	require.NotNil(t, storetest.GrantFor(f.Cluster(), f.Nodes[1].UID))

	req.DryRun = true
	ledger := f.Cluster().Spec.Ledger
	require.True(t, review(t, reviewer, req).Allowed)
	require.Equal(t, ledger, f.Cluster().Spec.Ledger)
}

func forgedRequest(t *testing.T, f *storetest.Fixture) {
	f.RunAgents()
	reviewer := newReviewer(f, 0)
	req := f.Request(0)
	req.UID = "00000000-0000-0000-0000-000000000000"
	decision, err := reviewer.Review(t.Context(), req)
	require.ErrorContains(t, err, "there is none with UID")
	require.Zero(t, decision)
	require.Empty(t, f.Cluster().Spec.Grants)
}

func twoClusters(t *testing.T, f *storetest.Fixture) {
	other := f.SecondCluster()
	f.RunAgents()
	other.RunAgents()
	reviewer := newReviewer(f, 0)

	// The other cluster's m2 is down, so it needs m0 for quorum.
	decision := review(t, reviewer, f.Request(0))
	require.False(t, decision.Allowed)
	require.Equal(t, quorum.QuorumWouldBeLost, decision.Reason)
	require.Len(t, decision.Verdicts, 2)
	require.Contains(t, decision.Message, string(other.ClusterID))
	require.Empty(t, f.Cluster().Spec.Grants, "a refusal of one cluster must not block nodes of the other")
	require.Empty(t, other.Cluster().Spec.Grants)

	decision = review(t, reviewer, f.Request(2))
	require.True(t, decision.Allowed, decision.Message)
	require.NotNil(t, storetest.GrantFor(f.Cluster(), f.Nodes[2].UID))
	require.NotNil(t, storetest.GrantFor(other.Cluster(), f.Nodes[2].UID))
}

// TestTurns checks that one review decides for all that wait. A decision takes 100 ms.
func TestTurns(t *testing.T) {
	const takes = 100 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns()
		var batches []int
		isBroken := false
		turn := func(batch []*attempt) {
			batches = append(batches, len(batch))
			<-time.After(takes)
			if isBroken {
				panic("broken")
			}
			for _, a := range batch {
				a.verdict, a.err = quorum.Verdict{Allowed: true}, nil
			}
		}
		do := func(ctx context.Context, cluster string) (v quorum.Verdict, err error) {
			c := &v1alpha1.EtcdCluster{}
			c.UID = types.UID(cluster)
			err = loop.RecoverPanic(func() (err error) {
				v, err = turns.take(&attempt{ctx: ctx, result: resultOf(c)}, turn)
				return err
			})
			return v, err
		}
		var g errgroup.Group
		for i := range 10 {
			g.Go(func() error {
				<-time.After(time.Duration(i) * time.Millisecond)
				v, err := do(t.Context(), "c")
				require.True(t, v.Allowed)
				return err
			})
		}
		begun := time.Now()
		require.NoError(t, g.Wait())
		require.Equal(t, 2*takes, time.Since(begun))
		require.Equal(t, []int{1, 9}, batches)

		// A review whose time is up leaves no grant.
		batches = nil
		g.Go(func() error { _, err := do(t.Context(), "c"); return err })
		synctest.Wait()
		hasty, cancel := context.WithTimeout(t.Context(), takes/2)
		defer cancel()
		_, err := do(hasty, "c")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, g.Wait())
		require.Equal(t, []int{1}, batches)

		// A review that has ended takes no turn, although it is free.
		batches = nil
		for range 20 {
			_, err = do(hasty, "c")
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		require.Empty(t, batches)

		// A panic is an error of all reviews of the batch, and others can write.
		isBroken = true
		for range 3 {
			g.Go(func() error { _, err := do(t.Context(), "c"); require.Error(t, err); return nil })
		}
		require.NoError(t, g.Wait())
		isBroken = false
		_, err = do(t.Context(), "c")
		require.NoError(t, err)
		require.Empty(t, turns.queues, "nothing is kept of an EtcdCluster, which may be deleted")
	})
}

// reviewsAtOnce makes 30 reviews of three nodes at one replica, each for another user.
func reviewsAtOnce(t *testing.T, f *storetest.Fixture) {
	f.RunAgents()
	reviewer := newReviewer(f, 0)
	const count = 30
	decisions := make([]quorum.Decision, count)
	var g errgroup.Group
	for i := range count {
		g.Go(func() (err error) {
			ctx, cancel := context.WithTimeout(t.Context(), reviewTime)
			defer cancel()
			req := f.Request(i % 3)
			req.User = fmt.Sprint("user ", i)
			decisions[i], err = reviewer.Review(ctx, req)
			return err
		})
	}
	require.NoError(t, g.Wait())
	c := f.Cluster()
	require.Len(t, c.Spec.Grants, 1)
	for i, d := range decisions {
		require.Equal(t, f.Nodes[i%3].UID == c.Spec.Grants[0].NodeUID, d.Allowed, "%d: %s", i, d.Message)
	}
	require.LessOrEqual(t, c.Spec.Ledger, int64(count/3/2), "the ten reviews that allow share their writes")
	require.LessOrEqual(t, reviewer.counter(t, "holdfast_webhook_asks_total"), 4.0, "they share their probes")
}

// panicInAnotherReview: one review decides for two, and panics before it has written.
func panicInAnotherReview(t *testing.T, f *storetest.Fixture) {
	reviewer := newReviewer(f, 0)
	request := func(i int, judge func(quorum.View, quorum.Request) quorum.Verdict) *attempt {
		return &attempt{
			ctx: t.Context(), request: f.Request(i), result: resultOf(f.Cluster()),
			judge: judge, mayGrant: true, mustEnd: true, done: make(chan struct{}),
		}
	}
	waiting := request(0, func(quorum.View, quorum.Request) quorum.Verdict {
		return quorum.Verdict{Allowed: true, Members: []v1alpha1.MemberID{f.MemberID(0)}}
	})
	broken := request(1, func(quorum.View, quorum.Request) quorum.Verdict { panic("broken") })
	reviewer.turns.add(f.Cluster().UID, waiting)
	require.Error(t, loop.RecoverPanic(func() error {
		_, err := reviewer.turns.take(broken, reviewer.turn)
		return err
	}))
	<-waiting.done
	require.ErrorIs(t, waiting.err, errNotRecorded)
	require.Empty(t, f.Cluster().Spec.Grants)
}

// grantOfOtherCluster: the old EtcdCluster of an etcd that was restored with new IDs has a grant
// for one of the nodes.
func grantOfOtherCluster(t *testing.T, f *storetest.Fixture) {
	f.RunAgents()
	old := f.EmptyCluster()
	old.Name += "c"
	old.Spec.Grants = []v1alpha1.Grant{{
		NodeUID: f.Nodes[1].UID, Node: f.Nodes[1].Name, Members: []v1alpha1.MemberID{"f"},
		Machine: &v1alpha1.Door{Time: metav1.Now(), User: "alice"},
	}}
	require.NoError(t, f.Client.Create(t.Context(), old))
	f.DeleteAfterTest(old)
	reviewer := newReviewer(f, 0)
	dryRun := f.Request(0)
	dryRun.DryRun = true
	for _, req := range []quorum.Request{f.Request(0), dryRun} {
		require.Contains(t, review(t, reviewer, req).Message, "which had a member of etcd cluster "+old.Name+" too")
	}
}
