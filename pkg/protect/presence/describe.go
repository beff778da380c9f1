package presence

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/printable"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// FoundMessage returns the message of the event about a node on which a member was found. It states
// the protection, and not what is still missing: a server that has not been probed yet is no
// problem. The condition reports problems.
func (p Protection) FoundMessage() string {
	members := printable.Join(p.Announce, ", ", func(r evidence.MemberRef) string { return describeMember(r, "") })
	switch {
	case members == "":
		members = "etcd"
	case len(p.Unverified) == 0:
		return "this node is protected: it has " + members
	default:
		members += " and another etcd server"
	}
	return fmt.Sprintf("this node is protected: it has %s; the condition %s names the member as soon as its server has "+
		"answered", members, observation.EtcdMemberCondition)
}

// describeServer returns in one line what was found and where.
func describeServer(f evidence.FoundServer, ref evidence.MemberRef, name string) string {
	what := "unverified etcd server"
	switch isStopped := !f.IsRunning() && !f.HasAnswered(); {
	case ref != evidence.MemberRef{} && isStopped:
		what = "stopped " + describeMember(ref, name)
	case ref != evidence.MemberRef{}:
		what = describeMember(ref, name)
	case isStopped:
		what = "stopped etcd server with the data of a member"
	}
	return what + ", " + printable.Line(f.Where)
}

func describeMember(ref evidence.MemberRef, name string) string {
	member := string(ref.Member)
	if name != "" {
		member = fmt.Sprintf("%s (%s)", printable.Line(name), member)
	}
	return fmt.Sprintf("etcd member %s of cluster %s", member, ref.Cluster)
}

// maxText limits a text that is written into several annotations, in bytes. The names of a
// process's files have no limit.
const maxText = 1024

// conditionMessage returns the condition's message of a protected node: why the node is protected,
// where the state of its clusters is, the details, what could not be read, what protects nothing,
// and why its annotations do not protect it.
//
// The message contains nothing that a grant for another Node, or the death or join of another
// member changes. Each write of a Node makes the API server review the deletion that is in progress
// once more.
func conditionMessage(
	p Protection, refs []evidence.MemberRef, details []string, scan evidence.Scan, in Inputs,
) string {
	words := []string{p.Because}
	if len(refs) > 0 {
		words = append(words, "state of the cluster: kubectl get etcdclusters")
	}
	words = slices.Concat(words, describeDrain(in), details)
	for _, u := range scan.Unknown {
		words = append(words, "could not be read: "+u)
	}
	words = slices.Concat(words, describeUnusedData(scan, in), ineffectiveMarks(in.Annotations))
	if p.ProviderIDProblem != "" {
		words = append(words, p.ProviderIDProblem)
	}
	return strings.Join(words, "; ")
}

// describeDrain returns since when this node is drained, and how it comes back. The result is empty
// for a node that is not.
func describeDrain(in Inputs) []string {
	var at time.Time
	for _, c := range in.Clusters {
		for _, g := range c.Spec.Grants {
			if g.NodeUID == in.UID && g.Drain != nil && g.Drain.Time.After(at) {
				at = g.Drain.Time.Time
			}
		}
	}
	if at.IsZero() {
		return nil
	}
	return []string{fmt.Sprintf("a drain of this node was allowed at %s: its members count as lost until the node "+
		"is uncordoned (kubectl uncordon %s) and its agent has proven them healthy", at.UTC().Format(time.RFC3339), in.Node)}
}

