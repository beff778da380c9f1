package review

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore/storetest"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

func TestReview(t *testing.T) {
	config := storetest.NewServer(t)
	for i, test := range []struct {
		name string
		run  func(*testing.T, *storetest.Fixture)
	}{
		{"one of three members", oneOfThreeMembers},
		{"two replicas", twoReplicas},
		{"reviews at once", reviewsAtOnce},
		{"silent agents", silentAgents},
		{"grant conflict", grantConflict},
		{"nonce while another review decides", nonceWhileAnotherDecides},
		{"hanging watch", hangingWatch},
		{"hanging read of a Node", hangingReadOfNode},
		{"break-glass override", breakGlassGrant},
		{"break-glass override with an old list", breakGlassWithOldList},
		{"dry run", dryRun},
		{"forged request", forgedRequest},
		{"unreachable API server", unreachableAPIServer},
		{"refused write", refusedWrite},
		{"refusal beside a refused write", refusalBesideRefusedWrite},
		{"dead node", deadNode},
		{"F64 lists end during the review", listsEndDuringReview},
		// F67: a review that wrote the grants of several panicked before, and the others were allowed.
		{"F67 panic in another review", panicInAnotherReview},
		{"node of two clusters", twoClusters},
		{"F94 machine of another etcd cluster", grantOfOtherCluster},
		{"cold cache", coldCache},
		{"remaining tolerance", remainingTolerance},
		{"unverified server", unverifiedServer},
		// F31: a Node was written during its review: the second review refused, and the first one's grant
		// blocked others.
		{"F31 second review of one DELETE", secondReview},
		{"F24 marks of other programs", marksOfOthers},
		{"removal of a member", removalOfMember},
		{"nodes that go at once", nodesTogether},
		// F35: the deletion of a drained Node replaced its grant, and another webhook refused it: the
		// member counted.
		{"F35 drain, deletion, drain", drainAndDeletion},
		{"F36 node not closed", drainOfOpenNode},
		{"F74 held node", drainOfHeldNode},
		{"drain, break-glass override", breakGlassDrain},
		{"drain of a node without etcd", drainWithoutEtcd},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := storetest.New(t, config, 0x10+i)
			f.CreateBound()
			test.run(t, f)
		})
	}
}

// A testReviewer is a Reviewer with its metrics.
type testReviewer struct {
	*Reviewer
	registry *prometheus.Registry
}

func newReviewer(f *storetest.Fixture, wait time.Duration, change ...func(*clusterstore.Options)) testReviewer {
	registry := prometheus.NewRegistry()
	store := f.OpenStore(append(change, func(o *clusterstore.Options) { o.Registerer = registry })...)
	return testReviewer{Reviewer: New(Options{Store: store, Wait: wait}), registry: registry}
}

// counter returns the value of a counter.
func (reviewer testReviewer) counter(t *testing.T, name string) float64 {
	t.Helper()
	families, err := reviewer.registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()[0].GetCounter().GetValue()
		}
	}
	return 0
}

// reviewTime is the time of a review's caller. longWait is so long that a review that ends sooner
// has not waited, also on a busy machine. The exact times are those of TestQuietTimer.
const reviewTime, longWait = time.Minute, 30 * time.Second

// review returns the decision of a review that must not fail.
func review(t *testing.T, reviewer testReviewer, req quorum.Request) quorum.Decision {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), reviewTime)
	defer cancel()
	decision, err := reviewer.Review(ctx, req)
	require.NoError(t, err)
	return decision
}

func silentAgents(t *testing.T, f *storetest.Fixture) {
	f.SilenceAgents()
	f.RunAgents()
	reviewer := newReviewer(f, time.Second)
	begun := time.Now()
	decision := review(t, reviewer, f.Request(0))
	require.False(t, decision.Allowed)
	require.Equal(t, quorum.CannotSee, decision.Reason)
	require.GreaterOrEqual(t, time.Since(begun), 2*time.Second)
	require.Less(t, time.Since(begun), longWait, "it waited as long as its caller")
	require.Empty(t, f.Cluster().Spec.Grants)

	// Agents that answer without a member list end the wait.
	f.ChangeAgents(func() { f.Silent, f.Blind = map[string]bool{}, f.Silent })
	reviewer = newReviewer(f, longWait)
	begun = time.Now()
	decision = review(t, reviewer, f.Request(0))
	require.False(t, decision.Allowed)
	require.Equal(t, quorum.CannotSee, decision.Reason)
	require.Contains(t, decision.Message, "connection refused")
	require.Less(t, time.Since(begun), longWait)
}

