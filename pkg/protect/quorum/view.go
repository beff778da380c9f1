package quorum

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// A View describes one etcd cluster while a deletion is reviewed. The bindings, grants and
// observations are from one version of the EtcdCluster.
type View struct {
	// Cluster is never nil.
	Cluster *v1alpha1.EtcdCluster
	// Nonces are the nonce of the probe request, and those of later versions of the object. An
	// observation with another nonce is older than the probe request.
	Nonces []string
	// Nodes maps the name of a Node to its live state. It contains the Nodes of all bindings,
	// grants and entries of PossibleNodes.
	Nodes map[string]observation.NodeState
	// PossibleNodes is the result of the function PossibleNodes: where the members may run that are
	// not located.
	PossibleNodes []v1alpha1.Binding
	// Now is the time of the decision. No verdict depends on it: it selects the words about times that
	// are still to come. The zero time is before all of them.
	Now time.Time
	// MinRemainingTolerance is the number of further voters that the cluster must be able to lose
	// after the deletion. Default 0. Only Decide reads it.
	MinRemainingTolerance int
}

// A Request is the deletion of one Node, or a drain of its node.
type Request struct {
	Node string
	UID  types.UID
	// Version is the resourceVersion of the Node that the API server is about to delete.
	Version string
	// Labelled reports whether the Node has the label EtcdMemberLabel.
	Labelled bool
	// CountAddresses means that the members at the addresses of the Node count as on it, although the
	// Node has no label. They always count with the label, and for a drain.
	CountAddresses bool
	// Announced are the members that the Node's agent announced on the Node.
	Announced []evidence.MemberRef
	// Unverified are the places on the host where the Node's agent found servers that have never
	// identified themselves.
	Unverified []string
	// AgentSilent means that the Node's agent has not reported whether it found a member. It matters
	// for a node without the label only (DecideUnlabelled).
	AgentSilent bool
	// Addresses are all of the Node's status.addresses.
	Addresses []string
	// User is the name of the requesting user. The grant records it.
	User string
	// Drain means that the request is a drain of the node (the eviction of its guard pod), and not
	// the deletion of the Node.
	Drain bool
	// DryRun means that nothing may be written. So no probe can be requested.
	DryRun bool
	// BreakGlass is the valid override on the Node, or nil.
	BreakGlass *BreakGlass
}

// countsAddresses reports whether the members at the addresses of the Node count as on it.
func (r Request) countsAddresses() bool { return r.Labelled || r.Drain || r.CountAddresses }

// A Verb names in texts what was requested.
type Verb struct{ Base, Past, Gerund, Noun string }

// Verb returns how texts name the request.
func (r Request) Verb() Verb {
	if r.Drain {
		return Verb{Base: "drain", Past: "drained", Gerund: "draining", Noun: "drain"}
	}
	return Verb{Base: "delete", Past: "deleted", Gerund: "deleting", Noun: "deletion"}
}

// again asks for another attempt.
func (r Request) again() string { return r.Verb().Base + " the node again" }

// A Reason classifies a Verdict. The set is closed, so it is suitable for a metric label. Package
// admission adds reasons of its own for answers without a verdict.
type Reason string

// The reasons of verdicts.
const (
	// NothingToProtect: the cluster has no member on the node, or no longer has one.
	NothingToProtect Reason = "NothingToProtect"
	// QuorumKept: enough voters on other nodes are proven healthy.
	QuorumKept Reason = "QuorumKept"
	// QuorumWouldBeLost: too few voters on other nodes are proven healthy.
	QuorumWouldBeLost Reason = "QuorumWouldBeLost"
	// CannotSee: no observer answered with a member list that a quorum confirmed.
	CannotSee Reason = "CannotSee"
	// UnknownMember: the node has a member or a server, but it is not known which one.
	UnknownMember Reason = "UnknownMember"
	// NotDraining: a guard pod is evicted, but nothing has closed its node for a drain.
	NotDraining Reason = "NotDraining"
	// OnlyMember: the drained node has the only member of its cluster, so there is no quorum to keep.
	OnlyMember Reason = "OnlyMember"
	// Repeated: an earlier review of the same deletion has allowed it.
	Repeated Reason = "Repeated"
	// Deleting: the Node is already being deleted.
	Deleting Reason = "Deleting"
	// BreakGlassUsed: an authorized user overrode the verdict.
	BreakGlassUsed Reason = "BreakGlass"
	// CannotDecide: Holdfast itself failed. An input of the verdict could not be read, or a grant
	// could not be written. The reason makes no statement about etcd.
	CannotDecide Reason = "CannotDecide"
)

