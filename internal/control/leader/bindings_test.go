package leader

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore/storetest"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

func falseClaim(t *testing.T, f *storetest.Fixture) {
	f.RunAgents()
	h := newHarness(t, f)
	before := h.bindAll()
	worker := f.CreateNode("worker-"+string(f.ClusterID), "10.99.0.1", f.MemberID(0))
	liar := f.CreateNode("liar-"+string(f.ClusterID), "10.99.0.2", "beef")
	f.DeleteAfterTest(worker)
	f.DeleteAfterTest(liar)
	h.reconcileUntil("a refused claim", func(*v1alpha1.EtcdCluster) bool {
		return strings.Contains(h.log.String(), "refused a node's claim to a member")
	})
	h.probeTimes(2, 2*time.Minute)
	require.Equal(t, before.Spec.Members, f.Cluster().Spec.Members)
	c := h.reconcileUntil("the condition", func(c *v1alpha1.EtcdCluster) bool {
		return meta.IsStatusConditionFalse(c.Status.Conditions, quorum.BoundCondition)
	})
	require.Contains(t, meta.FindStatusCondition(c.Status.Conditions, quorum.BoundCondition).Message,
		"the claim of node "+worker.Name+" to member "+string(f.MemberID(0)))
}

func tombstone(t *testing.T, f *storetest.Fixture) {
	f.RunAgents()
	h := newHarness(t, f)
	h.bindAll()
	f.DeleteNode(0)
	c := h.reconcileUntil("a tombstone", func(c *v1alpha1.EtcdCluster) bool { return len(c.Spec.Grants) == 1 })
	g := storetest.GrantFor(c, f.Nodes[0].UID)
	require.NotNil(t, g)
	require.Equal(t, []v1alpha1.MemberID{f.MemberID(0)}, g.Members)
	require.WithinDuration(t, time.Now(), g.Gone.Time.Time, time.Minute)
	require.Equal(t, f.Nodes[0].UID, bindingOf(c, f.MemberID(0)), "the binding of a tombstone must stay")
	require.Contains(t, h.events(), "Warning Tombstone")
	require.False(t, h.review(t, f.Request(1)).Allowed, "m0 still answers, but its node is gone")
}

// roleGivenAndTaken has three members on Nodes without a role, of which one agent answers. Then its
// Node gets a role, and loses it.
func roleGivenAndTaken(t *testing.T, f *storetest.Fixture) {
	for _, n := range f.Nodes {
		f.SetRole(n, false)
	}
	f.Silent[f.Nodes[1].Name], f.Silent[f.Nodes[2].Name] = true, true
	f.RunAgents()
	h := newHarness(t, f)
	message := func(c *v1alpha1.EtcdCluster) string {
		if roles := meta.FindStatusCondition(c.Status.Conditions, rolesCondition); roles != nil {
			return string(roles.Status) + ": " + roles.Message
		}
		return ""
	}
	c := h.reconcileUntil("the condition", func(c *v1alpha1.EtcdCluster) bool { return message(c) != "" })
	require.Contains(t, message(c), "False: no Node that announces the etcd cluster has a role")
	require.Contains(t, message(c), observation.RoleCommand)
	require.Empty(t, c.Spec.Members)

	f.SetRole(f.Nodes[0], true)
	c = h.reconcileUntil("bindings by one word", func(c *v1alpha1.EtcdCluster) bool {
		return len(c.Spec.Members) == 3 && strings.HasPrefix(message(c), "True")
	})
	require.Equal(t, v1alpha1.BasisRole, c.Spec.Members[0].Basis)
	require.Equal(t, v1alpha1.BasisClaim, c.Spec.Members[1].Basis)
	require.True(t, h.review(t, f.Request(1)).Allowed)

	f.SetRole(f.Nodes[0], false)
	decision := h.review(t, f.Request(1))
	require.Equal(t, quorum.CannotSee, decision.Reason, "it is silent at once")
	require.Contains(t, decision.Message, observation.RoleCommand)
	c = h.reconcileUntil("no observer", func(c *v1alpha1.EtcdCluster) bool {
		return c.Spec.Members[0].Basis == v1alpha1.BasisClaim
	})
	require.Equal(t, v1alpha1.NodesWithRole, c.Spec.Observers)
}

