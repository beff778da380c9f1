package presence

import (
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// membersToAnnounce returns the members to announce while the node holds a member: those that
// answered, and those that were announced before and have not provably left. A member that does not
// answer now is still a member.
//
// A server that does not answer and whose log names a member that has left is announced as well:
// the agent may have restarted since it found the removal (H19). So is one whose log names a
// member that is bound to this Node, and one that has the log open: it runs as the member. No
// other member is announced by a log alone, because the data may be a copy of that of another
// host.
func membersToAnnounce(scan evidence.Scan, held []evidence.FoundServer, in Inputs) []evidence.MemberRef {
	var refs []evidence.MemberRef
	isSilent := false
	for _, f := range held {
		if f.HasAnswered() {
			refs = append(refs, f.Ref)
			continue
		}
		isSilent = true
		if f.Stored != nil && (f.IsLocked || canDropAnnouncement(clusterOf(*f.Stored, in), f.Stored.Member, false) ||
			slices.Contains(boundMembers(in), *f.Stored)) {
			refs = append(refs, *f.Stored)
		}
	}
	isIncomplete := isSilent || !scan.IsComplete() || !in.ClustersKnown
	for _, ref := range in.Announced {
		c := clusterOf(ref, in)
		isRemoved := slices.ContainsFunc(scan.Found, func(f evidence.FoundServer) bool { return f.Removed && f.Ref == ref })
		if !isRemoved && !canDropAnnouncement(c, ref.Member, isSilent) && !isStale(c, ref.Member, isIncomplete) {
			refs = append(refs, ref)
		}
	}
	return observation.SortRefs(refs)
}

// clusterOf returns the cached EtcdCluster of a member, or nil.
func clusterOf(ref evidence.MemberRef, in Inputs) *v1alpha1.EtcdCluster {
	for i := range in.Clusters {
		if observation.ClusterIDOf(&in.Clusters[i]) == ref.Cluster {
			return &in.Clusters[i]
		}
	}
	return nil
}

// HasNoMemberOf reports whether a complete scan proves that the host has no member of the cluster.
// Each server that it found has left its cluster, has no data, or has answered as a member of
// another cluster. No other data is that of a member of the cluster, and nothing may start a server
// whose data was not found.
func HasNoMemberOf(cluster v1alpha1.ClusterID, scan evidence.Scan) bool {
	isDoubtful := func(d evidence.Data) bool { return d.Ref.Cluster == cluster || d.Starter != "" }
	if slices.ContainsFunc(scan.Data, isDoubtful) {
		return false
	}
	return scan.IsComplete() && !slices.ContainsFunc(scan.Found, func(f evidence.FoundServer) bool {
		isEmpty := !f.IsRunning() && f.HasData != nil && !*f.HasData
		isOther := f.HasAnswered() && f.Ref.Cluster != cluster
		return !f.Removed && !isEmpty && !isOther
	})
}

// canDropAnnouncement reports whether an announced member has left its cluster and no server here
// is assumed to be that member.
//
// A server that does not answer is assumed to be the removed member, whose data was left behind.
// The node then keeps its announcement: only with an announcement does the webhook decide by the
// cluster. While the cluster has a member that is bound to no Node, the silent server may be that
// member after it joined again, and the webhook refuses. Without the announcement, the old member
// would stay unknown after that.
func canDropAnnouncement(c *v1alpha1.EtcdCluster, m v1alpha1.MemberID, isSilent bool) bool {
	return c != nil && observation.HasLeft(c, m) && !isSilent
}

// isStale reports whether an announced member should be dropped, because every server here is
// another member and only this announcement still names the old one. This happens when etcd is
// restored from a snapshot, which gives the cluster a new ID. With the old announcement, the
// leader would create the EtcdCluster of the old ID again and again, and no agent could observe it.
func isStale(c *v1alpha1.EtcdCluster, m v1alpha1.MemberID, isIncomplete bool) bool {
	return !isIncomplete &&
		(c == nil || (!observation.IsBound(c, m) && !observation.IsListedByAny(observation.Accepted(c), m)))
}

// unverifiedServers returns the places of the servers that cannot be assigned to a member: they do
// not answer, and no unaccounted announced member can be theirs. A member that was announced with
// its own answer stays known when it hangs. A server that never answered may belong to a cluster
// that no agent knows.
//
// A server that UnverifiedAnnotation already names is not assigned to a member only because no
// other server is left for that member. It needs its own answer, a log that names the member, or
// the member's name.
func unverifiedServers(found []evidence.FoundServer, announced []evidence.MemberRef, in Inputs) []string {
	open := unaccountedMembers(found, announced)
	isRecorded := isRecordedUnverified(in)
	left := silentServers(found)
	// The most certain match first: the member in the log of the server, the same name, then a member
	// without a known name, then a server without a name.
	for _, matches := range []func(f evidence.FoundServer, r evidence.MemberRef) bool{
		func(f evidence.FoundServer, r evidence.MemberRef) bool { return f.Stored != nil && *f.Stored == r },
		func(f evidence.FoundServer, r evidence.MemberRef) bool {
			return configuredName(f) != "" && memberName(r, in) == configuredName(f)
		},
		func(f evidence.FoundServer, r evidence.MemberRef) bool {
			return !isRecorded(f) && configuredName(f) != "" && memberName(r, in) == ""
		},
		func(f evidence.FoundServer, _ evidence.MemberRef) bool {
			return !isRecorded(f) && configuredName(f) == ""
		},
	} {
		left = slices.DeleteFunc(left, func(f evidence.FoundServer) bool {
			at := slices.IndexFunc(open, func(r evidence.MemberRef) bool { return matches(f, r) })
			if at >= 0 {
				open = slices.Delete(open, at, at+1)
			}
			return at >= 0
		})
	}
	var where []string
	for _, f := range left {
		where = append(where, f.Where)
	}
	return where
}

// isRecordedUnverified returns a function that reports whether UnverifiedAnnotation names a server.
// An annotation that cannot be parsed may name any server.
func isRecordedUnverified(in Inputs) func(evidence.FoundServer) bool {
	recorded, err := observation.ParseUnverified(in.Annotations[observation.UnverifiedAnnotation])
	return func(f evidence.FoundServer) bool {
		return err != nil || slices.Contains(recorded, observation.ServerPlace(f.Where))
	}
}

// identifyServer returns the member that a server is, and its name. Without an answer, this is
// known from its log, or if this server alone does not answer and one announced member alone is
// unaccounted for.
func identifyServer(
	f evidence.FoundServer, held []evidence.FoundServer, announce []evidence.MemberRef, in Inputs,
) (evidence.MemberRef, string) {
	if f.HasAnswered() {
		return f.Ref, f.Name
	}
	open := unaccountedMembers(held, announce)
	if f.Stored != nil && slices.Contains(open, *f.Stored) {
		return *f.Stored, memberName(*f.Stored, in)
	}
	if len(open) != 1 || len(silentServers(held)) != 1 {
		return evidence.MemberRef{}, ""
	}
	name, configured := memberName(open[0], in), configuredName(f)
	if name != "" && configured != "" && name != configured {
		return evidence.MemberRef{}, ""
	}
	return open[0], name
}

// silentServers returns the servers that did not answer.
func silentServers(found []evidence.FoundServer) []evidence.FoundServer {
	return slices.DeleteFunc(slices.Clone(found), evidence.FoundServer.HasAnswered)
}

// unaccountedMembers returns the announced members with which no server identified itself.
func unaccountedMembers(found []evidence.FoundServer, announced []evidence.MemberRef) []evidence.MemberRef {
	return slices.DeleteFunc(slices.Clone(announced), func(r evidence.MemberRef) bool {
		return slices.ContainsFunc(found, func(f evidence.FoundServer) bool { return f.Ref == r })
	})
}

// configuredName returns the configured name of the server. It returns the empty string if the name
// contains a placeholder of systemd or of a shell, as a stopped unit can show it (the units of
// Flatcar contain %m, those of Debian %H).
func configuredName(f evidence.FoundServer) string {
	if strings.ContainsAny(f.Config.Name, "%$`{") {
		return ""
	}
	return f.Config.Name
}

// memberName returns the member's name in the cached lists, empty if no list contains it.
func memberName(ref evidence.MemberRef, in Inputs) string {
	c := clusterOf(ref, in)
	if c == nil {
		return ""
	}
	for _, o := range observation.Accepted(c) {
		if m, found := observation.FindMember(o, ref.Member); found && m.Name != "" {
			return m.Name
		}
	}
	return ""
}
