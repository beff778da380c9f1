package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ClusterID is an etcd cluster ID as etcdctl prints it: lower-case hex, no prefix, no padding.
// It is also the name of the EtcdCluster object.
//
// +kubebuilder:validation:Pattern=`^[1-9a-f][0-9a-f]{0,15}$`
type ClusterID string

// MemberID is an etcd member ID as etcdctl prints it: lower-case hex, no prefix, no padding.
//
// +kubebuilder:validation:Pattern=`^[1-9a-f][0-9a-f]{0,15}$`
type MemberID string

// EtcdCluster is what Holdfast knows of one etcd cluster that runs on nodes of this Kubernetes cluster. It is named by
// its cluster ID in hex. The spec belongs to the webhook, each entry of status.observations to the agent of its node.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=etcdc
// +kubebuilder:printcolumn:name="Voters",type=integer,JSONPath=`.status.voters`
// +kubebuilder:printcolumn:name="Healthy",type=integer,JSONPath=`.status.healthy`
// +kubebuilder:printcolumn:name="Quorum",type=integer,JSONPath=`.status.quorum`
// +kubebuilder:printcolumn:name="May-Lose",type=integer,JSONPath=`.status.mayLose`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type EtcdCluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is written by the webhook alone.
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

// EtcdClusterSpec is written by the webhook alone.
type EtcdClusterSpec struct {
	// Nonce asks the agents to look again: a random word that they echo in their observations. What does not carry it
	// was seen before the question and proves nothing about health.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Nonce string `json:"nonce,omitempty"`

	// Members are the bindings of members to Nodes. They outlive the Node (a binding whose Node is gone is a tombstone:
	// that member counts as lost) and go when the member has left the member list.
	//
	// +optional
	// +listType=map
	// +listMapKey=memberID
	// +kubebuilder:validation:MaxItems=100
	Members []Binding `json:"members,omitempty"`

	// Grants are deletions that were allowed and are not settled: their members count as lost.
	//
	// +optional
	// +listType=map
	// +listMapKey=nodeUID
	// +kubebuilder:validation:MaxItems=100
	Grants []Grant `json:"grants,omitempty"`

	// Ledger rises by one with every change of Grants and with nothing else. A writer tests the value that its decision
	// was made from, so that no two decisions can be made from the same grants.
	//
	// +optional
	// +kubebuilder:default=0
	Ledger int64 `json:"ledger"`
}

// Binding says on which Node a member runs.
type Binding struct {
	MemberID MemberID `json:"memberID"`
	// Node is the Node's name.
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`
	// NodeUID is the UID of that very Node; one that registers again under the same name has another.
	NodeUID types.UID `json:"nodeUID"`
}

// Grant is one allowed deletion of a Node that holds members of this cluster.
type Grant struct {
	NodeUID types.UID `json:"nodeUID"`
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`
	// Members are the members that count as lost with the Node.
	//
	// +listType=set
	Members []MemberID `json:"members"`
	// Time is when the deletion was last allowed: every call that allows renews it.
	Time metav1.Time `json:"time"`
	// User is who asked for the deletion. Empty if a deletion was found that nobody had asked about.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	User string `json:"user,omitempty"`
	// BreakGlass says that the deletion was allowed against the verdict.
	//
	// +optional
	BreakGlass bool `json:"breakGlass,omitempty"`
}

// EtcdClusterStatus holds what the agents saw, and the summary that the webhook's leader makes of it.
type EtcdClusterStatus struct {
	// Observations has one entry per node whose agent sees a local member, written by that agent alone.
	//
	// +optional
	// +listType=map
	// +listMapKey=node
	// +kubebuilder:validation:MaxItems=100
	Observations []Observation `json:"observations,omitempty"`

	// Voters is the number of voting members, unstarted ones included.
	//
	// +optional
	Voters *int32 `json:"voters,omitempty"`
	// Healthy is the number of voters proven healthy and not given up.
	//
	// +optional
	Healthy *int32 `json:"healthy,omitempty"`
	// Quorum is the number of voters that must live.
	//
	// +optional
	Quorum *int32 `json:"quorum,omitempty"`
	// MayLose is how many healthy voters may still be lost, never below zero.
	//
	// +optional
	MayLose *int32 `json:"mayLose,omitempty"`

	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Observation is what the agent of one node saw of the cluster.
type Observation struct {
	// Node is the observer's Node.
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=36
	NodeUID types.UID `json:"nodeUID"`
	// Nonce is the spec's nonce as read before the look began.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Nonce string `json:"nonce,omitempty"`
	// Time is when the look ended, by the observer's clock. For people: no decision compares it.
	Time metav1.Time `json:"time"`
	// LocalMember is the member that runs on the observer's node.
	//
	// +optional
	LocalMember MemberID `json:"localMember,omitempty"`
	// Linearizable says that the member list was confirmed by a quorum at the time of the look. A list that was not is
	// history, and no decision is made from it.
	//
	// +optional
	Linearizable bool `json:"linearizable,omitempty"`
	// AlarmsUnknown says that the cluster was not asked for its alarms or did not answer: an empty list of alarms says
	// nothing then. A member with the alarm CORRUPT goes on answering reads.
	//
	// +optional
	AlarmsUnknown bool `json:"alarmsUnknown,omitempty"`
	// Problem is why the observer could not see, empty if it could.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Problem string `json:"problem,omitempty"`
	// Leader is the raft leader as the local member named it, empty if it knew none.
	//
	// +optional
	Leader MemberID `json:"leader,omitempty"`
	// Members is the cluster's member list, whole or not at all. It is atomic, since one agent writes all of it: as a list by
	// key the API server would keep account of the owner of every field of every member in every observation, which doubles
	// the object's size, and with it what each write costs while a deletion waits.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=20
	Members []MemberStatus `json:"members,omitempty"`
}

// MemberStatus is one member as an observer saw it. Its limits, and those of Observation, keep one agent from filling the
// object to etcd's limit of 1.5 MiB, which would keep grants from being written. Agents leave out what exceeds them.
type MemberStatus struct {
	ID MemberID `json:"id"`
	// Name is empty if the member was added and has never started.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Name string `json:"name,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=300
	// +kubebuilder:validation:items:Pattern=`^[!-~]*$`
	PeerURLs []string `json:"peerURLs,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=300
	// +kubebuilder:validation:items:Pattern=`^[!-~]*$`
	ClientURLs []string `json:"clientURLs,omitempty"`
	// +optional
	Learner bool `json:"learner,omitempty"`
	// Healthy says that this very member answered a linearizable read (its ID and the cluster's ID stood in the
	// answer). False proves nothing: Reason says why there is no proof.
	//
	// +optional
	Healthy bool `json:"healthy,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason,omitempty"`
	// Alarms are the alarms raised by this member: CORRUPT, NOSPACE.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=32
	Alarms []string `json:"alarms,omitempty"`
}
