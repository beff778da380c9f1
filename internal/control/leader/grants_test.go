package leader

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore/storetest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

func registeredAgain(t *testing.T, f *storetest.Fixture) {
	f.RunAgents()
	h := newHarness(t, f)
	h.bindAll()
	old := f.Nodes[0].UID
	f.DeleteNode(0)
	h.registerAgain(0)
	c := h.reconcileUntil("the new binding",
		func(c *v1alpha1.EtcdCluster) bool { return bindingOf(c, f.MemberID(0)) == f.Nodes[0].UID })
	require.NotNil(t, storetest.GrantFor(c, old), "the tombstone comes before the new binding and stays")
	decision := h.review(t, f.Request(1))
	require.False(t, decision.Allowed, "the machine may still be terminated")

	h.probeTimes(6, 90*time.Second)
	f.ChangeAgents(func() { f.Silent[f.Nodes[0].Name] = true })
	h.probeTimes(1, 30*time.Second) // the agent is late once
	f.ChangeAgents(func() { f.Silent[f.Nodes[0].Name] = false })
	h.probeTimes(1, 30*time.Second)
	h.probeTimes(5, 96*time.Second)
	require.NotNil(t, storetest.GrantFor(f.Cluster(), old), "eighteen minutes are not enough")
	h.probeUntilEnd(old)
	require.Contains(t, h.events(), "Normal Settled")
	decision = h.review(t, f.Request(1))
	require.True(t, decision.Allowed, decision.Message)
}

// registerAgain creates the i-th Node again with the same name and address, and another
// UID.
func (h *leaderHarness) registerAgain(i int) {
	h.t.Helper()
	old := h.Nodes[i]
	h.Nodes[i] = h.CreateNode(old.Name, old.Status.Addresses[0].Address, h.MemberID(i))
	h.SetRole(h.Nodes[i], true)
	require.NotEqual(h.t, old.UID, h.Nodes[i].UID)
}

// machineJoinedAgain repeats what k3s and RKE2 do: the Node is deleted, its member is removed, and
// the machine joins again under another member ID and with another Node UID.
func machineJoinedAgain(t *testing.T, f *storetest.Fixture) {
	info := client.RawPatch(types.MergePatchType, []byte(`{"status":{"nodeInfo":{"machineID":"m0","systemUUID":"S0"}}}`))
	require.NoError(t, f.Client.Status().Patch(t.Context(), f.Nodes[0].DeepCopy(), info))
	f.RunAgents()
	h := newHarness(t, f)
	h.bindAll()
	require.True(t, h.review(t, f.Request(0)).Allowed)
	old, next := f.Nodes[0], f.MemberID(3)
	g := storetest.GrantFor(f.Cluster(), old.UID)
	require.Equal(t, []string{"m0", "s0"}, []string{g.MachineID, g.SystemUUID})
	require.Equal(t, []string{old.Status.Addresses[0].Address}, g.Addresses)
	f.DeleteNode(0)
	f.ChangeAgents(func() {
		f.Members[0].ID, f.Members[0].Name, f.Local[old.Name] = next, "etcd0-again", next
	})
	refused := func(why string) {
		t.Helper()
		decision := h.review(t, f.Request(1))
		require.False(t, decision.Allowed, why)
		require.Contains(t, decision.Message, "it joined again on a machine that may still be removed: the deletion of the "+
			"machine's earlier node "+old.Name+" by alice was allowed at")
	}
	h.reconcileUntil("the removed binding", func(c *v1alpha1.EtcdCluster) bool { return len(c.Spec.Members) == 2 })
	refused("no Node has registered yet")
	f.Nodes[0] = f.CreateNode(old.Name, old.Status.Addresses[0].Address, next)
	f.SetRole(f.Nodes[0], true)
	h.reconcileUntil("the new binding",
		func(c *v1alpha1.EtcdCluster) bool { return bindingOf(c, next) == f.Nodes[0].UID })
	refused("the machine may still be terminated")
	h.probeTimes(12, 95*time.Second)
	refused("nineteen minutes are not enough")
	h.probeUntilEnd(old.UID)
	decision := h.review(t, f.Request(1))
	require.True(t, decision.Allowed, decision.Message)
}

// joinedUnderOtherName lets the machine of a deleted Node join again under another name and at
// another address, without its agent. Its provider ID shows that the machine may still be removed.
func joinedUnderOtherName(t *testing.T, f *storetest.Fixture) {
	const again = `{"metadata":{"annotations":{"holdfast.dev/etcd":null}},"spec":{"providerID":"cloud:///0"}}`
	f.PatchNode(0, `{"spec":{"providerID":"cloud:///0"}}`)
	f.RunAgents()
	h := newHarness(t, f)
	h.bindAll()
	require.True(t, h.review(t, f.Request(0)).Allowed)
	old, next := f.Nodes[0], f.MemberID(3)
	f.DeleteNode(0)
	f.Nodes[0] = f.CreateNode("again-"+old.Name, "10.9.9.9", next)
	f.PatchNode(0, again)
	f.ChangeAgents(func() {
		f.Members[0] = v1alpha1.MemberStatus{
			ID: next, Name: "again", Healthy: true, PeerURLs: []string{"https://10.9.9.9:2380"},
		}
	})
	h.reconcileUntil("the removed binding", func(c *v1alpha1.EtcdCluster) bool { return len(c.Spec.Members) == 2 })
	h.probeTimes(25, time.Minute)
	require.NotNil(t, storetest.GrantFor(f.Cluster(), old.UID), "the new member is on no Node that proves it")
	decision := h.review(t, f.Request(1))
	require.False(t, decision.Allowed)
	require.Contains(t, decision.Message, "it joined again on a machine that may still be removed")
}

