// Package v1alpha1 contains the custom resources EtcdCluster and EtcdObservation. The webhook
// records the bindings and the allowed deletions of an etcd cluster in its EtcdCluster. The agent
// of each node publishes its observation of that cluster in an EtcdObservation of its own.
//
// AddToScheme registers the types with a scheme.
//
// +kubebuilder:object:generate=true
// +groupName=holdfast.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// Group is the API group of Holdfast's own objects, and the prefix of its keys on Nodes.
	Group = "holdfast.dev"
	// Version is the API version of this package.
	Version = "v1alpha1"
	// Resource is the plural name of the resource EtcdCluster.
	Resource = "etcdclusters"
	// ObservationResource is the plural name of the resource EtcdObservation.
	ObservationResource = "etcdobservations"
)

// GroupVersion returns the group and version of this package.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: Group, Version: Version}
}

// AddToScheme registers the types of this package, and the options of list and watch, with a
// scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion(), &EtcdCluster{}, &EtcdClusterList{}, &EtcdObservation{}, &EtcdObservationList{})
	metav1.AddToGroupVersion(s, GroupVersion())
	return nil
}

// ClusterID is an etcd cluster ID as etcdctl prints it: lower-case hex, no prefix, no padding.
// It is also the name of the EtcdCluster object.
//
// +kubebuilder:validation:Pattern=`^[1-9a-f][0-9a-f]{0,15}$`
type ClusterID string

// MemberID is an etcd member ID as etcdctl prints it: lower-case hex, no prefix, no padding.
//
// +kubebuilder:validation:Pattern=`^[1-9a-f][0-9a-f]{0,15}$`
type MemberID string

// EtcdCluster describes one etcd cluster that runs on nodes of this Kubernetes cluster. Its name is
// the cluster ID in hex. Only the webhook writes it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=etcdc
//
// +kubebuilder:printcolumn:name="Voters",type=integer,JSONPath=`.status.voters`
// +kubebuilder:printcolumn:name="Healthy",type=integer,JSONPath=`.status.healthy`
// +kubebuilder:printcolumn:name="Quorum",type=integer,JSONPath=`.status.quorum`
//
// +kubebuilder:printcolumn:name="May-Lose",type=integer,JSONPath=`.status.mayLose`
// +kubebuilder:printcolumn:name="Drained",type=string,JSONPath=`.spec.grants[?(@.drain)].node`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type EtcdCluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is written only by the webhook.
	//
	// +optional
	// +kubebuilder:default={}
	Spec EtcdClusterSpec `json:"spec,omitempty"`
	// +optional
	Status EtcdClusterStatus `json:"status,omitempty"`

	// Observations are those of the EtcdObservations that belong to this object. They are not part of
	// it in the API server. A reader joins them: it reads this object first, and then the
	// observations (docs/decisions.md, decision 39).
	Observations []Observation `json:"-"`
}

// EtcdClusterList is a list of EtcdClusters.
//
// +kubebuilder:object:root=true
type EtcdClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []EtcdCluster `json:"items"`
}

// EtcdClusterSpec contains the bindings and grants of the cluster. Only the webhook writes it.
type EtcdClusterSpec struct {
	// Nonce requests new observations from the agents. It is a random string that they copy into their
	// observations. An observation without it may have begun before the request and proves nothing
	// about health.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Nonce string `json:"nonce,omitempty"`

	// Members are the bindings of members to Nodes. A binding outlives its Node; its member then
	// counts as lost. It ends when the member has left the member list.
	//
	// +optional
	// +listType=map
	// +listMapKey=memberID
	// +kubebuilder:validation:MaxItems=100
	Members []Binding `json:"members,omitempty"`

	// Observers tells which Nodes are observers. Once it is NodesWithRole, it does not change.
	//
	// +optional
	Observers Observers `json:"observers,omitempty"`

	// Grants are deletions, drains and removals that were allowed and are not resolved. Their members
	// count as lost.
	//
	// +optional
	// +listType=map
	// +listMapKey=nodeUID
	// +kubebuilder:validation:MaxItems=100
	Grants []Grant `json:"grants,omitempty"`

	// DistinctServers records which members that are not located are other servers than a member that
	// is bound to a Node, announced by one, or named by a grant. The host of that member did not
	// become one of them.
	//
	// +optional
	// +listType=map
	// +listMapKey=memberID
	// +kubebuilder:validation:MaxItems=100
	DistinctServers []DistinctServer `json:"distinctServers,omitempty"`

	// Ledger rises by one with every change of the grants, and only then. Each writer tests the
	// value on which its decision is based, so that no two decisions are based on the same grants.
	//
	// +optional
	// +kubebuilder:default=0
	Ledger int64 `json:"ledger"`
}

