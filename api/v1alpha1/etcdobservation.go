package v1alpha1

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// EtcdObservation is the report of the agent of one node about one etcd cluster. Its name is
// ObservationName. The webhook's leader creates it without a report and deletes it, and only the
// agent of its node updates it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=etcdo
//
// +kubebuilder:validation:XValidation:rule="self.metadata.name == self.cluster + '.' + self.node",message="the name must be <cluster>.<node>"
//
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.cluster`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.node`
// +kubebuilder:printcolumn:name="Member",type=string,JSONPath=`.localMember`
//
// +kubebuilder:printcolumn:name="Confirmed",type=boolean,JSONPath=`.linearizable`
// +kubebuilder:printcolumn:name="Healthy",type=string,JSONPath=`.members[?(@.healthy)].name`
// +kubebuilder:printcolumn:name="Observed",type=date,JSONPath=`.time`
// +kubebuilder:printcolumn:name="Problem",type=string,JSONPath=`.problem`
type EtcdObservation struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Cluster is the observed cluster, and the name of its EtcdCluster.
	Cluster     ClusterID `json:"cluster"`
	Observation `json:",inline"`
}

// EtcdObservationList is a list of EtcdObservations.
//
// +kubebuilder:object:root=true
type EtcdObservationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []EtcdObservation `json:"items"`
}

// ObservationName returns the name of the EtcdObservation of a cluster by the agent of a node.
func ObservationName(cluster ClusterID, node string) string {
	return strings.Join([]string{string(cluster), node}, ".")
}

// Observation is the report of the agent of one node about the cluster.
type Observation struct {
	// Node is the observer's Node.
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`
	// NodeUID is the UID of that Node. It is empty until the agent has published for the first time.
	//
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=36
	NodeUID types.UID `json:"nodeUID,omitempty"`
	// Nonce is the nonce of the spec, read before the observation began.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Nonce string `json:"nonce,omitempty"`
	// Time is when the observation ended, by the observer's clock. It informs people; no decision
	// compares it. The format date-time also admits what no program in Go can read, and one such
	// value would make each list of observations fail.
	//
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[0-9-]{10}T[0-9:]{8}Z$`
	Time metav1.Time `json:"time,omitzero"`
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
	// every member, which makes each write more expensive while a deletion waits.
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
// policy holdfast-agent-observations bound the memory of the programs that read all observations.
// Texts are printable ASCII without the characters " & < > and \, because JSON stores each of these
// in two or six bytes. Agents replace such characters, and omit or shorten what exceeds the limits.
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
