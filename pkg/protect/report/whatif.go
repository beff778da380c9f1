package report

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

// A WhatIf answers whether the etcd clusters keep quorum if Nodes are gone at once.
type WhatIf struct {
	Version int    `json:"version"`
	Kind    string `json:"kind"`
	// Answer is no if an etcd cluster would lose quorum, and yes if it is known that each keeps it.
	Answer quorum.Answer `json:"answer"`
	// Zone is the zone that is gone, empty if the Nodes were named or selected.
	Zone string `json:"zone,omitempty"`
	// Nodes are the Nodes that are gone.
	Nodes []string `json:"nodes"`
	// Clusters are the etcd clusters with a member on one of them.
	Clusters []ClusterLoss `json:"clusters"`
	// Unknown are the Nodes of which it is not known which members they have.
	Unknown []Removal `json:"unknown"`
	// Notes describe what the answer leaves out.
	Notes []string `json:"notes"`
}

// A ClusterLoss describes one etcd cluster without the Nodes that are gone.
type ClusterLoss struct {
	ID v1alpha1.ClusterID `json:"id"`
	// Answer tells whether the etcd cluster keeps quorum.
	Answer quorum.Answer `json:"answer"`
	Reason quorum.Reason `json:"reason"`
	// Voters is the number of voters, and Remaining of those that would remain and are healthy. The
	// numbers are 0 if the reason is neither QuorumKept nor QuorumWouldBeLost.
	Voters    int `json:"voters"`
	Remaining int `json:"remaining"`
	Quorum    int `json:"quorum"`
	// Members are the members that are gone.
	Members []v1alpha1.MemberID `json:"members"`
	Message string              `json:"message"`
	// Oldest is the time of the oldest observation on which the answer is based, empty if there is
	// none.
	Oldest *time.Time `json:"oldest,omitempty"`
}

// NewWhatIf answers for the Nodes with these names. It returns an error if one does not exist.
func NewWhatIf(s State, nodes []string) (WhatIf, error) {
	s = s.sorted()
	names, err := s.uniqueNodes(nodes)
	if err != nil {
		return WhatIf{}, err
	}
	w := WhatIf{
		Version: Version, Kind: "WhatIf", Answer: quorum.Yes, Nodes: names,
		Clusters: []ClusterLoss{}, Unknown: []Removal{}, Notes: []string{},
	}
	clusters, requests := s.recentClusters(), map[string][]quorum.Request{}
	for _, name := range names {
		n := s.node(name)
		selected, r, unknown := s.membersOf(n, clusters)
		for _, c := range selected {
			requests[c.Name] = append(requests[c.Name], r)
		}
		if unknown.Reason != "" {
			message, _, _ := strings.Cut(unknown.Message, "\n")
			w.Unknown = append(w.Unknown, Removal{
				Node: name, Answer: quorum.Unknown, Reason: unknown.Reason, Message: message,
			})
			w.Answer = quorum.Unknown
		}
	}
	for _, c := range clusters {
		if len(requests[c.Name]) > 0 {
			loss := s.clusterLoss(c, requests[c.Name])
			w.Clusters = append(w.Clusters, loss)
			// No counts before unknown, and that before yes.
			if loss.Answer == quorum.No || w.Answer == quorum.Yes {
				w.Answer = loss.Answer
			}
		}
	}
	return w, nil
}

// NewZoneWhatIf answers for all Nodes of a zone. It returns an error if no Node is in the zone.
func NewZoneWhatIf(s State, zone string) (WhatIf, error) {
	s = s.sorted()
	nodes, err := s.nodesIn(zone)
	if err != nil {
		return WhatIf{}, err
	}
	w, err := NewWhatIf(s, nodes)
	w.Zone, w.Notes = zone, append(w.Notes, s.withoutZone()...)
	return w, err
}

// membersOf returns the clusters that may have a member on the Node, with the request about it. If
// the verdict has a reason, it is not known which members the Node has.
func (s State) membersOf(
	n *corev1.Node, clusters []*v1alpha1.EtcdCluster,
) (selected []*v1alpha1.EtcdCluster, r quorum.Request, unknown quorum.Decision) {
	r, err := quorum.RequestFor(n)
	r.DryRun = true
	if err != nil {
		return nil, r, words.Combine(quorum.RefuseUnparsable(r, err))
	}
	selected, decision := quorum.SelectOrDecide(clusters, r)
	if len(selected) == 0 && decision.Allowed {
		verdict := quorum.DecideUnlabelled(clusters, r) // One list may have a member there.
		decision = quorum.Combine([]quorum.Verdict{verdict})
	}
	if len(selected) > 0 || decision.Allowed {
		return selected, r, quorum.Decision{}
	}
	return nil, r, words.Explain(decision)
}

// clusterLoss describes a recent cluster without the nodes of the requests.
func (s State) clusterLoss(c *v1alpha1.EtcdCluster, requests []quorum.Request) ClusterLoss {
	view := s.view(c)
	v, answer := quorum.DecideTogether(view, requests)
	loss := ClusterLoss{
		ID: v.Cluster, Answer: answer, Reason: v.Reason,
		Voters: v.Facts.Tally.Voters, Remaining: v.Facts.Tally.Healthy, Quorum: v.Facts.Tally.Quorum,
		Members: append([]v1alpha1.MemberID{}, v.Members...), Message: words.Message(v),
	}
	if answer == quorum.Yes && v.Reason == quorum.QuorumKept && s.FlagsProblem != "" {
		loss.Answer, loss.Reason, loss.Message = quorum.Unknown, quorum.CannotDecide, s.FlagsProblem
	}
	for _, o := range observation.AcceptedWithNonce(c, view.Nonces) {
		if at := o.Time.UTC(); loss.Oldest == nil || at.Before(*loss.Oldest) {
			loss.Oldest = &at
		}
	}
	return loss
}