// heldByFinalizer keeps the Node for half an hour after its deletion was allowed. Its member has
// left by then. The machine joins again only when the Node is gone.
func heldByFinalizer(t *testing.T, f *storetest.Fixture) {
	f.RunAgents()
	h := newHarness(t, f)
	h.bindAll()
	f.PatchNode(0, `{"metadata":{"finalizers":["example.com/held"]}}`)
	require.True(t, h.review(t, f.Request(0)).Allowed)
	old, next := f.Nodes[0], f.MemberID(3)
	f.DeleteNode(0)
	removed := f.Members[0]
	f.ChangeAgents(func() { f.Members, f.Silent[old.Name] = f.Members[1:], true })
	h.probeTimes(2, 15*time.Minute)
	require.True(t, h.hasGrant(0), "the Node still exists")
	f.PatchNode(0, `{"metadata":{"finalizers":null}}`)
	h.probeTimes(4, 20*time.Second)
	require.True(t, h.hasGrant(0), "the machine may join again since the Node is gone")
	f.ChangeAgents(func() {
		removed.ID, removed.Name, f.Local[old.Name], f.Silent[old.Name] = next, "etcd0-again", next, false
		f.Members = append(f.Members, removed)
	})
	f.Nodes[0] = f.CreateNode(old.Name, old.Status.Addresses[0].Address, next)
	f.SetRole(f.Nodes[0], true)
	h.reconcileUntil("the new binding",
		func(c *v1alpha1.EtcdCluster) bool { return bindingOf(c, next) == f.Nodes[0].UID })
	decision := h.review(t, f.Request(1))
	require.False(t, decision.Allowed, "the machine may still be terminated")
	require.Contains(t, decision.Message, "it joined again on a machine that may still be removed")
	h.probeTimes(12, 95*time.Second)
	require.NotNil(t, storetest.GrantFor(f.Cluster(), old.UID), "nineteen minutes are not enough")
	h.probeUntilEnd(old.UID)
	decision = h.review(t, f.Request(1))
	require.True(t, decision.Allowed, decision.Message)
}

func survivingNode(t *testing.T, f *storetest.Fixture) {
	f.RunAgents()
	h := newHarness(t, f)
	h.bindAll()
	h.grant(0, 4*time.Minute)
	h.probeTimes(2, 20*time.Second)
	require.True(t, h.hasGrant(0), "a DELETE may still be in progress")
	h.probeTimes(4, time.Minute)
	require.True(t, h.hasGrant(0), "nine minutes have passed by the writer's clock, but not five by the leader's")
	// Five minutes and five seconds: the first probe that finds the reason.
	h.probeTimes(1, 25*time.Second)
	require.True(t, h.hasGrant(0))
	h.grant(0, 0) // the deletion is allowed again
	h.probeTimes(3, 30*time.Second)
	require.True(t, h.hasGrant(0), "a renewed grant starts again")
	h.probeUntilEnd(f.Nodes[0].UID)
}

// machineEnding keeps a grant as long as a Machine of its Node is being deleted.
func machineEnding(t *testing.T, f *storetest.Fixture) {
	f.RunAgents()
	var isEnding atomic.Bool
	isEnding.Store(true)
	h := newHarness(t, f, func(o *Options) {
		o.MachineEnding = func(_ context.Context, g v1alpha1.Grant) string {
			if isEnding.Load() && g.Node == f.Nodes[0].Name {
				return "Machine default/m of node " + g.Node + " is being deleted"
			}
			return ""
		}
	})
	h.bindAll()
	h.grant(0, 0)
	h.grant(1, 0)
	h.probeTimes(5, 3*time.Minute)
	require.True(t, h.hasGrant(0), "the machine is about to end")
	require.False(t, h.hasGrant(1), "the Node still exists, and no machine ends")
	isEnding.Store(false)
	h.probeUntilEnd(f.Nodes[0].UID)
}

func settledByHand(t *testing.T, f *storetest.Fixture) {
	f.RunAgents()
	h := newHarness(t, f)
	h.bindAll()
	h.grant(0, 0)
	h.grant(1, 0)
	settle := func(uid types.UID) {
		body := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, quorum.ResolveAnnotation, uid)
		require.NoError(t, f.Client.Patch(t.Context(), f.EmptyCluster(), client.RawPatch(types.MergePatchType, []byte(body))))
		h.reconcileUntil("the removed annotation",
			func(c *v1alpha1.EtcdCluster) bool { return c.Annotations[quorum.ResolveAnnotation] == "" })
	}
	settle("unknown")
	require.True(t, h.hasGrant(0))
	require.Contains(t, h.events(), "Normal NoSuchGrant")
	settle(f.Nodes[0].UID)
	require.True(t, h.hasGrant(0), "its deletion may be in progress")
	require.Contains(t, h.events(), "Normal GrantTooYoung")
	h.advance(quorum.ResolveByHandAfter)
	settle(f.Nodes[0].UID)
	require.False(t, h.hasGrant(0))
	require.True(t, h.hasGrant(1), "only the named grant ends")
	require.Contains(t, h.events(), "Normal Settled")
	require.Equal(t, int64(3), f.Cluster().Spec.Ledger)

	// If the Node is gone, the binding ends with the grant. Otherwise the next round would
	// write a tombstone.
	f.DeleteNode(1)
	settle(f.Nodes[1].UID)
	h.probeTimes(2, time.Minute)
	c := f.Cluster()
	require.Empty(t, c.Spec.Grants)
	require.Empty(t, bindingOf(c, f.MemberID(1)))
}
