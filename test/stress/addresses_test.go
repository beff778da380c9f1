package stress

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/internal/testenv/etcd"
)

// TestMembersByAddress tests the rules that find the Node of a member only by its address. It needs
// addresses that identify hosts.
func TestMembersByAddress(t *testing.T) {
	s := newEnvironment(t)
	if !s.Net.IdentifiesHosts {
		t.Skipf("SKIPPED: the rules that find members by address are not tested. The nodes have addresses in %s. "+
			"Other addresses need root, or the capability NET_ADMIN", s.Net)
	}
	s.startEtcd(t, "three", false, 1, 2, 3)
	s.startHoldfast(t, "3")
	c := s.clusters[0]

	t.Run("unbound member", func(t *testing.T) {
		// The agent of etcd-4 has not started yet, so nothing binds the member to its Node.
		s.nodes["etcd-4"] = 4
		_, err := s.register(t.Context(), "etcd-4")
		require.NoError(t, err)
		m := s.addVoter(t, c, "etcd-4")
		taint := `{"spec":{"taints":[{"key":"ToBeDeletedByClusterAutoscaler","effect":"NoSchedule"}]}}`
		_, err = s.client.CoreV1().Nodes().Patch(t.Context(), "etcd-4", types.MergePatchType, []byte(taint),
			metav1.PatchOptions{})
		require.NoError(t, err)
		err = s.tryDelete(t.Context(), "etcd-1")
		require.ErrorContains(t, err, "its node etcd-4 is about to be deleted")
		require.ErrorContains(t, err, m.HexID())
		lost, err := c.loseMember("etcd-4")
		require.NoError(t, err)
		require.NoError(t, c.removeMember(t.Context(), lost))
	})

	t.Run("joined again", func(t *testing.T) {
		// The agent of etcd-3 does not announce the new ID, so only the address shows where it is.
		require.NoError(t, s.Agent("etcd-3").Pause())
		m := s.joinAgain(t, c, "etcd-3")
		require.NoError(t, s.WaitUntil(t.Context(), "the deletion of etcd-3", func(ctx context.Context) error {
			return s.tryDelete(ctx, "etcd-3")
		}))
		granted, err := s.API.Kubectl(t.Context(), "get", "etcdclusters", "-o", "jsonpath={.items[*].spec.grants[*].members}")
		require.NoError(t, err)
		require.Contains(t, granted, m.HexID(), "the grant must name the member that is at the address of etcd-3")
		err = s.tryDelete(t.Context(), "etcd-1")
		require.ErrorContains(t, err, "("+m.HexID()+"): counts as lost: the deletion of its node etcd-3")

		_, err = c.loseMember("etcd-3")
		require.NoError(t, err)
		require.NoError(t, c.checkRead(t.Context()))
	})
}

// tryDelete deletes a node, and returns the refusal.
func (s *stressTest) tryDelete(ctx context.Context, node string) error {
	return s.client.CoreV1().Nodes().Delete(ctx, node, metav1.DeleteOptions{})
}

// addVoter adds a member on the machine of a node, and promotes it.
func (s *stressTest) addVoter(t *testing.T, c *stressCluster, node string) *etcd.Member {
	t.Helper()
	require.NoError(t, c.addLearner(t.Context(), node))
	m := c.member(node)
	require.NoError(t, c.promoteMember(t.Context(), m))
	return m
}

// joinAgain removes the member of a node and its data, and lets the same machine join again: at its
// old address, with a new member ID.
func (s *stressTest) joinAgain(t *testing.T, c *stressCluster, node string) *etcd.Member {
	t.Helper()
	old, err := c.loseMember(node)
	require.NoError(t, err)
	require.NoError(t, c.removeMember(t.Context(), old))
	require.NoError(t, os.RemoveAll(old.DataDir()))
	return s.addVoter(t, c, node)
}
