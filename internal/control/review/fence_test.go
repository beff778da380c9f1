package review

import (
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/control/clusterstore/storetest"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// secondReview reviews one deletion again, as the API server does after a write to the Node. The
// second review is decided, and if it is refused, the grant of the first one blocks no other node.
func secondReview(t *testing.T, f *storetest.Fixture) {
	f.ChangeAgents(func() { f.Members[2].Healthy = true })
	f.RunAgents()
	reviewer, replica := newReviewer(f, 0), newReviewer(f, 0)
	require.True(t, review(t, reviewer, f.Request(0)).Allowed)
	decision := review(t, replica, f.Request(1))
	require.Equal(t, quorum.QuorumWouldBeLost, decision.Reason, "the first DELETE may be carried out")

	// A member elsewhere dies, and the Node is written.
	f.ChangeAgents(func() { f.Members[1].Healthy = false })
	writeNode(t, f)
	for _, r := range []testReviewer{reviewer, replica} {
		decision = review(t, r, f.Request(0))
		require.Equal(t, quorum.QuorumWouldBeLost, decision.Reason, decision.Message)
	}
	decision = review(t, replica, f.Request(1))
	require.True(t, decision.Allowed, decision.Message)
}

// writeNode writes the first Node, so that the API server reviews its deletion again.
func writeNode(t *testing.T, f *storetest.Fixture) {
	t.Helper()
	f.PatchNode(0, `{"metadata":{"annotations":{"example.com/written":"meanwhile"}}}`)
	require.NoError(t, f.Client.Get(t.Context(), client.ObjectKeyFromObject(f.Nodes[0]), f.Nodes[0]))
}

// TestRequireNode: a Node that cannot be read, for whatever reason, is not said to be gone.
func TestRequireNode(t *testing.T) {
	for name, c := range map[string]struct {
		node observation.NodeState
		want string
	}{
		"its Node":    {observation.NodeState{Known: true, UID: "u1"}, ""},
		"unread Node": {observation.NodeState{}, `finding node "n1": it cannot be read`},
		"other Node":  {observation.NodeState{Known: true, UID: "u2"}, `finding node "n1": there is none with UID "u1"`},
		"no Node":     {observation.NodeState{Known: true}, `finding node "n1": there is none with UID "u1"`},
	} {
		t.Run(name, func(t *testing.T) {
			err := requireNode(c.node, quorum.Request{Node: "n1", UID: "u1"})
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.EqualError(t, err, c.want)
		})
	}
}
