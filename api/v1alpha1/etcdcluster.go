// Package v1alpha1 contains the custom resource EtcdCluster. The agents publish their
// observations of an etcd cluster in its status, and the webhook records bindings and allowed
// deletions in its spec.
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
)

// GroupVersion returns the group and version of this package.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: Group, Version: Version}
}

// AddToScheme registers the types of this package, and the options of list and watch, with a
// scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion(), &EtcdCluster{}, &EtcdClusterList{})
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
// the cluster ID in hex. The webhook writes the spec, and the agent of each node writes its own
// entry of status.observations.
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
// +kubebuilder:printcolumn:name="Drained",type=string,JSONPath=`.spec.grants[?(@.drained)].node`
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

	// Grants are deletions that were allowed and are not resolved. Their members count as lost.
	//
	// +optional
	// +listType=map
	// +listMapKey=nodeUID
	// +kubebuilder:validation:MaxItems=100
	Grants []Grant `json:"grants,omitempty"`

	// DistinctServers records which members without a binding are other servers than a member that is
	// bound to a Node or announced by one. The host of that member did not become one of them.
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
	NodeUID types.UID `json:"nodeUID"`
	// Basis is what the binding rests on. It decides how far the observations of the Node count. A
	// binding without a basis is from the bootstrap of the cluster, or from a version without this
	// field: the observations of its Node count.
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
// +kubebuilder:validation:Enum=Joined;Claimed;Disputed
type BindingBasis string

