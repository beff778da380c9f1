// Package evidence describes what one scan of a host shows about etcd: the servers that were
// found, their configuration, the identity with which each of them answered, and the places that
// could not be read.
//
// Begin with Scan. The packages that scan the host and query its servers fill it, and
// presence.Assess decides from it whether the node holds a member.
package evidence

import (
	"regexp"
	"strings"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// Source is the kind of place on the host where an etcd server was found. If a server was found in
// several places, its source is the strongest one.
type Source string

// The sources. They are also reasons of the EtcdMember condition.
const (
	SystemdUnit   Source = "SystemdUnit"
	Container     Source = "Container"
	Process       Source = "Process"
	DataDirectory Source = "DataDirectory"
	StaticPod     Source = "StaticPod"
)

// Server describes one etcd server as the host shows it, before the server is queried.
type Server struct {
	Source Source `json:"source"`
	// Where is the place in words: `systemd unit etcd.service`, `process 812`.
	Where string `json:"where"`
	// Distribution is the distribution that manages the server, empty if it is none of the known ones.
	// It selects the words of messages, and decides nothing.
	Distribution v1alpha1.Distribution `json:"distribution,omitempty"`
	// Unit is the systemd unit, empty if none is known.
	Unit string `json:"unit,omitempty"`
	// PID is the etcd process, 0 if no process runs.
	PID int `json:"pid,omitempty"`
	// InCluster means that Kubernetes runs the server as a static pod.
	InCluster bool `json:"inCluster,omitempty"`
	// Config is the server's configuration. As in etcd, a configuration file replaces flags and
	// environment, and flags take precedence over the environment.
	Config Config `json:"config"`
	// HasData means that the data directory contains a member (member/snap/db or member/wal). It is
	// nil if the directory could not be read.
	HasData *bool `json:"hasData,omitempty"`
	// Stored is the member whose data the directory contains, as its write-ahead log names it. It is
	// nil if the log was not read.
	Stored *MemberRef `json:"stored,omitempty"`
	// Old is the data of a stopped server if it was not written for ten minutes, and no file names
	// another place for the data of that server. It protects nothing once its member has left.
	Old *Data `json:"old,omitempty"`
	// IsLocked means that the process of the server has the database in the data directory open, and
	// so the log.
	IsLocked bool `json:"locked,omitempty"`
	// Credentials are client certificates that the server may accept, the most likely one first.
	Credentials []Credential `json:"credentials,omitempty"`
	// Problems describe in words what could not be read of the server.
	Problems []string `json:"problems,omitempty"`
}

// IsRunning reports whether the scan found a process of the server.
func (s Server) IsRunning() bool { return s.PID != 0 }

// Config is the part of an etcd configuration that Holdfast reads. All paths are host paths that
// the agent can open, whatever mount namespace the server runs in.
type Config struct {
	Name                string   `json:"name,omitempty"`
	DataDir             string   `json:"dataDir,omitempty"`
	WALDir              string   `json:"walDir,omitempty"` // as configured, empty if it is in DataDir
	ListenClientURLs    []string `json:"listenClientURLs,omitempty"`
	AdvertiseClientURLs []string `json:"advertiseClientURLs,omitempty"`
	InitialPeerURLs     []string `json:"initialPeerURLs,omitempty"`
	// File is the configuration or environment file that contains the values, empty if all of them
	// come from flags.
	File string `json:"file,omitempty"`
}

// Credential is a set of files for a TLS client. The agent can open all paths as they are. An empty
// CA means the roots of the system, an empty Cert means no client certificate.
type Credential struct {
	CA   string `json:"ca,omitempty"`
	Cert string `json:"cert,omitempty"`
	Key  string `json:"key,omitempty"`
	// Origin is the place that names the files: `ETCDCTL_CERT in /etc/etcd.env`.
	Origin string `json:"origin"`
}

// MemberRef names one member of one cluster. The announcement on a Node is a JSON list of them.
type MemberRef struct {
	Cluster v1alpha1.ClusterID `json:"cluster"`
	Member  v1alpha1.MemberID  `json:"member"`
}

// Identity is the answer of an etcd server to the question which member it is.
type Identity struct {
	// Ref names the member. It is zero if the server did not answer.
	Ref MemberRef `json:"ref"`
	// Name is the member's name in the member list.
	Name    string `json:"name,omitempty"`
	Learner bool   `json:"learner,omitempty"`
	// Removed means that a linearizable member list of the cluster no longer contains the member.
	Removed bool `json:"removed,omitempty"`
	// Problem is the reason why the server did not answer, with each credential that was tried. It
	// is empty if the server answered.
	Problem string `json:"problem,omitempty"`
	// Pending means that the server was just found, and has not had the time to answer.
	Pending bool `json:"-"`
}

// HasAnswered reports whether the server proved which member it is.
func (a Identity) HasAnswered() bool { return a.Ref != MemberRef{} }

// FoundServer is a Server with its Identity.
type FoundServer struct {
	Server   `json:"sighting"`
	Identity `json:"answer"`
}

// Scan is the result of one scan of a host for etcd. Until the servers are queried, they have no
// Identity.
type Scan struct {
	Found []FoundServer `json:"found"`
	// Data are the data of members that no server of Found has.
	Data []Data `json:"data,omitempty"`
	// Unknown lists the places that could not be read, each with the reason: `the process table:
	// permission denied`. While this list is not empty, the absence of etcd is not proven.
	Unknown []string `json:"unknown,omitempty"`
	// Searching means that the first search of the local disks has not ended. The absence of etcd is
	// not proven either.
	Searching bool `json:"searching,omitempty"`
	// Notes describe processes and units that resemble an etcd server, and sources that the scan did
	// not use.
	Notes []string `json:"notes,omitempty"`
}

// IsComplete reports whether every place was read, so that etcd that was not found is absent.
func (s Scan) IsComplete() bool { return len(s.Unknown) == 0 && !s.Searching }

// Data is the data of a member in a directory that no server has open, and that neither a unit nor
// a static pod nor the layout of a distribution names. Its log tells which member it is. Only the
// lists of its cluster tell whether it is one.
type Data struct {
	// Dir is the host's path of the data directory, or that of the log if it is in another one.
	Dir string    `json:"dir"`
	Ref MemberRef `json:"ref"`
	// Recent means that the log was written within the last ten minutes. The member may have joined
	// since the lists of its cluster were read.
	Recent bool `json:"recent,omitempty"`
	// Starter is what may start a server on it: a unit or service of etcd whose files do not tell
	// where its data is. It is usually empty.
	Starter string `json:"starter,omitempty"`
}

// maxAccessLength limits each value of an Access, as the schema does.
const maxAccessLength = 256

// The patterns of the schema. A value that matches them means the same to a shell as it says.
var (
	accessEndpoint = regexp.MustCompile(`^https?://[0-9A-Za-z.:\[\]-]+$`)
	accessPath     = regexp.MustCompile(`^(/[0-9A-Za-z._@+-]+)+$`)
)

// SafeAccess returns the access without the values that must not be part of a command, nil if
// nothing remains. The writer of an access uses it so that the API server accepts the observation,
// and its reader so that no observer can put words of its own into a command. Without one of the
// files, or without the endpoint, the command would not work, so only the distribution remains.
func SafeAccess(a *v1alpha1.Access) *v1alpha1.Access {
	if a == nil {
		return nil
	}
	safe := *a
	switch safe.Distribution {
	case v1alpha1.DistributionK0s, v1alpha1.DistributionK3s, v1alpha1.DistributionKubeadm,
		v1alpha1.DistributionKubespray, v1alpha1.DistributionRKE2:
	default:
		safe.Distribution = ""
	}
	isSafe := len(safe.Endpoint) <= maxAccessLength && accessEndpoint.MatchString(safe.Endpoint)
	for _, file := range []string{safe.CACert, safe.Cert, safe.Key} {
		isSafe = isSafe && (file == "" || isSafePath(file))
	}
	if !isSafe {
		safe = v1alpha1.Access{Distribution: safe.Distribution}
	}
	if safe == (v1alpha1.Access{}) {
		return nil
	}
	return &safe
}

// isSafePath reports whether a path of the host may be part of a command. A path below /proc
// belongs to a process that may not run any more.
func isSafePath(file string) bool {
	return len(file) <= maxAccessLength && accessPath.MatchString(file) &&
		!strings.Contains(file+"/", "/../") && !strings.HasPrefix(file, "/proc/")
}
