package leader

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore/storetest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// registerAgain creates the i-th Node again with the same name and address, and another
// UID.
func (h *leaderHarness) registerAgain(i int) {
	h.t.Helper()
	old := h.Nodes[i]
	h.Nodes[i] = h.CreateNode(old.Name, old.Status.Addresses[0].Address, h.MemberID(i))
	h.SetRole(h.Nodes[i], true)
	require.NotEqual(h.t, old.UID, h.Nodes[i].UID)
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
