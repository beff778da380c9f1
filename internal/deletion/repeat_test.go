package deletion

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/clusterstore/storetest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// repeatedReview reviews one deletion again, as the API server does after a write to the Node.
func repeatedReview(t *testing.T, f *storetest.Fixture) {
	f.RunAgents()
	reviewer, replica := newReviewer(f, 0), newReviewer(f, 0)
	require.True(t, review(t, reviewer, f.Request(0)).Allowed)
	original := f.Request(0)
	first := f.Cluster()

	// The Node is written, and a member elsewhere dies. No fresh review would allow the deletion.
	writeNode(t, f, 0)
	f.ChangeAgents(func() { f.Silent[f.Nodes[1].Name], f.Members[1].Healthy = true, false })
	begun := time.Now()
	decision := review(t, replica, f.Request(0))
	require.Less(t, time.Since(begun), 500*time.Millisecond)
	require.True(t, decision.Allowed, decision.Message)
	require.Equal(t, quorum.Repeated, decision.Reason)
	require.Len(t, decision.Verdicts, 1)
	after := f.Cluster()
	require.Equal(t, first.Spec.Grants, after.Spec.Grants, "the time of the grant stays")

	bob, dryRun := f.Request(0), f.Request(0)
	bob.User, dryRun.DryRun = "bob", true
	for _, req := range []quorum.Request{bob, dryRun, original, f.Request(2)} {
		decision = review(t, replica, req)
		require.False(t, decision.Allowed, "%+v", req)
		require.Equal(t, quorum.QuorumWouldBeLost, decision.Reason)
	}
	ageGrant(t, f, quorum.RepeatWithin)
	decision = review(t, reviewer, f.Request(0))
	require.False(t, decision.Allowed)
	require.Equal(t, quorum.QuorumWouldBeLost, decision.Reason)
}

// writeNode writes the Node, so that the API server reviews its deletion again.
func writeNode(t *testing.T, f *storetest.Fixture, i int) {
	t.Helper()
	f.PatchNode(i, `{"metadata":{"annotations":{"example.com/written":"meanwhile"}}}`)
	require.NoError(t, f.Client.Get(t.Context(), client.ObjectKeyFromObject(f.Nodes[i]), f.Nodes[i]))
}

// ageGrant moves the time of the only grant into the past.
func ageGrant(t *testing.T, f *storetest.Fixture, age time.Duration) {
	t.Helper()
	c := f.Cluster()
	old := c.DeepCopy()
	require.Len(t, old.Spec.Grants, 1)
	old.Spec.Grants[0].Time = metav1.NewTime(old.Spec.Grants[0].Time.Add(-age))
	require.NoError(t, f.Client.Patch(t.Context(), old, client.MergeFrom(c)))
}

// repeatedReviewOfTwoClusters: every cluster with a member on the node must have a grant.
func repeatedReviewOfTwoClusters(t *testing.T, f *storetest.Fixture) {
	other := f.SecondCluster()
	f.RunAgents()
	other.RunAgents()
	reviewer := newReviewer(f, 0)
	require.True(t, review(t, reviewer, f.Request(2)).Allowed)
	writeNode(t, f, 2)
	f.ChangeAgents(func() { f.Members[1].Healthy = false })
	other.ChangeAgents(func() { other.Members[1].Healthy = false })
	decision := review(t, reviewer, f.Request(2))
	require.Equal(t, quorum.Repeated, decision.Reason, decision.Message)
	require.Len(t, decision.Verdicts, 2)

	// The grant of the second cluster ends.
	require.NoError(t, removeGrants(t, other, other.Cluster()))
	decision = review(t, reviewer, f.Request(2))
	require.False(t, decision.Allowed, decision.Message)
	require.Equal(t, quorum.QuorumWouldBeLost, decision.Reason)

	// A member that appeared on the node since needs a decision too.
	c := f.Cluster()
	c.Spec.Members = append(c.Spec.Members,
		v1alpha1.Binding{MemberID: "f", Node: f.Nodes[2].Name, NodeUID: f.Nodes[2].UID})
	_, isRepeated := reviewer.repeat(t.Context(), f.Request(2), []probedCluster{probedAgain(t, reviewer, c)})
	require.False(t, isRepeated)
}

