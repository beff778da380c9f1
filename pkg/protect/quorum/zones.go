package quorum

import (
	"maps"
	"slices"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// A ZoneShare is the part of an etcd cluster that is in one zone.
type ZoneShare struct {
	// Zone is empty for the voters without a known zone: of a Node without the label, or of none.
	Zone string
	// Voters is the number of voters that are in the zone, or may be. Nodes are where they are.
	Voters int
	Nodes  []string
	// HoldsQuorum reports whether the voters outside of the zone are fewer than quorum, healthy or
	// not, so that the loss of the zone costs quorum. It is false if all Nodes are in one zone, and
	// for one or two voters: nothing can be spread there.
	HoldsQuorum bool
	// HasRoom reports whether another voter of the cluster may move to the zone, so that the zone
	// holds no quorum then.
	HasRoom bool
}

// Spread returns how the voters of the cluster are spread over zones, sorted by zone. The zones are
// those of all Nodes, by name; a zone without a voter is in the result too. If no list is known,
// the result is empty.
func (o Summary) Spread(zones map[string]string) []ZoneShare {
	if !o.Known {
		return nil
	}
	shares := map[string]*ZoneShare{}
	for _, zone := range zones {
		shares[zone] = &ZoneShare{Zone: zone}
	}
	canSpread := o.Voters > 2 && len(shares) > 1
	for _, m := range o.Members {
		if m.Count == CountsLearner {
			continue
		}
		for zone, nodes := range o.snapshot.zonesOf(m.ID, zones) {
			if shares[zone] == nil {
				shares[zone] = &ZoneShare{Zone: zone}
			}
			shares[zone].Voters++
			shares[zone].Nodes = append(shares[zone].Nodes, nodes...)
		}
	}
	var found []ZoneShare
	for _, zone := range slices.Sorted(maps.Keys(shares)) {
		share := *shares[zone]
		slices.Sort(share.Nodes)
		share.Nodes = slices.Compact(share.Nodes)
		share.HoldsQuorum = zone != "" && canSpread && !o.keepsQuorumWithout(share.Voters)
		share.HasRoom = zone != "" && canSpread && o.keepsQuorumWithout(share.Voters+1)
		found = append(found, share)
	}
	return found
}

// keepsQuorumWithout reports whether the other voters are a quorum, healthy or not.
func (t Tally) keepsQuorumWithout(voters int) bool { return t.Voters-voters >= t.Quorum }

// zonesOf returns the zones where the member is or may be, and the Nodes in each of them.
func (s Snapshot) zonesOf(id v1alpha1.MemberID, zones map[string]string) map[string][]string {
	found := map[string][]string{}
	for _, b := range s.nodesOf[id] {
		found[zones[b.Node]] = append(found[zones[b.Node]], b.Node)
	}
	if len(found) == 0 {
		found[""] = nil
	}
	return found
}
