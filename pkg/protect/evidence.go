package protect

import "github.com/holdfast-dev/holdfast/api/v1alpha1"

// Source is where on the host an etcd server was found, the strongest one if there are several.
type Source string

// The sources, which are also the reasons of the EtcdMember condition.
const (
	SystemdUnit   Source = "SystemdUnit"
	Container     Source = "Container"
	Process       Source = "Process"
	DataDirectory Source = "DataDirectory"
	StaticPod     Source = "StaticPod"
)

// Sighting is one etcd server as the host shows it, before anybody has asked it.
type Sighting struct {
	Source Source `json:"source"`
	// Where says it in words, for people: `systemd unit etcd.service`, `process 812`.
	Where string `json:"where"`
	// Unit is the systemd unit, empty if none is known.
	Unit string `json:"unit,omitempty"`
	// PID is the etcd process, 0 if none runs.
	PID int `json:"pid,omitempty"`
	// InCluster says that Kubernetes runs it (a static pod).
	InCluster bool `json:"inCluster,omitempty"`
	// Config is what the server was told, in etcd's precedence: config file, else flags over environment.
	Config Config `json:"config"`
	// HasData says that the data directory holds a member (member/snap/db or member/wal); nil if that could not be read.
	HasData *bool `json:"hasData,omitempty"`
	// Credentials are client certificates that may open it, the likeliest first.
	Credentials []Credential `json:"credentials,omitempty"`
	// Problems are what could not be read of it, in words.
	Problems []string `json:"problems,omitempty"`
}

// Running says that a process of the server was seen.
func (s Sighting) Running() bool { return s.PID != 0 }

// Config is the part of an etcd configuration that Holdfast reads. Paths are paths on the host as the agent can open
// them, whatever mount namespace the server lives in.
type Config struct {
	Name                string   `json:"name,omitempty"`
	DataDir             string   `json:"dataDir,omitempty"`
	ListenClientURLs    []string `json:"listenClientURLs,omitempty"`
	AdvertiseClientURLs []string `json:"advertiseClientURLs,omitempty"`
	InitialPeerURLs     []string `json:"initialPeerURLs,omitempty"`
	// File is the configuration or environment file that the values came from, empty for flags alone.
	File string `json:"file,omitempty"`
}

// Credential is a set of files for a TLS client. All paths can be opened by the agent as they stand. An empty CA means
// the system's roots, an empty Cert no client certificate.
type Credential struct {
	CA   string `json:"ca,omitempty"`
	Cert string `json:"cert,omitempty"`
	Key  string `json:"key,omitempty"`
	// Origin says where the files were named: `ETCDCTL_CERT in /etc/etcd.env`.
	Origin string `json:"origin"`
}

// MemberRef names one member of one cluster. Announced on the Node as JSON.
type MemberRef struct {
	Cluster v1alpha1.ClusterID `json:"cluster"`
	Member  v1alpha1.MemberID  `json:"member"`
}

// Answer is what the etcd server behind one Sighting said of itself.
type Answer struct {
	// Ref is who it is. Zero if it did not answer.
	Ref MemberRef `json:"ref"`
	// Name is its name in the member list.
	Name    string `json:"name,omitempty"`
	Learner bool   `json:"learner,omitempty"`
	// Removed says that a linearizable member list of its cluster no longer has it.
	Removed bool `json:"removed,omitempty"`
	// Problem is why it did not answer, with every credential that was tried. Empty if it answered.
	Problem string `json:"problem,omitempty"`
}

// Answered says that the server proved who it is.
func (a Answer) Answered() bool { return a.Ref != MemberRef{} }

// Found is a Sighting with its Answer.
type Found struct {
	Sighting `json:"sighting"`
	Answer   `json:"answer"`
}

// HostEvidence is everything that one look at a host says about etcd.
type HostEvidence struct {
	Found []Found `json:"found"`
	// Unknown are the places that could not be looked at, each with the reason: `the process table: permission denied`.
	// While there is one, the absence of etcd is not proven.
	Unknown []string `json:"unknown,omitempty"`
}
