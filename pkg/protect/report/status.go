// Package report describes what Holdfast knows about a Kubernetes cluster: its [Status], a [Page]
// about one Node, and a [Plan] for the replacement of Nodes.
//
// The answers come from the same decisions as the verdicts of the webhook (package quorum). They
// are based on the last observations of the agents, because a reader cannot request new ones, and
// on no observation that is older than observation.SilentAfter. All functions are pure.
package report

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/printable"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// Version is the version of the JSON of all reports. It changes when a key is removed or gets
// another meaning. New keys do not change it.
const Version = 1

// A Status describes everything that Holdfast protects and holds.
type Status struct {
	Version int    `json:"version"`
	Kind    string `json:"kind"`

	Clusters []ClusterStatus `json:"clusters"`
	Holds    []HoldStatus    `json:"holds"`
	// Warnings are what needs attention.
	Warnings []Warning `json:"warnings"`
}

// A ClusterStatus describes one etcd cluster.
type ClusterStatus struct {
	ID v1alpha1.ClusterID `json:"id"`
	// Known reports whether a quorum has confirmed a member list. The numbers mean nothing otherwise.
	Known   bool `json:"known"`
	Voters  int  `json:"voters"`
	Healthy int  `json:"healthy"`
	Quorum  int  `json:"quorum"`
	// MayLose is how many healthy voters the cluster can lose without losing quorum.
	MayLose int `json:"mayLose"`
	// Observers tells whose word counts. It is empty before the first bindings.
	Observers v1alpha1.Observers `json:"observers,omitempty"`
	// Message describes the cluster in one line.
	Message string         `json:"message"`
	Members []MemberStatus `json:"members"`
	// Zones are empty if no Node has a zone, or if no member list is confirmed.
	Zones  []ZoneStatus  `json:"zones"`
	Grants []GrantStatus `json:"grants"`
}

// A MemberStatus describes one member.
type MemberStatus struct {
	ID     v1alpha1.MemberID  `json:"id"`
	Name   string             `json:"name"`
	Node   string             `json:"node,omitempty"`
	Counts quorum.MemberCount `json:"counts"`
	// Description explains Counts.
	Description string `json:"description"`
	// MayGo is the answer for the member's Node, on its own. It is empty without a Node.
	MayGo  quorum.Answer `json:"mayGo,omitempty"`
	Reason quorum.Reason `json:"reason,omitempty"`
}

// A GrantStatus describes a machine that may leave. Its members count as lost until all of its
// doors are shut.
type GrantStatus struct {
	Node    string              `json:"node"`
	NodeUID types.UID           `json:"nodeUID"`
	Members []v1alpha1.MemberID `json:"members"`
	// Doors are the open doors, at least one, the last opened one last. Since is when that was opened.
	Doors []DoorStatus `json:"doors"`
	Since time.Time    `json:"since"`
	// NodeExists reports whether the Node still exists.
	NodeExists bool `json:"nodeExists"`
}

// A DoorStatus describes a way by which a machine may leave, and what shuts it.
type DoorStatus struct {
	Kind       quorum.DoorKind `json:"kind"`
	User       string          `json:"user,omitempty"`
	BreakGlass bool            `json:"breakGlass,omitempty"`
	Since      time.Time       `json:"since"`
	ShutWhen   string          `json:"shutWhen"`
}

// A HoldStatus describes a node that is kept closed until its network works, or whose record of a
// hold is unreadable: Holdfast leaves that node as it is.
type HoldStatus struct {
	Node string `json:"node"`
	// Since is empty if the record is unreadable.
	Since  *time.Time `json:"since,omitempty"`
	Reason string     `json:"reason"`
	// Message is that of the condition NetworkHeld.
	Message string `json:"message,omitempty"`
	// Release is the command that ends the hold by hand, empty if its cordon or taint is
	// gone already.
	Release string `json:"release"`
}

