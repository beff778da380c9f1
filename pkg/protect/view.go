package protect

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// NodeState is a Node as a live, uncached read found it.
type NodeState struct {
	// Known is false if the read failed: then nothing else here means anything, and what was on the Node counts as lost.
	Known bool
	// UID is empty if there is no Node of that name.
	UID types.UID
	// Deleting says that it has a deletion timestamp.
	Deleting bool
	// DeletionTaint is the key of an autoscaler's taint that announces its deletion, empty if there is none.
	DeletionTaint string
}

// View is one etcd cluster as it stands while a deletion is being judged. Bindings, grants and ledger are those of one
// version of the object.
type View struct {
	Cluster *v1alpha1.EtcdCluster
	// Asked are the nonces of this question: the one that was written for it, and those seen in the object at later
	// versions. An observation that carries another one is from before the question.
	Asked []string
	// Nodes are the live states, by name, of the Nodes that members are bound to or placed at, and of those that grants name.
	Nodes map[string]NodeState
	// Placed is what Placed returns: where members are that are bound to no Node.
	Placed []v1alpha1.Binding
	// MinRemainingTolerance is how many more voters must be expendable after the deletion (default 0).
	MinRemainingTolerance int
}

// Request is the deletion of one Node.
type Request struct {
	Node string
	UID  types.UID
	// Labelled says that the Node carries EtcdMemberLabel.
	Labelled bool
	// Announced are the members that the Node's agent announced on it.
	Announced []MemberRef
	// Unverified is where on the node there are servers that have never said who they are, by the Node's agent.
	Unverified []string
	// Addresses are the Node's status.addresses, all of them.
	Addresses []string
}

// Reason is why a Verdict is what it is: a closed set, fit for a metric's label.
type Reason string

// The reasons of verdicts.
const (
	// NothingToProtect: no member of this cluster is on the node (any more).
	NothingToProtect Reason = "NothingToProtect"
	// QuorumKept: enough voters are proven healthy elsewhere.
	QuorumKept Reason = "QuorumKept"
	// QuorumWouldBeLost: too few voters are proven healthy elsewhere.
	QuorumWouldBeLost Reason = "QuorumWouldBeLost"
	// CannotSee: no bound observer answered with a member list confirmed by a quorum.
	CannotSee Reason = "CannotSee"
	// UnknownMember: the node is marked as holding a member, and nobody can say which.
	UnknownMember Reason = "UnknownMember"
	// Deleting: the Node is being deleted already.
	Deleting Reason = "Deleting"
	// BreakGlassUsed: a user with the right to do so set the verdict aside.
	BreakGlassUsed Reason = "BreakGlass"
)

// Verdict is the answer for one cluster. The zero value refuses.
type Verdict struct {
	Allowed bool
	Reason  Reason
	Cluster v1alpha1.ClusterID
	// Members are the members on the node, the ones that a grant must name. Empty: no grant is needed.
	Members []v1alpha1.MemberID
	// Voters, Healthy and Quorum are the arithmetic: the current voters, those proven healthy that are neither on the
	// node nor already lost, and ⌊Voters/2⌋+1. Zero if nobody could see.
	Voters, Healthy, Quorum int
	// Final says that no further observation can change the verdict.
	Final bool
	// Message explains, with the next step if it refuses.
	Message string
	// Warning is what the person who was allowed should know, empty if nothing.
	Warning string
}
