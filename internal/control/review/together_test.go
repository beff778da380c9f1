package review

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore/storetest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// nodesTogether decides about nodes that go at once: one of three may, two may not. Nothing is
// written, and a node whose member is unknown is a reason to refuse.
func nodesTogether(t *testing.T, f *storetest.Fixture) {
	f.ChangeAgents(func() { f.Members[2].Healthy = true })
	reviewer := newReviewer(f, 0)
	f.WriteNonce("now")
	f.PublishAll("now")
	together := func(requests ...quorum.Request) quorum.Decision {
		t.Helper()
		decision, err := reviewer.ReviewTogether(t.Context(), requests)
		require.NoError(t, err)
		return decision
	}
	one := together(f.Request(0))
	require.True(t, one.Allowed, one.Message)
	require.Equal(t, quorum.QuorumKept, one.Reason)
	two := together(f.Request(0), f.Request(1))
	require.Equal(t, quorum.QuorumWouldBeLost, two.Reason, two.Message)
	require.Contains(t, two.Message, "would lose quorum without nodes "+f.Nodes[0].Name+", "+f.Nodes[1].Name)
	require.Empty(t, f.Cluster().Spec.Grants)

	foreign := &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Name: "f0f0f0f0f0f0f0f0"}}
	require.NoError(t, f.Client.Create(t.Context(), foreign))
	f.DeleteAfterTest(foreign)
	one = together(f.Request(0))
	require.True(t, one.Allowed, "no list of a cluster without a member on the nodes: %s", one.Message)

	unknown := f.Request(0)
	unknown.Node, unknown.UID, unknown.Announced, unknown.Addresses = "other", "uid-other", nil, nil
	require.Equal(t, quorum.UnknownMember, together(unknown).Reason)
	f.SilenceAgents()
	f.WriteNonce("later")
	require.Equal(t, quorum.CannotSee, together(f.Request(0)).Reason, "no agent answers")
}
