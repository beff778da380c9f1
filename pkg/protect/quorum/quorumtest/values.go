package quorumtest

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

// ID returns the ID of member i.
func ID(i int) v1alpha1.MemberID { return v1alpha1.MemberID("abcdef123456789"[i : i+1]) }

// Node returns the name of node i.
func Node(i int) string { return fmt.Sprintf("w%d", i+1) }

// UID returns the UID of node i.
func UID(i int) types.UID { return types.UID(fmt.Sprintf("u%d", i+1)) }

// Address returns the address of node i.
func Address(i int) string { return fmt.Sprintf("10.0.0.%d", i+1) }

// IDs returns its arguments.
func IDs(members ...v1alpha1.MemberID) []v1alpha1.MemberID { return members }

// Member returns the healthy member i.
func Member(i int) v1alpha1.MemberStatus {
	return v1alpha1.MemberStatus{
		ID: ID(i), Name: fmt.Sprintf("etcd%d", i+1), Healthy: true,
		PeerURLs: []string{"https://" + Address(i) + ":2380"}, ClientURLs: []string{"https://" + Address(i) + ":2379"},
	}
}

// CopyMembers returns a deep copy.
func CopyMembers(members []v1alpha1.MemberStatus) []v1alpha1.MemberStatus {
	var all []v1alpha1.MemberStatus
	for _, m := range members {
		all = append(all, *m.DeepCopy())
	}
	return all
}

// CopyOf returns a deep copy of the cluster and nodes of a view.
func CopyOf(v quorum.View) quorum.View {
	v.Cluster, v.Nodes = v.Cluster.DeepCopy(), maps.Clone(v.Nodes)
	return v
}

// Gone is a change for State: the Node does not exist.
func Gone(n *observation.NodeState) { n.UID = "" }

// Cordoned is a change for State: no pod is scheduled to the Node.
func Cordoned(n *observation.NodeState) { n.Cordoned = true }

// Departing is a change for State: cluster-autoscaler is about to delete the Node.
func Departing(n *observation.NodeState) {
	taints := []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}}
	n.Departure = departure.OfOthers(&corev1.Node{Spec: corev1.NodeSpec{Taints: taints}})
}

// annotated returns a Node with this annotation.
func annotated(key, value string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{key: value}}}
}

// Rebooting is a change for State: kured drains and reboots the Node.
func Rebooting(n *observation.NodeState) {
	node := annotated("weave.works/kured-reboot-in-progress", "2026-05-01T11:55:00Z")
	node.Spec.Unschedulable = true
	n.Departure = departure.OfOthers(node)
}

// WithCondition returns a change for State: the Node has a condition.
func WithCondition(kind corev1.NodeConditionType, status corev1.ConditionStatus) func(*observation.NodeState) {
	condition := corev1.NodeCondition{
		Type: kind, Status: status, Reason: "KernelUpdate", LastTransitionTime: metav1.NewTime(Noon()),
	}
	return func(n *observation.NodeState) {
		node := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{condition}}}
		n.Departure, n.Notice = departure.Table{}.Of(node), departure.Table{}.Notice(node)
	}
}

// ShuttingDown is a change for State: the host of the Node has announced its shutdown.
func ShuttingDown(n *observation.NodeState) {
	value := departure.AnnounceShutdown("", departure.Host{BootID: "b1", GoingDown: true, HasEtcd: true}, Noon())
	n.Departure = departure.Table{}.Of(annotated(departure.ShutdownAnnotation, value))
}

// GrantFor returns a grant for the deletion of node i.
func GrantFor(i int) v1alpha1.Grant {
	return v1alpha1.Grant{
		NodeUID: UID(i), Node: Node(i), Members: IDs(ID(i)), Addresses: []string{Address(i)},
		Delete: &v1alpha1.Door{Time: metav1.NewTime(Noon()), User: "alice"},
	}
}

// DrainGrantFor returns a grant for a drain of node i.
func DrainGrantFor(i int) v1alpha1.Grant {
	g := GrantFor(i)
	g.Delete, g.Drain = nil, g.Delete
	return g
}

// RemovalGrantFor returns a grant for the removal of the member on node i.
func RemovalGrantFor(i int) v1alpha1.Grant {
	g := GrantFor(i)
	g.Delete, g.Remove = nil, g.Delete
	g.Remove.Version = "1"
	return g
}

// Drain returns the request for a drain of node i.
func Drain(i int) quorum.Request { return request(i, quorum.DoorDrain) }

// Removal returns the request for the removal of the member on node i.
func Removal(i int) quorum.Request { return request(i, quorum.DoorRemove) }

// Deletion returns the request for node i, which is labelled and announces its member.
func Deletion(i int) quorum.Request { return request(i, "") }

func request(i int, door quorum.DoorKind) quorum.Request {
	return quorum.Request{
		Node: Node(i), UID: UID(i), Labelled: true, Addresses: []string{Address(i), Node(i)}, Door: door,
		Announced: []evidence.MemberRef{{Cluster: ClusterID, Member: ID(i)}},
	}
}

// MarkedForRemoval is a change for State: k3s is to remove the member of the Node.
func MarkedForRemoval(n *observation.NodeState) {
	n.Departure = departure.OfOthers(annotated("etcd.k3s.cattle.io/remove", "true"))
}

// Nodes returns n Nodes with a role, each of which announces its member.
func Nodes(n int) []observation.AnnouncingNode {
	var all []observation.AnnouncingNode
	for i := range n {
		all = append(all, observation.AnnouncingNode{
			Node: Node(i), UID: UID(i), Addresses: []string{Address(i)}, HasRole: true,
			Announced: []evidence.MemberRef{{Cluster: ClusterID, Member: ID(i)}},
		})
	}
	return all
}

// WithoutRoles returns the Nodes without their roles.
func WithoutRoles(nodes []observation.AnnouncingNode) []observation.AnnouncingNode {
	nodes = slices.Clone(nodes)
	for i := range nodes {
		nodes[i].HasRole = false
	}
	return nodes
}

// Intruder returns the Node and the observation of a worker that claims member i and publishes
// its own list.
func Intruder(i int, members ...v1alpha1.MemberStatus) (observation.AnnouncingNode, v1alpha1.Observation) {
	node := observation.AnnouncingNode{
		Node: "worker", UID: "uw", Addresses: []string{"10.0.0.99"},
		Announced: []evidence.MemberRef{{Cluster: ClusterID, Member: ID(i)}},
	}
	return node, v1alpha1.Observation{
		Node: "worker", NodeUID: "uw", Nonce: Nonce, LocalMember: ID(i), Linearizable: true, Members: members,
	}
}

// RequireRefused requires that Decide refuses because of quorum, with this text in the message.
func RequireRefused(t *testing.T, c *Cluster, r quorum.Request, text string) {
	t.Helper()
	v := quorum.Decide(c.View, r)
	require.False(t, v.Allowed, words.Message(v))
	require.Equal(t, quorum.QuorumWouldBeLost, v.Reason)
	require.Contains(t, words.Message(v), text)
}

// RequireAllowed requires that Decide allows.
func RequireAllowed(t *testing.T, c *Cluster, r quorum.Request) {
	t.Helper()
	v := quorum.Decide(c.View, r)
	require.True(t, v.Allowed, words.Message(v))
}
