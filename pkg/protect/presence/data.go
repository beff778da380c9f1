package presence

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/holdfast-dev/holdfast/pkg/printable"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// A dataOwner says in words whose the data in a directory is that nothing on the host names.
type dataOwner string

const (
	// ownerUnknown: the lists that would tell are missing, or older than the data.
	ownerUnknown dataOwner = "unknown"
	// ownerMember: a member of its cluster that is on this node as far as the EtcdCluster tells.
	ownerMember    dataOwner = "a member of this node"
	ownerElsewhere dataOwner = "which is bound to another node: a copy"
	ownerLeft      dataOwner = "which has left its cluster"
	ownerOther     dataOwner = "which no EtcdCluster describes"
)

// ownerOf returns whose the data in a directory is, by the IDs in its log.
//
// Data of an unknown cluster protects nothing, because it is that of a cluster in the cluster, or
// is not used any more. But before there is any EtcdCluster, its cluster may be the one that the
// agents are about to announce; and something that may start a server on it makes it doubtful.
func ownerOf(d evidence.Data, in Inputs) dataOwner {
	c := clusterOf(d.Ref, in)
	switch {
	case !in.ClustersKnown:
		return ownerUnknown
	case c != nil && observation.HasLeft(c, d.Ref.Member) && !d.Recent:
		return ownerLeft
	case slices.Contains(in.Announced, d.Ref), slices.Contains(boundMembers(in), d.Ref):
		return ownerMember
	case c == nil && len(in.Clusters) > 0 && d.Starter == "" && !d.Recent:
		return ownerOther
	case c == nil:
		return ownerUnknown
	case observation.IsBound(c, d.Ref.Member) && d.Recent:
		return ownerUnknown // it may be moving here
	case observation.IsBound(c, d.Ref.Member):
		return ownerElsewhere
	case observation.IsListedByAny(observation.Accepted(c), d.Ref.Member):
		return ownerMember
	}
	return ownerUnknown
}

// sortData returns a scan in which the data of members are servers that do not run, and the data
// whose owner is unknown are places that could not be read. The old data of a server is no server
// once its member has left. A unit that may start a server has other data, if the data that was
// found is that of no member here.
func sortData(scan evidence.Scan, in Inputs) evidence.Scan {
	data, unknown := slices.Clone(scan.Data), slices.Clone(scan.Unknown)
	var servers []evidence.FoundServer
	for _, f := range scan.Found {
		if f.Old != nil && !f.IsRunning() && !f.HasAnswered() && ownerOf(*f.Old, in) == ownerLeft {
			data = append(data, *f.Old)
		} else {
			servers = append(servers, f)
		}
	}
	found, starter := slices.Clone(servers), ""
	for _, d := range data {
		switch owner := ownerOf(d, in); {
		case slices.ContainsFunc(servers, func(f evidence.FoundServer) bool { return f.Ref == d.Ref }):
			// It is a copy of the data of a server that runs here.
		case owner == ownerMember:
			found = append(found, serverOfData(d))
		case owner == ownerUnknown:
			unknown = append(unknown, describeUnknownData(d, in))
		default:
			starter = cmp.Or(d.Starter, starter)
		}
	}
	if starter != "" && len(found) == 0 {
		unknown = append(unknown, starter+" may start etcd, and does not tell where its data is: "+
			"what was found is not that of a member of this node; remove it if its member no longer exists")
	}
	scan.Found, scan.Data, scan.Unknown = found, data, unknown
	return scan
}

// serverOfData returns the server that would run on the data.
func serverOfData(d evidence.Data) evidence.FoundServer {
	ref := d.Ref
	return evidence.FoundServer{Server: evidence.Server{
		Source: evidence.DataDirectory, Where: "data directory " + d.Dir + ", which nothing on the host names",
		HasData: new(true), Stored: &ref, Config: evidence.Config{DataDir: d.Dir},
	}}
}

func describeUnknownData(d evidence.Data, in Inputs) string {
	what := fmt.Sprintf("%s has the data of member %s of cluster %s",
		printable.Line(d.Dir), d.Ref.Member, d.Ref.Cluster)
	advice := "if it is not needed, move it to another machine"
	switch {
	case !in.ClustersKnown:
		return what + ", and the EtcdClusters, which tell whether it is a member, could not be read"
	case d.Starter != "":
		return fmt.Sprintf("%s, which no EtcdCluster describes, and %s may start it; %s", what, d.Starter, advice)
	case len(in.Clusters) == 0:
		return fmt.Sprintf("%s, and there is no EtcdCluster that tells whether it is a member; %s", what, advice)
	case d.Recent:
		return what + ", which ran here within the last ten minutes, and its cluster's lists may be older"
	}
	return what + ", and no confirmed list tells whether it is a member"
}

// describeUnusedData returns what protects nothing, for the condition's message.
func describeUnusedData(scan evidence.Scan, in Inputs) []string {
	var words []string
	for _, d := range scan.Data {
		if owner := ownerOf(d, in); owner != ownerUnknown && owner != ownerMember {
			words = append(words, fmt.Sprintf("%s has unused data of etcd: of member %s of cluster %s, %s",
				printable.Line(d.Dir), d.Ref.Member, d.Ref.Cluster, owner))
		}
	}
	return words
}