// RefusingReasons returns the reasons of verdicts that refuse.
func RefusingReasons() []Reason {
	return []Reason{QuorumWouldBeLost, CannotSee, UnknownMember, NotDraining, CannotDecide}
}

// AllowingReasons returns the reasons with which a Reviewer allows. Deleting is not among them:
// admission answers it without a Reviewer.
func AllowingReasons() []Reason {
	return []Reason{NothingToProtect, QuorumKept, OnlyMember, Repeated, BreakGlassUsed}
}

// A Verdict is the decision for one cluster. The zero value refuses.
type Verdict struct {
	Allowed bool
	Reason  Reason
	Cluster v1alpha1.ClusterID
	// Members are the members on the node. A grant must name all of them. If the list is empty, no
	// grant is necessary.
	Members []v1alpha1.MemberID
	// Voters is the number of current voters. Healthy is the number of voters that are proven
	// healthy, are not on the node and are not lost. Quorum is ⌊Voters/2⌋+1. All are zero without
	// a confirmed member list.
	Voters, Healthy, Quorum int
	// VoterIDs are the voters of an allowed deletion, sorted. They are empty if member lists differ.
	VoterIDs []v1alpha1.MemberID
	// Final reports whether no further observation can change the verdict.
	Final bool
	// Message explains the verdict. The message of a refusal contains the next steps.
	Message string
	// Warning is what the user of an allowed deletion should know. It may be empty.
	Warning string
}

// A Decision is the answer to a Request over all etcd clusters. The zero value refuses.
type Decision struct {
	Allowed bool
	// Message explains the decision. The message of a refusal contains the next steps.
	Message string
	// Warnings are what the user of an allowed deletion should know.
	Warnings []string
	// Reason is the reason of the first verdict that agrees with the decision.
	Reason Reason
	// Verdicts are the verdicts of the clusters, in the order of cluster ID.
	Verdicts []Verdict
}

const (
	// BreakGlassAnnotation on a Node contains a BreakGlass in JSON. Only a user with the verb
	// `breakglass` on etcdclusters may write it.
	BreakGlassAnnotation = "holdfast.dev/break-glass"
	// ResolveAnnotation on an EtcdCluster names the Node UID of a grant that an operator
	// resolves by hand. Its key and the event Settled keep their public names: there, to settle
	// means to resolve.
	ResolveAnnotation = "holdfast.dev/settle"
)

const (
	// ResolvePresentAfter is the time after the last grant for a Node when its continued
	// existence shows that the deletion failed. It is longer than any DELETE can take: the request
	// timeout of the API server (60 s by default) and an etcd election after it.
	ResolvePresentAfter = 5 * time.Minute
	// ResolveReturnedAfter is the minimum time between the first and the last probe that prove a
	// drained member healthy after its node was opened again.
	ResolveReturnedAfter = 30 * time.Second
	// ResolveMovedAfter is the time during which a member must be proven healthy on its new Node,
	// and during which a machine whose Node was deleted may still be removed.
	// It is longer than the time after which cluster-autoscaler terminates an instance whose Node
	// has vanished (--max-node-provision-time, 15 minutes by default).
	ResolveMovedAfter = 20 * time.Minute
	// ResolveByHandAfter is the minimum age of a grant that is resolved by hand. If a grant is
	// younger, the operator may mean an earlier deletion of the Node while this one is still in
	// progress. A grant answers reviews for RepeatWithin. The last of them may be about a DELETE
	// that has just begun, which takes up to the request timeout of the API server (60 s by
	// default). The third minute is for the clocks of the replicas.
	ResolveByHandAfter = 3 * time.Minute
)