// The bases of bindings.
const (
	// BasisBootstrap: the majority of the first lists agreed on where the member runs.
	BasisBootstrap BindingBasis = ""
	// BasisJoined: the member joined later, and the lists of observers name an address of this Node
	// alone. The kubelet of a Node writes its addresses, so what the Node reports counts only together
	// with another observer.
	BasisJoined BindingBasis = "Joined"
	// BasisClaimed: only the Node itself claims the member. The Node is protected, and the member is
	// lost with it, but the observations of the Node do not count.
	BasisClaimed BindingBasis = "Claimed"
	// BasisDisputed: another Node announces the member too, and is as likely to run it. The
	// observations of neither Node count.
	BasisDisputed BindingBasis = "Disputed"
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

// Grant records that the deletion or the drain of a Node with members of this cluster was allowed.
// It gives up the machine of the Node: a member that joins again on it counts as lost as well.
type Grant struct {
	NodeUID types.UID `json:"nodeUID"`
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`
	// Members are the members that count as lost with the Node.
	//
	// +listType=set
	Members []MemberID `json:"members"`
	// Time is when the deletion was last allowed. Each decision that allows the deletion renews it.
	Time metav1.Time `json:"time"`
	// NodeVersion is the resourceVersion of the Node that may be deleted. If the Node has a later one,
	// the grant is void: the API server deletes only the version that it had reviewed. It is empty if
	// a drain, or the deletion of a Machine or a NodeClaim, was allowed.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=64
	NodeVersion string `json:"nodeVersion,omitempty"`
	// User is the user who requested the deletion. It is empty if the Node was gone without a request.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	User string `json:"user,omitempty"`
	// Reason is what was allowed: the deletion of the Node, or a drain of the node, after which its
	// machine may restart or go. Empty means Deletion.
	//
	// +optional
	Reason GrantReason `json:"reason,omitempty"`
	// Drained is when the drain was allowed. A later deletion of the same Node keeps it.
	//
	// +optional
	Drained *metav1.Time `json:"drained,omitempty"`
	// BreakGlass means that the deletion was allowed against the verdict.
	//
	// +optional
	BreakGlass bool `json:"breakGlass,omitempty"`

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

// A GrantReason is what a grant allowed.
//
// +kubebuilder:validation:Enum=Deletion;Drain
type GrantReason string

// The reasons of grants.
const (
	// GrantDeletion: the Node may be deleted.
	GrantDeletion GrantReason = "Deletion"
	// GrantDrain: the node may be drained.
	GrantDrain GrantReason = "Drain"
)

// EtcdClusterStatus contains the observations of the agents and the summary by the webhook's
// leader.
type EtcdClusterStatus struct {
	// Observations has one entry for each node whose agent observes a local member. Only that agent
	// writes the entry.
	//
	// +optional
	// +listType=map
	// +listMapKey=node
	// +kubebuilder:validation:MaxItems=100
	Observations []Observation `json:"observations,omitempty"`

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

// Observation is the report of the agent of one node about the cluster.
type Observation struct {
	// Node is the observer's Node.
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=36
	NodeUID types.UID `json:"nodeUID"`
	// Nonce is the nonce of the spec, read before the observation began.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Nonce string `json:"nonce,omitempty"`
	// Time is when the observation ended, by the observer's clock. It informs people; no decision
	// compares it.
	Time metav1.Time `json:"time"`
	// LocalMember is the member that runs on the observer's node.
	//
	// +optional
	LocalMember MemberID `json:"localMember,omitempty"`
	// NoMember means that a complete scan of the host found no member of the cluster: no server and no
	// data, or only those of a member that a confirmed list no longer contains. The binding of a
	// member to this Node then ends as soon as one confirmed list lacks the member.
	//
	// +optional
	NoMember bool `json:"noMember,omitempty"`
	// Linearizable means that a quorum confirmed the member list at the time of the observation. No
	// decision uses a list that is not confirmed.
	//
	// +optional
	Linearizable bool `json:"linearizable,omitempty"`
	// AlarmsUnknown means that the alarms of the cluster were not read. An empty list of alarms proves
	// nothing then: a member with the alarm CORRUPT still answers reads.
	//
	// +optional
	AlarmsUnknown bool `json:"alarmsUnknown,omitempty"`
	// Incomplete means that the agent still waits for members to answer. A member that is not healthy
	// in it may be. The complete observation follows as soon as all have answered or the time of their
	// probes is up.
	//
	// +optional
	Incomplete bool `json:"incomplete,omitempty"`
	// Problem is the reason why the agent could not observe the cluster, empty if it could.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^[ !#-%'-;=?-\[\]-~]*$`
	Problem string `json:"problem,omitempty"`
	// Access is how people reach the local member with etcdctl on the observer's host. It completes
	// the commands in messages; no decision depends on it.
	//
	// +optional
	Access *Access `json:"access,omitempty"`
	// Leader is the raft leader according to the local member, empty if that member knew none.
	//
	// +optional
	Leader MemberID `json:"leader,omitempty"`
	// Members is the complete member list of the cluster, or empty. It is atomic, because one agent
	// writes all of it. With a list by key, the API server would track the owner of every field of
	// every member in every observation. This would double the size of the object, and with it the
	// cost of each write while a deletion waits.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=20
	Members []MemberStatus `json:"members,omitempty"`
}

// A Distribution is a distribution of Kubernetes with its own way to remove an etcd member.
//
// +kubebuilder:validation:Enum=k0s;k3s;kubeadm;kubespray;rke2
type Distribution string

// The distributions.
const (
	DistributionK0s       Distribution = "k0s"
	DistributionK3s       Distribution = "k3s"
	DistributionKubeadm   Distribution = "kubeadm"
	DistributionKubespray Distribution = "kubespray"
	DistributionRKE2      Distribution = "rke2"
)

// Access is how people reach a member with etcdctl on its host. The patterns exclude everything
// that a shell interprets, because people paste the commands that contain these values.
//
// +structType=atomic
type Access struct {
	// Distribution is empty if it is none of the known ones.
	//
	// +optional
	Distribution Distribution `json:"distribution,omitempty"`
	// Endpoint is the client URL that the agent uses.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^https?://[0-9A-Za-z.:\[\]-]+$`
	Endpoint string `json:"endpoint,omitempty"`
	// CACert, Cert and Key are paths on the host.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^(/[0-9A-Za-z._@+-]+)+$`
	CACert string `json:"cacert,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^(/[0-9A-Za-z._@+-]+)+$`
	Cert string `json:"cert,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^(/[0-9A-Za-z._@+-]+)+$`
	Key string `json:"key,omitempty"`
}

// MemberStatus is one member as an observer reports it. Its limits, those of Observation, and the
// policy holdfast-agent-observations prevent agents from filling the object up to etcd's limit of
// 1.5 MiB, because then no grant could be written. Texts are printable ASCII without the characters
// " & < > and \, because JSON stores each of these in two or six bytes. Agents replace such
// characters, and omit or shorten what exceeds the limits.
type MemberStatus struct {
	ID MemberID `json:"id"`
	// Name is empty if the member was added but never started.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^[ !#-%'-;=?-\[\]-~]*$`
	Name string `json:"name,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=300
	// +kubebuilder:validation:items:Pattern=`^[!#-%'-;=?-\[\]-~]*$`
	PeerURLs []string `json:"peerURLs,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=300
	// +kubebuilder:validation:items:Pattern=`^[!#-%'-;=?-\[\]-~]*$`
	ClientURLs []string `json:"clientURLs,omitempty"`
	// +optional
	Learner bool `json:"learner,omitempty"`
	// Healthy means that this member itself answered a linearizable read: the answer contained its ID
	// and the cluster's ID. False proves nothing; Reason explains why there is no proof.
	//
	// +optional
	Healthy bool `json:"healthy,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^[ !#-%'-;=?-\[\]-~]*$`
	Reason string `json:"reason,omitempty"`
	// Alarms are the alarms raised by this member: CORRUPT, NOSPACE.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=32
	// +kubebuilder:validation:items:Pattern=`^[0-9A-Z_]*$`
	Alarms []string `json:"alarms,omitempty"`
}