// NewStatus returns the status.
func NewStatus(s State) Status {
	s = s.sorted()
	status := Status{
		Version: Version, Kind: "Status", Clusters: []ClusterStatus{}, Holds: []HoldStatus{}, Warnings: []Warning{},
	}
	for _, c := range s.recentClusters() {
		cluster := s.clusterStatus(c)
		for i := range cluster.Members {
			m := &cluster.Members[i]
			if n := s.node(m.Node); n != nil {
				removal := s.removal(n)
				m.MayGo, m.Reason = removal.Answer, removal.Reason
			}
		}
		status.Clusters = append(status.Clusters, cluster)
	}
	for i := range s.Nodes {
		if hold, isHeld := holdStatus(&s.Nodes[i]); isHeld {
			status.Holds = append(status.Holds, hold)
		}
	}
	status.Warnings = append(status.Warnings, s.warnings(status)...)
	return status
}

// clusterStatus describes one recent cluster. The answers about its Nodes are left out.
func (s State) clusterStatus(c *v1alpha1.EtcdCluster) ClusterStatus {
	view := s.view(c)
	summary := quorum.Summarize(view)
	status := ClusterStatus{
		ID: observation.ClusterIDOf(c), Known: summary.Known, Message: words.Summary(summary),
		Voters: summary.Voters, Healthy: summary.Healthy, Quorum: summary.Quorum, MayLose: summary.MayLose,
		Observers: c.Spec.Observers, Members: []MemberStatus{}, Grants: []GrantStatus{}, Zones: s.zoneStatus(c),
	}
	for _, m := range summary.Members {
		status.Members = append(status.Members, MemberStatus{
			ID: m.ID, Name: printable.Quote(m.Name), Node: m.Node, Counts: m.Count, Description: words.Describe(m),
		})
	}
	for _, b := range c.Spec.Members {
		if !summary.Known {
			status.Members = append(status.Members, MemberStatus{
				ID: b.MemberID, Node: b.Node, Counts: quorum.CountsUnproven, Description: "no member list is confirmed",
			})
		}
	}
	for _, g := range c.Spec.Grants {
		status.Grants = append(status.Grants, s.grantStatus(g))
	}
	slices.SortFunc(status.Grants, func(a, b GrantStatus) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Node, b.Node))
	})
	return status
}

func (s State) grantStatus(g v1alpha1.Grant) GrantStatus {
	n := s.node(g.Node)
	status := GrantStatus{
		Node: g.Node, NodeUID: g.NodeUID, Members: g.Members, Doors: []DoorStatus{},
		Since: quorum.LastOpened(g).UTC(), NodeExists: n != nil && n.UID == g.NodeUID,
	}
	doors := quorum.Doors(g)
	if len(doors) == 0 {
		doors = append(doors, quorum.LastDoor(g))
	}
	for _, d := range doors {
		shutWhen := words.ShutWhen(d.Kind)
		if !status.NodeExists {
			shutWhen = words.ShutWhen(quorum.DoorGone)
		}
		status.Doors = append(status.Doors, DoorStatus{
			Kind: d.Kind, User: printable.Line(d.User), BreakGlass: d.BreakGlass, Since: d.Time.UTC(), ShutWhen: shutWhen,
		})
	}
	return status
}

func holdStatus(n *corev1.Node) (h HoldStatus, isHeld bool) {
	value, isRecorded := n.Annotations[readiness.HoldAnnotation]
	record, err := readiness.ParseRecord(value)
	switch {
	case !isRecorded, err == nil && record.State != readiness.Held:
		return HoldStatus{}, false
	case err != nil:
		return HoldStatus{Node: n.Name, Reason: readiness.RecordUnreadable}, true
	case record.Since.IsZero(): // A policy has written the record when the Node was created.
		record.Since = n.CreationTimestamp.UTC()
	}
	h = HoldStatus{
		Node: n.Name, Since: &record.Since, Reason: printable.Line(string(record.Reason)),
		Release: readiness.ReleaseCommand(n),
	}
	if c := readiness.FindCondition(n, readiness.NetworkHeld); c != nil {
		h.Reason, h.Message = printable.Line(c.Reason), printable.Line(c.Message)
	}
	return h, true
}