// Binding records on which Node a member runs.
type Binding struct {
	MemberID MemberID `json:"memberID"`
	// Node is the Node's name.
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`
	// NodeUID is the UID of that Node. A Node that registers again with the same name has another UID.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MinLength=1
	NodeUID types.UID `json:"nodeUID"`
	// Basis is what the binding rests on. It decides whether the Node is an observer, and whether the
	// member is known to run there. Without one, neither is the case.
	//
	// +optional
	Basis BindingBasis `json:"basis,omitempty"`

	// MachineID, SystemUUID and ProviderID identify the machine of the Node, as in a grant. They are
	// kept when the Node is gone, so that a grant that is written then knows the machine.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=128
	MachineID string `json:"machineID,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=128
	SystemUUID string `json:"systemUUID,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=512
	ProviderID string `json:"providerID,omitempty"`
}

// BindingBasis is what a binding rests on.
//
// +kubebuilder:validation:Enum=Role;Address;Disputed;Claim
type BindingBasis string

// The bases of bindings.
const (
	// BasisRole: the Node has a role, and announces the member.
	BasisRole BindingBasis = "Role"
	// BasisAddress: no Node with a role has announced the cluster. The lists that count name an
	// address of this Node, or no addresses of Nodes. No other Node that can be right announces the
	// member or has its address.
	BasisAddress BindingBasis = "Address"
	// BasisDisputed is one of the bases above, and another Node may run the member as well.
	BasisDisputed BindingBasis = "Disputed"
	// BasisClaim: only the Node itself claims the member. The Node is protected, and is no observer.
	BasisClaim BindingBasis = "Claim"
)

// Observers tells which Nodes are observers of a cluster: those whose observations count.
//
// +kubebuilder:validation:Enum=NodesWithRole;AllNodes
type Observers string

// The values of Observers.
const (
	// NodesWithRole: the Nodes with a role that a kubelet cannot give itself. The word of one of them
	// counts.
	NodesWithRole Observers = "NodesWithRole"
	// AllNodes: no Node with a role has announced the cluster. The words of two Nodes count.
	AllNodes Observers = "AllNodes"
)

// DistinctServer records the members that are other servers than one member.
type DistinctServer struct {
	MemberID MemberID `json:"memberID"`
	// Others are members that a confirmed list contained as started while this member was proven
	// healthy.
	//
	// +listType=set
	// +kubebuilder:validation:MaxItems=20
	Others []MemberID `json:"others"`
}

// Grant records that the machine of a Node with members of this cluster may leave, and by which
// doors. The members count as lost until all doors are shut. It gives up the machine: a member that
// joins again on it counts as lost as well.
type Grant struct {
	// NodeUID is the UID of the Node.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MinLength=1
	NodeUID types.UID `json:"nodeUID"`
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`
	// Members are the members that count as lost with the Node.
	//
	// +listType=set
	Members []MemberID `json:"members"`
	// Delete is open because the deletion of one version of the Node was allowed. It is shut when the
	// Node has a later version: the API server deletes only the version that it had reviewed.
	//
	// +optional
	Delete *Door `json:"delete,omitempty"`
	// Machine is open because the deletion of the Machine or the NodeClaim of the Node was allowed.
	//
	// +optional
	Machine *Door `json:"machine,omitempty"`
	// Drain is open because a drain of the node was allowed, after which its machine may restart or
	// go. It is shut when the node is open for pods, and its agent has proven the members healthy.
	//
	// +optional
	Drain *Door `json:"drain,omitempty"`
	// Remove is open because a mark on the Node was allowed by which its distribution removes the
	// member. It is shut when the mark is there, or was not set in time; for an EtcdMember of k0s,
	// when the member has left.
	//
	// +optional
	Remove *Door `json:"remove,omitempty"`
	// Gone is open because the Node was found to be gone without a review.
	//
	// +optional
	Gone *Door `json:"gone,omitempty"`

	// MachineID and SystemUUID identify the machine of the Node (status.nodeInfo). They show whether a
	// younger Node with the same name is the same machine. Empty means unknown.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=128
	MachineID string `json:"machineID,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=128
	SystemUUID string `json:"systemUUID,omitempty"`
	// ProviderID is the identity of the machine in its cloud (spec.providerID of the Node). It shows
	// which Machine or NodeClaim ends the machine, also when the Node is gone. Empty means unknown.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=512
	ProviderID string `json:"providerID,omitempty"`
	// Addresses are the hosts at which the machine and its members were reached.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=253
	Addresses []string `json:"addresses,omitempty"`
}

// A Door is a way by which the machine of a grant may leave.
type Door struct {
	// Time is when it was last opened.
	Time metav1.Time `json:"time"`
	// User is the user whose request was allowed, empty if there was none.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	User string `json:"user,omitempty"`
	// BreakGlass means that the request was allowed against the verdict.
	//
	// +optional
	BreakGlass bool `json:"breakGlass,omitempty"`
	// Version is the resourceVersion of the Node that may be deleted, or marked for the removal of its
	// member. Only the doors Delete and Remove have one, and the latter not for an EtcdMember of k0s.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Version string `json:"version,omitempty"`
}

// EtcdClusterStatus is the summary by the webhook's leader.
type EtcdClusterStatus struct {
	// Voters is the number of voting members, including those that never started.
	//
	// +optional
	Voters *int32 `json:"voters,omitempty"`
	// Healthy is the number of voters that are proven healthy and not lost.
	//
	// +optional
	Healthy *int32 `json:"healthy,omitempty"`
	// Quorum is the number of voters that must be healthy.
	//
	// +optional
	Quorum *int32 `json:"quorum,omitempty"`
	// MayLose is the number of healthy voters that may still be lost, never below zero.
	//
	// +optional
	MayLose *int32 `json:"mayLose,omitempty"`

	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