func dryRun(t *testing.T, f *storetest.Fixture) {
	reviewer := newReviewer(f, time.Second)
	req := f.Request(0)
	req.DryRun = true
	decision := review(t, reviewer, req)
	require.False(t, decision.Allowed)
	require.Contains(t, decision.Message, "dry run: decided from the last observations")
	require.Empty(t, f.Cluster().Spec.Nonce)

	f.RunAgents()
	f.WriteNonce("last")
	require.Eventually(t, func() bool {
		c := f.Cluster()
		return len(c.Observations) == 3 &&
			!slices.ContainsFunc(c.Observations, func(o v1alpha1.Observation) bool { return o.Nonce != "last" })
	}, storetest.WaitTimeout, storetest.PollInterval)
	decision = review(t, reviewer, req)
	require.True(t, decision.Allowed, decision.Message)
	require.Contains(t, decision.Message, "dry run: decided from the last observations")
	c := f.Cluster()
	require.Equal(t, "last", c.Spec.Nonce)
	require.Empty(t, c.Spec.Grants)
	require.Zero(t, c.Spec.Ledger)

	// The clock of the Reviewer tells when a grant for another node ends.
	granted := f.Cluster()
	granted.Spec.Ledger, granted.Spec.Grants = 1, []v1alpha1.Grant{{
		NodeUID: f.Nodes[1].UID, Node: f.Nodes[1].Name, Members: []v1alpha1.MemberID{f.MemberID(1)},
		Delete: &v1alpha1.Door{Time: metav1.NewTime(time.Now().Add(-quorum.ResolvePresentAfter)), User: "alice"},
	}}
	require.NoError(t, f.Client.Update(t.Context(), granted))
	require.Contains(t, review(t, reviewer, req).Message, "count again within a minute, unless")
	reviewer.now = func() time.Time { return time.Now().Add(-time.Minute) }
	require.Contains(t, review(t, reviewer, req).Message, "count again within a minute of ")
	reviewer.now = time.Now
	require.NoError(t, removeGrants(t, f, granted))

	// An agent that has been silent for long may have died with the member that it proved healthy.
	for _, o := range c.Observations {
		o.Time = metav1.NewTime(time.Now().Add(-observation.SilentAfter - time.Second))
		require.NoError(t, f.Observe(t.Context(), o))
	}
	decision = review(t, reviewer, req)
	require.False(t, decision.Allowed, decision.Message)
	require.Equal(t, quorum.CannotSee, decision.Reason)
}

func deadNode(t *testing.T, f *storetest.Fixture) {
	f.ChangeAgents(func() { f.Silent[f.Nodes[2].Name], f.Members[2].Healthy = true, false })
	f.RunAgents()
	reviewer := newReviewer(f, longWait)
	begun := time.Now()
	decision := review(t, reviewer, f.Request(2)) // the dead machine is to be replaced
	require.True(t, decision.Allowed, decision.Message)
	require.Less(t, time.Since(begun), longWait)
}

// listsEndDuringReview: only the member lists of other agents place the member of a labelled node,
// and no agent answers the review with one.
func listsEndDuringReview(t *testing.T, f *storetest.Fixture) {
	c := f.Cluster()
	c.Spec.Members = c.Spec.Members[:2]
	require.NoError(t, f.Client.Update(t.Context(), c))
	for i, n := range f.Nodes[:2] {
		require.NoError(t, f.PublishObservation(t.Context(), n, f.MemberID(i), "n1"))
	}
	req := f.Request(2)
	req.Announced = nil
	selected := quorum.Select([]*v1alpha1.EtcdCluster{f.Cluster()}, req)
	require.Len(t, selected, 1)

	f.ChangeAgents(func() {
		f.Blind[f.Nodes[0].Name], f.Blind[f.Nodes[1].Name], f.Silent[f.Nodes[2].Name] = true, true, true
	})
	f.RunAgents()
	decision, err := newReviewer(f, 0).probeAndGrant(t.Context(), req, selected, nil)
	require.NoError(t, err)
	require.False(t, decision.Allowed, decision.Message)
	require.Equal(t, quorum.CannotSee, decision.Reason)
	require.Contains(t, decision.Message, "which may have a member on node "+req.Node)
}
