package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/printable"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// A ZoneStatus describes the part of an etcd cluster that is in one zone.
type ZoneStatus struct {
	// Zone is empty for the voters without a known zone.
	Zone   string   `json:"zone"`
	Voters int      `json:"voters"`
	Nodes  []string `json:"nodes"`
	// HoldsQuorum reports whether the voters in other zones are fewer than quorum, healthy or not. It
	// is false if all Nodes are in one zone, and for one or two voters.
	HoldsQuorum bool `json:"holdsQuorum"`
	// Without tells whether the etcd cluster keeps quorum if the zone is lost now. It is empty
	// without a zone.
	Without quorum.Answer `json:"without,omitempty"`
}

// zoneStatus describes how the voters of a recent cluster are spread. Without any zone, the result
// is empty.
func (s State) zoneStatus(c *v1alpha1.EtcdCluster) []ZoneStatus {
	found, zones := []ZoneStatus{}, s.zones()
	if len(zones) == 0 {
		return found
	}
	for _, share := range quorum.Summarize(s.view(c)).Spread(zones) {
		if share.Voters == 0 {
			continue
		}
		status := ZoneStatus{
			Zone: share.Zone, Voters: share.Voters, Nodes: append([]string{}, share.Nodes...), HoldsQuorum: share.HoldsQuorum,
		}
		if share.Zone != "" {
			status.Without = s.answerWithout(c.Name, share)
		}
		found = append(found, status)
	}
	return found
}

// answerWithout returns the answer of NewZoneWhatIf about one cluster. It leaves out the Nodes on
// which nothing of etcd is known.
func (s State) answerWithout(cluster string, share quorum.ZoneShare) quorum.Answer {
	names := slices.Clone(share.Nodes)
	for i := range s.Nodes {
		if n := &s.Nodes[i]; observation.IsLabelled(n) && s.zoneOf(n) == share.Zone {
			names = append(names, n.Name)
		}
	}
	w, err := NewWhatIf(s, names)
	at := slices.IndexFunc(w.Clusters, func(c ClusterLoss) bool { return string(c.ID) == cluster })
	if err != nil || at < 0 || len(w.Unknown) > 0 {
		return quorum.Unknown
	}
	return w.Clusters[at].Answer
}

func zoneWarnings(status ClusterStatus) (all []Warning) {
	for _, zone := range status.Zones {
		if zone.HoldsQuorum {
			all = append(all, warningf(WarnZone, string(status.ID), "zone %s has %d of %s of etcd cluster %s, which cannot "+
				"keep quorum without it: %s", zone.Zone, zone.Voters, observation.Plural(status.Voters, "voter"), status.ID,
				strings.Join(zone.Nodes, ", ")))
		}
	}
	return all
}

// quorumZones describes the zones that hold a quorum of a cluster after a step.
func (s State) quorumZones() (texts []string) {
	for i := range s.Clusters {
		c := &s.Clusters[i]
		for _, share := range quorum.Summarize(s.view(c)).Spread(s.zones()) {
			if share.HoldsQuorum {
				texts = append(texts, fmt.Sprintf("after this step, zone %s holds a quorum of etcd cluster %s", share.Zone, c.Name))
			}
		}
	}
	slices.Sort(texts)
	return texts
}

// crowd returns the greatest number of voters of one cluster in the zone of the Node.
func (s State) crowd(name string) int {
	zones, most := s.zones(), 0
	for i := range s.Clusters {
		for _, share := range quorum.Summarize(s.view(&s.Clusters[i])).Spread(zones) {
			if share.Zone != "" && share.Zone == zones[name] {
				most = max(most, share.Voters)
			}
		}
	}
	return most
}

// replacementZone returns the zone in which the Node should be replaced: its own one, unless that
// holds a quorum and another one has room.
func (s State) replacementZone(n *corev1.Node) string {
	own := s.zoneOf(n)
	for i := range s.Clusters {
		shares := quorum.Summarize(s.view(&s.Clusters[i])).Spread(s.zones())
		holdsQuorum := slices.ContainsFunc(shares, func(z quorum.ZoneShare) bool { return z.Zone == own && z.HoldsQuorum })
		shares = slices.DeleteFunc(shares, func(z quorum.ZoneShare) bool { return z.Zone == own || !z.HasRoom })
		if holdsQuorum && len(shares) > 0 {
			fewest := func(a, b quorum.ZoneShare) int { return a.Voters - b.Voters }
			return slices.MinFunc(shares, fewest).Zone
		}
	}
	return own
}

// nodesIn returns the names of the Nodes in a zone, or an error that names the zones that exist.
func (s State) nodesIn(zone string) ([]string, error) {
	var nodes []string
	for i := range s.Nodes {
		if s.zoneOf(&s.Nodes[i]) == zone && zone != "" {
			nodes = append(nodes, s.Nodes[i].Name)
		}
	}
	if len(nodes) > 0 {
		return nodes, nil
	}
	known := joinSorted(slices.Collect(maps.Values(s.zones())))
	if known == "" {
		return nil, fmt.Errorf("no node has the label %s, so no zone is known; to use another label: --zone-label",
			s.zoneLabel())
	}
	return nil, fmt.Errorf("no node has the label %s=%s; the nodes have the zones %s",
		s.zoneLabel(), printable.Quote(zone), known)
}

// withoutZone returns notes about the members that are in no zone: those on a Node without the
// label, and those on no known Node.
func (s State) withoutZone() (notes []string) {
	var nodes, members []string
	for _, c := range s.recentClusters() {
		for _, share := range quorum.Summarize(s.view(c)).Spread(s.zones()) {
			if share.Zone == "" {
				nodes = append(nodes, share.Nodes...)
			}
		}
		for _, id := range quorum.Summarize(s.view(c)).WithoutNode {
			members = append(members, string(id))
		}
	}
	if outside := joinSorted(nodes); outside != "" {
		notes = append(notes, fmt.Sprintf("without the label %s, and so in no zone: %s", s.zoneLabel(), outside))
	}
	if outside := joinSorted(members); outside != "" {
		notes = append(notes, "on no known Node, and so in no zone: members "+outside)
	}
	return notes
}

// zoneLabel returns the label with the zone of a Node.
func (s State) zoneLabel() string { return cmp.Or(s.ZoneLabel, corev1.LabelTopologyZone) }

// zoneOf returns the zone of a Node, empty without the label.
func (s State) zoneOf(n *corev1.Node) string { return n.Labels[s.zoneLabel()] }

// zones returns the zone of each Node that has one.
func (s State) zones() map[string]string {
	zones := map[string]string{}
	for i := range s.Nodes {
		if zone := s.zoneOf(&s.Nodes[i]); zone != "" {
			zones[s.Nodes[i].Name] = zone
		}
	}
	return zones
}

// joinSorted joins the distinct names.
func joinSorted(names []string) string {
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ", ")
}
