package quorum

import (
	"slices"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/place"
)

// DecideUnlabelled decides for a node without the etcd label from cached data, without a probe.
// It refuses because of the missing label; with the label, Decide applies. It refuses for a node
// that may have a member (place.Unlabelled), and for one whose agent found a server that has never
// identified itself. Until the agent of the node has reported, weaker sources suffice.
func DecideUnlabelled(clusters []*v1alpha1.EtcdCluster, r Request) Verdict {
	certain, possible := r.clustersWith(clusters, place.Unlabelled), r.clustersWith(clusters, r.unlabelled())
	switch {
	case len(certain) > 0:
		return refuseClusterUnlabelled(certain[0], r)
	case len(r.Announced) > 0:
		a := r.Announced[0]
		return refuseUnlabelled(r, a.Cluster, []v1alpha1.MemberID{a.Member}, nil)
	case len(r.Unverified) > 0:
		return refuseUnlabelled(r, "", nil, nil)
	case len(possible) > 0:
		return refuseUnreported(possible[0], r)
	}
	return Verdict{
		Allowed: true, Reason: NothingToProtect, Final: true,
		Facts: Facts{Finding: FoundNothingKnown, Request: r},
	}
}

// unlabelled returns the sources because of which the Node is not deleted without the label.
func (r Request) unlabelled() place.Source {
	if r.AgentSilent {
		return place.UnlabelledSilent
	}
	return place.Unlabelled
}

// refuseUnreported refuses because members may be on the node whose agent has not reported: the
// machine of an earlier Node may have registered this one, or one list has them at its address. The
// leader does not label it, because it may be another machine.
//
// One list is enough here: the agent of another node notices a member first, and the next deletion
// may come before a second one does. A false list delays the deletion of such nodes, and of no
// others, until their agents have reported. Only an etcd host can publish one: a worker can found a
// cluster of its own, but is then its only observer, and the lists of such a cluster do not count.
func refuseUnreported(c *v1alpha1.EtcdCluster, r Request) Verdict {
	members := place.Members(r.places(c), r.unlabelled())
	facts := Facts{Finding: FoundUnreported, Request: r, Members: members}
	facts.WasThere = slices.ContainsFunc(r.places(c), func(p place.Place) bool { return p.By&place.NameGivenUp != 0 })
	if !facts.WasThere {
		facts.Listers, facts.Others = listersOf(c, members, r)
	}
	return Verdict{
		Reason: UnknownMember, Cluster: observation.ClusterIDOf(c), Members: members, Final: true, Facts: facts,
	}
}

// listersOf names the Nodes whose lists have one of the members at an address of the node, and
// those whose lists do not.
func listersOf(c *v1alpha1.EtcdCluster, members []v1alpha1.MemberID, r Request) (with, without []string) {
	for _, o := range place.Lists(c) {
		if slices.ContainsFunc(o.Members, func(m v1alpha1.MemberStatus) bool {
			return slices.Contains(members, m.ID) && observation.IsAtAddress(m, r.Addresses)
		}) {
			with = append(with, o.Node)
		} else {
			without = append(without, o.Node)
		}
	}
	return with, without
}

// refuseClusterUnlabelled refuses because the node has members of the cluster.
func refuseClusterUnlabelled(c *v1alpha1.EtcdCluster, r Request) Verdict {
	members := place.Members(r.places(c), r.unlabelled())
	doubtful := slices.DeleteFunc(slices.Clone(members), func(id v1alpha1.MemberID) bool {
		return slices.Contains(place.Members(r.places(c), place.Bound|place.Announced|place.Own|place.Granted), id)
	})
	return refuseUnlabelled(r, observation.ClusterIDOf(c), members, doubtful)
}

// refuseUnlabelled refuses because the label is missing. Doubtful members are assigned only by
// the node's name or address.
func refuseUnlabelled(r Request, c v1alpha1.ClusterID, members, doubtful []v1alpha1.MemberID) Verdict {
	return Verdict{
		Reason: UnknownMember, Cluster: c, Members: members, Final: true,
		Facts: Facts{Finding: FoundUnlabelled, Request: r, Members: doubtful},
	}
}
