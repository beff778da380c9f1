package review

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/control/clusterstore"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore/storetest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// removalOfMember removes the member of one of three nodes as k3s does. The member counts as lost
// by its grant, and then by the annotation, until that is cancelled or k3s has removed it.
func removalOfMember(t *testing.T, f *storetest.Fixture) {
	f.ChangeAgents(func() { f.Members[2].Healthy = true })
	f.RunAgents()
	reviewer := newReviewer(f, 0)
	remove := func(i int) quorum.Request {
		req := f.Request(i)
		req.Version, req.Door, req.User = "", quorum.DoorRemove, "alice"
		return req
	}
	requireRefused := func(text string) {
		t.Helper()
		for _, req := range []quorum.Request{remove(1), f.Request(1)} {
			req.DryRun = true
			decision := review(t, reviewer, req)
			require.Equal(t, quorum.QuorumWouldBeLost, decision.Reason, decision.Message)
			require.Contains(t, decision.Message, text)
		}
	}
	decision := review(t, reviewer, remove(0))
	require.True(t, decision.Allowed, decision.Message)
	require.Len(t, f.Cluster().Spec.Grants, 1)
	grant := f.Cluster().Spec.Grants[0]
	require.NotNil(t, grant.Remove)
	require.Equal(t, []quorum.OpenDoor{{Kind: quorum.DoorRemove, Door: *grant.Remove}}, quorum.Doors(grant))
	requireRefused("the removal of the member of its node " + f.Nodes[0].Name + " by alice was allowed at ")

	const marker, done = "etcd.k3s.cattle.io/remove", "etcd.k3s.cattle.io/removed-node-name"
	writeNode(t, f)
	requireRefused("the removal of the member of its node")
	f.PatchNode(0, `{"metadata":{"annotations":{"`+marker+`":"true"}}}`)
	_, err := reviewer.store.Patch(t.Context(), f.Cluster(), clusterstore.ReplaceGrants(f.Cluster(), nil))
	require.NoError(t, err)
	requireRefused("its node " + f.Nodes[0].Name + " is marked for the removal of its etcd member (annotation " + marker)

	// k3s reports that it has removed the member. Until the lists show that, it counts by its proofs.
	f.PatchNode(0, `{"metadata":{"annotations":{"`+done+`":"m"}}}`)
	req := remove(1)
	req.DryRun = true
	require.True(t, review(t, reviewer, req).Allowed)
	f.PatchNode(0, `{"metadata":{"annotations":{"`+marker+`":"false","`+done+`":null}}}`)
	require.True(t, review(t, reviewer, req).Allowed)
}
