package report

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

// A State is what a reader has read from the API server.
type State struct {
	// Clusters and Nodes are complete lists.
	Clusters []v1alpha1.EtcdCluster
	Nodes    []corev1.Node
	// GuardPods are the names of the guard pods. If they could not be read, GuardProblem is the
	// reason.
	GuardPods    []string
	GuardProblem string
	// MinRemainingTolerance is that of the webhook.
	MinRemainingTolerance int
	// StuckHoldAfter is the age of a hold after which it needs attention, as the webhook's flag
	// sets it. 0 stands for the default of the flag.
	StuckHoldAfter time.Duration
	// Departures has the marks that count for the webhook.
	Departures departure.Table
	// ZoneLabel is the label with the zone of a Node, empty for the default of the webhook's flag.
	ZoneLabel string
	// FlagsProblem is why the flags of the webhook are not known. The fields above may then be wrong,
	// so no voter may go.
	FlagsProblem string
	Now          time.Time
}

// sorted returns the state with its lists sorted by name.
func (s State) sorted() State {
	s.Clusters, s.Nodes = slices.Clone(s.Clusters), slices.Clone(s.Nodes)
	slices.SortFunc(s.Clusters, func(a, b v1alpha1.EtcdCluster) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(s.Nodes, func(a, b corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	return s
}

// node returns the Node with this name, nil if there is none.
func (s State) node(name string) *corev1.Node {
	at := slices.IndexFunc(s.Nodes, func(n corev1.Node) bool { return n.Name == name })
	if at < 0 {
		return nil
	}
	return &s.Nodes[at]
}

// recentClusters returns the clusters without the observations of silent agents.
func (s State) recentClusters() []*v1alpha1.EtcdCluster {
	found := make([]*v1alpha1.EtcdCluster, len(s.Clusters))
	for i := range s.Clusters {
		found[i] = observation.Recent(&s.Clusters[i], s.Now)
	}
	return found
}

// view returns the view of one recent cluster.
func (s State) view(c *v1alpha1.EtcdCluster) quorum.View {
	v := quorum.View{
		Cluster: c, Nodes: map[string]observation.NodeState{}, Now: s.Now, MinRemainingTolerance: s.MinRemainingTolerance,
	}
	if c.Spec.Nonce != "" {
		v.Nonces = []string{c.Spec.Nonce}
	}
	nodes := make([]observation.AnnouncingNode, len(s.Nodes))
	for i := range s.Nodes {
		n := &s.Nodes[i]
		nodes[i] = observation.NodeOf(n)
		v.Nodes[n.Name] = observation.StateOf(n, s.Departures)
	}
	v.PossibleNodes = quorum.PossibleNodes(c, nodes)
	for _, b := range c.Spec.Members {
		addMissing(v.Nodes, b.Node)
	}
	for _, g := range c.Spec.Grants {
		addMissing(v.Nodes, g.Node)
	}
	return v
}

// addMissing adds a Node that does not exist: the list of Nodes is complete.
func addMissing(nodes map[string]observation.NodeState, name string) {
	if _, exists := nodes[name]; !exists {
		nodes[name] = observation.NodeState{Known: true}
	}
}

// decide decides about the deletion of one Node, as the webhook decides about a dry run.
func (s State) decide(n *corev1.Node) quorum.Decision {
	if n.DeletionTimestamp != nil {
		return quorum.Decision{Allowed: true, Reason: quorum.Deleting}
	}
	r, err := quorum.RequestFor(n)
	r.DryRun = true
	clusters := s.recentClusters()
	if !r.Labelled {
		return words.Combine(quorum.DecideUnlabelled(clusters, r))
	}
	if err != nil {
		return words.Combine(quorum.RefuseUnparsable(r, err))
	}
	selected, decision := quorum.SelectOrDecide(clusters, r)
	if len(selected) == 0 {
		return words.Explain(decision)
	}
	verdicts := make([]quorum.Verdict, len(selected))
	for i, c := range selected {
		verdicts[i] = quorum.Decide(s.view(c), r)
	}
	return words.Combine(verdicts...)
}

// A Removal is the answer to the question whether a Node may be removed now, on its own.
type Removal struct {
	Node   string        `json:"node"`
	Answer quorum.Answer `json:"answer"`
	Reason quorum.Reason `json:"reason"`
	// Message explains the answer. That of a refusal has the next steps.
	Message  string   `json:"message,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

// removal returns the answer for one Node from the state.
func (s State) removal(n *corev1.Node) Removal {
	d := s.decide(n)
	if d.Allowed && d.Reason == quorum.QuorumKept && s.FlagsProblem != "" {
		return Removal{
			Node: n.Name, Answer: quorum.Unknown, Reason: quorum.CannotDecide,
			Message: s.FlagsProblem + "; to ask the webhook: kubectl holdfast can-remove " + n.Name,
		}
	}
	return Removal{
		Node: n.Name, Answer: quorum.AnswerOf(d.Reason, d.Allowed), Reason: d.Reason,
		Message: d.Message, Warnings: d.Warnings,
	}
}

// Combined returns the answer about several Nodes, each on its own: no counts before unknown, and
// that before yes.
func Combined(removals []Removal) quorum.Answer {
	all := quorum.Yes
	for _, r := range removals {
		if r.Answer == quorum.No || all == quorum.Yes {
			all = r.Answer
		}
	}
	return all
}