// distinctServers has a fourth member on a host that is no Node.
func distinctServers(t *testing.T, f *storetest.Fixture) {
	external := v1alpha1.MemberStatus{
		ID: "beef", Name: "external", Healthy: true, PeerURLs: []string{"https://203.0.113.9:2380"},
	}
	f.Members = append(f.Members, external)
	f.RunAgents()
	h := newHarness(t, f)
	h.bindAll()
	c := h.reconcileUntil("the records", func(c *v1alpha1.EtcdCluster) bool { return len(c.Spec.DistinctServers) == 3 })
	require.Equal(t, []v1alpha1.MemberID{"beef"}, c.Spec.DistinctServers[0].Others)

	f.ChangeAgents(func() { f.Members, f.Silent[f.Nodes[0].Name] = f.Members[1:], true })
	require.True(t, h.review(t, f.Request(0)).Allowed, "the host of m0 did not become the external member")
	f.ChangeAgents(func() { f.Members = f.Members[:2] })
	h.probeTimes(1, 2*time.Minute)
	h.reconcileUntil("no records", func(c *v1alpha1.EtcdCluster) bool { return len(c.Spec.DistinctServers) == 0 })
}

func retiredCluster(t *testing.T, f *storetest.Fixture) {
	h := newHarness(t, f) // without agents
	made := h.reconcileUntil("an EtcdCluster", func(c *v1alpha1.EtcdCluster) bool { return c.UID != "" })
	q := f.Request(0)
	refused := h.review(t, q)
	require.Contains(t, refused.Message,
		"kubectl annotate node "+q.Node+" holdfast.dev/etcd-, then kubectl delete etcdcluster "+made.Name)
	var announcing []*corev1.Node
	for _, node := range f.Nodes {
		announcing = append(announcing, node.DeepCopy())
		require.NoError(t, f.Client.Patch(t.Context(), node,
			client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null}}}`,
				observation.AnnouncementAnnotation))))
	}
	require.NoError(t, f.Client.Delete(t.Context(), made))
	// A cache that still contains the announcements must not create the EtcdCluster again.
	require.NoError(t, h.leader.createClusters(t.Context(), nil, h.leader.indexNodes(announcing)))
	require.True(t, apierrors.IsNotFound(f.Client.Get(t.Context(), client.ObjectKeyFromObject(made), f.EmptyCluster())))
	q.Announced = nil
	require.Eventually(t, func() bool {
		err := h.reconcileAll()
		if err != nil {
			return false // the cache still has the object, and writing the nonce fails
		}
		refused, err = h.reviewer.Review(t.Context(), q)
		return err == nil && refused.Reason == quorum.UnknownMember
	}, storetest.WaitTimeout, storetest.PollInterval)
	require.Contains(t, refused.Message, "kubectl annotate --overwrite node "+q.Node+" holdfast.dev/break-glass=")
	require.NoError(t, h.reconcileAll())
	require.True(t, apierrors.IsNotFound(f.Client.Get(t.Context(), client.ObjectKeyFromObject(made), f.EmptyCluster())),
		"the EtcdCluster must not be created again")
	q.Labelled = false
	decision, err := h.reviewer.ReviewUnlabelled(t.Context(), q)
	require.NoError(t, err)
	require.True(t, decision.Allowed, decision.Message)
}

// TestTombstoneMessage checks the text about a deletion that no review saw.
func TestTombstoneMessage(t *testing.T) {
	g := v1alpha1.Grant{Node: "w1", NodeUID: "u1", Members: []v1alpha1.MemberID{"a"}}
	require.Equal(t, "node w1 is gone: its deletion was not reviewed, for example because the webhook did not answer; "+
		"the audit log of the API server names the users (verbs patch and delete, nodes, w1, UID u1); "+
		"a count as lost until they are removed from etcd or confirmed healthy on a new node", tombstoneMessage(g))
}