// describeAwaited returns what has to happen before a node is freed to which a member is bound that
// was not found there. isGone means that a complete scan proves that the host has no such member.
// The lists of the other nodes decide; the own list is from the time when the member was here.
func describeAwaited(ref evidence.MemberRef, isGone bool, in Inputs) string {
	if !isGone {
		return fmt.Sprintf("member %s was not found; the node stays protected until a complete scan of the host "+
			"shows that neither its server nor its data is here", ref.Member)
	}
	fact := fmt.Sprintf("no server and no data of member %s was found; the node stays protected until ", ref.Member)
	with, isHealthy, without, finders := otherReports(ref, in)
	switch {
	case len(with)+len(without) == 0:
		return fact + fmt.Sprintf("another node reports a confirmed member list without the member: check that the agents "+
			"of the other etcd nodes run; if the cluster no longer exists, delete its object (%s)", retirement(ref.Cluster, in))
	case len(with) == 0:
		return fact + fmt.Sprintf("the webhook's leader has a new list without the member from node %s, within a minute",
			strings.Join(without, " or "))
	case len(without) == 0 && isHealthy:
		return fact + "the Node of the host where it runs announces it: the member answers, so do not remove it. " +
			"If it runs on another host, check the agent there; if it runs here, the agent does not recognize it: see " +
			"what `holdfast-agent inspect` finds"
	case len(without) == 0 && len(finders) > 0:
		return fact + fmt.Sprintf("the member runs on node %s: the agent there finds its server or its data, so start it "+
			"there, and do not remove it", strings.Join(finders, " or "))
	case len(without) == 0:
		return fact + fmt.Sprintf("the member is removed or, if the cluster no longer exists, its object is deleted; first "+
			"make sure that its data is neither on another host, nor on a disk that is not mounted, nor in a directory that "+
			"the agent does not know; then: etcdctl member remove %s, or %s", ref.Member, retirement(ref.Cluster, in))
	}
	return fact + fmt.Sprintf("no new list contains the member: the list of node %s does, that of node %s does not; "+
		"check that the agents of these nodes run", strings.Join(with, ", "),
		strings.Join(without, ", "))
}

// retirement returns the commands that delete the EtcdCluster of a cluster that no longer exists.
func retirement(id v1alpha1.ClusterID, in Inputs) string {
	command := fmt.Sprintf("kubectl delete etcdcluster %s", id)
	if !slices.ContainsFunc(in.Announced, func(r evidence.MemberRef) bool { return r.Cluster == id }) {
		return command
	}
	return fmt.Sprintf("kubectl annotate node %s %s-, then %s (in the other order, it is created again)",
		in.Node, observation.AnnouncementAnnotation, command)
}

// otherReports returns which other nodes have a last confirmed list with a member, and which have
// one without it. isHealthy means that one of the lists proves the member healthy. finders are the
// nodes whose agents find its server or its data.
func otherReports(ref evidence.MemberRef, in Inputs) (with []string, isHealthy bool, without, finders []string) {
	c := clusterOf(ref, in) // it binds the member
	for _, o := range observation.Confirmed(observation.Accepted(c)) {
		m, isListed := observation.FindMember(o, ref.Member)
		switch {
		case o.Node == in.Node:
		case isListed:
			with, isHealthy = append(with, o.Node), isHealthy || m.Healthy
		default:
			without = append(without, o.Node)
		}
	}
	for _, o := range c.Observations {
		if o.Node != in.Node && observation.Finds(o, ref.Member) {
			finders = append(finders, o.Node)
		}
	}
	return with, isHealthy, without, finders
}

// describeProblems returns what is wrong with a found server, for the condition's message. ref is
// the member that the server is, as far as that is known. After its start, an agent writes nothing
// about a known member that has not had the time to answer: it would write the Node twice.
func describeProblems(f evidence.FoundServer, ref evidence.MemberRef) []string {
	var words []string
	where := printable.Line(f.Where)
	isAwaited := f.Pending && ref != evidence.MemberRef{}
	if f.IsRunning() && !f.HasAnswered() && !isAwaited {
		problem := cmp.Or(printable.Clip(f.Problem, maxText), "it was not queried")
		words = append(words, fmt.Sprintf("%s did not answer: %s", where, problem))
	}
	for _, p := range f.Problems {
		words = append(words, fmt.Sprintf("%s: %s", where, printable.Quote(p)))
	}
	return words
}

// describeAbsence returns the message of a node without a member, with the servers that do not
// count.
func describeAbsence(scan evidence.Scan, in Inputs) string {
	var removed, inCluster int
	for _, f := range scan.Found {
		switch {
		case f.Removed:
			removed++
		case in.Ignores(f):
			inCluster++
		}
	}
	words := []string{"no etcd member is on this node"}
	if removed > 0 {
		words = append(words, observation.Plural(removed, "member")+" found on this node has left its cluster")
	}
	if inCluster > 0 {
		words = append(words, observation.Plural(inCluster, "etcd static pod")+
			" found on this node and not protected (--protect-static-pods=false)")
	}
	return strings.Join(append(words, describeUnusedData(scan, in)...), "; ")
}
