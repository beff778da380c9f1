package review

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/control/clusterstore/storetest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// drainAndDeletion drains a node, deletes it, and drains it again, as Karpenter does. Each door
// stays open: what it allowed may still be in progress.
func drainAndDeletion(t *testing.T, f *storetest.Fixture) {
	f.RunAgents()
	reviewer := newReviewer(f, 0)
	f.Cordon(0, true)
	require.True(t, review(t, reviewer, f.Drain(0)).Allowed)
	drained := *storetest.GrantFor(f.Cluster(), f.Nodes[0].UID)

	writeNode(t, f)
	deletion := review(t, reviewer, f.Request(0))
	require.True(t, deletion.Allowed, deletion.Message)
	require.Equal(t, quorum.QuorumKept, deletion.Reason, "the drain does not answer for the deletion")
	require.Len(t, f.Cluster().Spec.Grants, 1)
	deleted := *storetest.GrantFor(f.Cluster(), f.Nodes[0].UID)
	require.Equal(t, drained.Drain, deleted.Drain)
	require.NotEmpty(t, deleted.Delete.Version)

	drain := f.Drain(0)
	drain.User = "bob"
	require.True(t, review(t, reviewer, drain).Allowed)
	again := *storetest.GrantFor(f.Cluster(), f.Nodes[0].UID)
	require.Equal(t, "bob", again.Drain.User)
	again.Drain = deleted.Drain
	require.Equal(t, deleted, again)
}

// drainOfHeldNode drains a node that the cordon of a hold keeps closed. The drain is in the record
// of the hold before it is allowed, also if the agent writes the Node meanwhile. A node that the
// agent has opened meanwhile is not drained.
func drainOfHeldNode(t *testing.T, f *storetest.Fixture) {
	f.RunAgents()
	reviewer := newReviewer(f, 0)
	hold := func(record readiness.Record) {
		f.PatchNode(0, fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, readiness.HoldAnnotation, record.Format()))
	}
	recorded := func() readiness.Record {
		node := &corev1.Node{}
		require.NoError(t, f.Client.Get(t.Context(), client.ObjectKeyFromObject(f.Nodes[0]), node))
		record, err := readiness.ParseRecord(node.Annotations[readiness.HoldAnnotation])
		require.NoError(t, err)
		return record
	}
	held := readiness.Record{State: readiness.Held, BootID: "b1", Reason: readiness.Rebooted, Marks: []string{"m"}}
	hold(held)
	f.Cordon(0, true)
	require.True(t, review(t, reviewer, f.Drain(0)).Allowed)
	drained := recorded()
	require.NotNil(t, drained.Drained)
	drained.Drained = nil
	require.Equal(t, held, drained)

	hold(held)
	dryRun := f.Drain(0)
	dryRun.DryRun = true
	require.True(t, review(t, reviewer, dryRun).Allowed)
	require.Nil(t, recorded().Drained)

	stale := &corev1.Node{}
	require.NoError(t, f.Client.Get(t.Context(), client.ObjectKeyFromObject(f.Nodes[0]), stale))
	hold(held)
	require.NoError(t, reviewer.store.RecordDrain(t.Context(), stale, time.Now()), "the agent has written the Node")
	require.NotNil(t, recorded().Drained)
	f.Cordon(0, false)
	hold(readiness.Record{State: readiness.Released, BootID: "b1", Reason: readiness.NetworkReady})
	err := reviewer.store.RecordDrain(t.Context(), stale, time.Now())
	require.ErrorContains(t, err, "it is open for pods now")
	require.Nil(t, recorded().Drained)
}

func drainOfOpenNode(t *testing.T, f *storetest.Fixture) {
	f.RunAgents()
	reviewer := newReviewer(f, longWait)
	for _, isDryRun := range []bool{false, true} {
		req := f.Drain(0)
		req.DryRun = isDryRun
		decision := review(t, reviewer, req)
		require.False(t, decision.Allowed)
		require.Equal(t, quorum.NotDraining, decision.Reason)
	}
	c := f.Cluster()
	require.Empty(t, c.Spec.Grants)
	require.Empty(t, c.Spec.Nonce, "no probe was requested")

	// The node is opened while its drain waits for answers.
	f.SilenceAgents()
	f.Cordon(0, true)
	var g errgroup.Group
	g.Go(func() error {
		require.Equal(t, quorum.NotDraining, review(t, reviewer, f.Drain(0)).Reason)
		return nil
	})
	require.Eventually(t, func() bool { return f.Cluster().Spec.Nonce != "" },
		storetest.WaitTimeout, storetest.PollInterval)
	f.Cordon(0, false)
	f.ChangeAgents(func() { clear(f.Silent) })
	require.NoError(t, g.Wait())
	require.Empty(t, f.Cluster().Spec.Grants)
}

func breakGlassDrain(t *testing.T, f *storetest.Fixture) {
	f.SilenceAgents()
	reviewer := newReviewer(f, time.Second)
	req := f.Drain(0)
	req.BreakGlass = &quorum.BreakGlass{UID: req.UID, Until: time.Now().Add(time.Hour), Reason: "the host burns"}
	decision := review(t, reviewer, req)
	require.True(t, decision.Allowed)
	require.Equal(t, quorum.BreakGlassUsed, decision.Reason)
	require.Contains(t, decision.Warnings[0], "is drained without a check")
	grant := storetest.GrantFor(f.Cluster(), f.Nodes[0].UID)
	require.NotNil(t, grant)
	require.True(t, quorum.IsDrainOnly(*grant))
	require.True(t, grant.Drain.BreakGlass)
}

// drainWithoutEtcd: the guard pod of a node that no longer has etcd keeps no drain from going on.
func drainWithoutEtcd(t *testing.T, f *storetest.Fixture) {
	node := f.CreateNode("plain-"+string(f.ClusterID), "10.98.0.1", "9")
	f.DeleteAfterTest(node)
	f.Nodes = append(f.Nodes, node)
	f.Cordon(3, true)
	req := quorum.Request{
		Node: node.Name, UID: node.UID, Addresses: []string{"10.98.0.1"}, Door: quorum.DoorDrain, User: "alice",
	}
	decision := review(t, newReviewer(f, 0), req)
	require.True(t, decision.Allowed)
	require.Equal(t, quorum.NothingToProtect, decision.Reason)
	require.Empty(t, f.Cluster().Spec.Grants)

	req.Labelled = true
	decision = review(t, newReviewer(f, 0), req)
	require.Equal(t, quorum.UnknownMember, decision.Reason)
}