// probedAgain returns a request that the agents of the cluster have answered, with the bindings and
// grants of c.
func probedAgain(t *testing.T, r testReviewer, c *v1alpha1.EtcdCluster) probedCluster {
	t.Helper()
	request, err := r.store.RequestProbe(t.Context(), c)
	require.NoError(t, err)
	t.Cleanup(request.Release)
	hasAnswers := func() bool {
		result := request.Result()
		return result.Answers() == 2*len(result.Cluster.Status.Observations)
	}
	require.Eventually(t, hasAnswers, 10*time.Second, time.Millisecond)
	result := request.Result()
	result.Cluster = result.Cluster.DeepCopy()
	result.Cluster.Spec.Members, result.Cluster.Spec.Grants = c.Spec.Members, c.Spec.Grants
	view, err := r.store.ProbedView(t.Context(), request, result)
	require.NoError(t, err)
	return probedCluster{request: request, view: view}
}

// repeatedReviewAfterGrant: a grant that ended while the review waited answers nothing, although
// the version that the review was decided from has it.
func repeatedReviewAfterGrant(t *testing.T, f *storetest.Fixture) {
	f.RunAgents()
	reviewer := newReviewer(f, 0)
	require.True(t, review(t, reviewer, f.Request(0)).Allowed)
	writeNode(t, f, 0)
	old := f.Cluster()
	probed := []probedCluster{probedAgain(t, reviewer, old)}
	isRepeated := func() bool {
		decision, isRepeated := reviewer.repeat(t.Context(), f.Request(0), probed)
		require.Equal(t, isRepeated, decision.Allowed)
		return isRepeated
	}
	require.True(t, isRepeated())
	probedAgain(t, reviewer, old) // The answers to a later request count for this one.
	require.True(t, isRepeated())
	require.NoError(t, removeGrants(t, f, old.DeepCopy())) // Patch writes the result into its argument
	require.False(t, isRepeated(), "the grant has ended")

	require.NoError(t, f.Client.Delete(t.Context(), old.DeepCopy()))
	require.False(t, isRepeated(), "the EtcdCluster is gone")
	made := f.EmptyCluster()
	made.Spec = *old.Spec.DeepCopy()
	require.NoError(t, f.Client.Create(t.Context(), made))
	require.False(t, isRepeated(), "it is another EtcdCluster")
}

// learnerMarkedDuringReview: the node of a learner is marked while a repeated review waits, for
// example for the agents of another cluster. The learner then counts as a voter, so the grant of
// the first review does not answer.
func learnerMarkedDuringReview(t *testing.T, f *storetest.Fixture) {
	extra := f.CreateNode("learner-"+string(f.ClusterID), "10.97.0.9", "4")
	f.DeleteAfterTest(extra)
	f.ChangeAgents(func() {
		f.Members = append(f.Members, v1alpha1.MemberStatus{
			ID: "4", Name: "etcd4", Learner: true, Healthy: true, PeerURLs: []string{"https://10.97.0.9:2380"},
		})
	})
	f.RunAgents()
	reviewer := newReviewer(f, 0)
	require.True(t, review(t, reviewer, f.Request(0)).Allowed)
	writeNode(t, f, 0)
	probed := []probedCluster{probedAgain(t, reviewer, f.Cluster())}
	_, isRepeated := reviewer.repeat(t.Context(), f.Request(0), probed)
	require.True(t, isRepeated)

	mark := `{"metadata":{"annotations":{"` + kuredMark + `":"2026-05-01T11:55:00Z"}},"spec":{"unschedulable":true}}`
	require.NoError(t, f.Client.Patch(t.Context(), extra, client.RawPatch(types.MergePatchType, []byte(mark))))
	_, isRepeated = reviewer.repeat(t.Context(), f.Request(0), probed)
	require.False(t, isRepeated)
}
