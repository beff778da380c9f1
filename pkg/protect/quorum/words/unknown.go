package words

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/printable"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// quorumUnknown is part of the messages for the reason CannotSee.
const quorumUnknown = "it is not known whether the %s would break quorum"

// unknown words a refusal that makes no statement about quorum.
func (w writer) unknown() string {
	switch w.Finding {
	case quorum.FoundNoList:
		return w.noList()
	case quorum.FoundRejoin:
		return w.rejoin()
	case quorum.FoundContested:
		return w.contested()
	case quorum.FoundOpenNode:
		fact := fmt.Sprintf("node %s is not being drained: it is neither cordoned nor marked by a program that removes or "+
			"restarts nodes, so the eviction of its guard pod is refused", w.node)
		return w.refusal([]string{fact},
			fmt.Sprintf("to drain the node: kubectl drain %s --ignore-daemonsets (it cordons the node first)", w.node),
			"if a program evicts pods from nodes that stay (descheduler), exclude the namespace holdfast-system from it")
	case quorum.FoundNoCluster:
		return w.noCluster()
	case quorum.FoundUnverified:
		return w.unverified()
	case quorum.FoundUnattributed:
		fact := fmt.Sprintf("node %s has the label of an etcd member (%s), but its member is unknown: "+
			"no EtcdCluster has a member there, and the node announces none", w.node, observation.EtcdMemberLabel)
		return w.refusal([]string{fact}, fmt.Sprintf("check what its agent reports: %s; "+
			"an agent that runs and finds no etcd removes the label", w.describeNode()))
	case quorum.FoundUnparsable:
		fact := fmt.Sprintf("the etcd members that node %q announces cannot be read: %v", w.node, w.Problem)
		return w.refusal([]string{fact},
			w.again()+" in a minute: the Holdfast agent of the node rewrites the annotation; "+
				"if it does not, see the log of that agent",
			fmt.Sprintf("only if you know that the node has no etcd with data, and no agent runs there%s: "+
				"kubectl annotate node %s %s- %s-",
				needsVerb, w.node, observation.AnnouncementAnnotation, observation.UnverifiedAnnotation))
	case quorum.FoundUnlabelled:
		return w.unlabelled()
	case quorum.FoundUnreported:
		return w.unreported()
	case quorum.NoFinding, quorum.FoundNothing, quorum.FoundNothingKnown, quorum.FoundOnlyMember, quorum.FoundTally:
	}
	return ""
}

// describeNode returns the command that shows what the agent of the node reports.
func (w writer) describeNode() string {
	return fmt.Sprintf("kubectl describe node %s (condition %s)", w.node, observation.EtcdMemberCondition)
}

// noList explains that no confirmed member list is available, with the state of each observer.
func (w writer) noList() string {
	has := "has " + joinIDs(w.Members)
	if len(w.Members) == 0 {
		has = "may have a member"
	}
	facts := []string{fmt.Sprintf("cannot see etcd cluster %s, which %s on node %s: %s; "+quorumUnknown,
		w.id, has, w.node, missing(w.Silence.Missing), w.verb.Noun)}
	for _, a := range w.Silence.Agents {
		facts = append(facts, "  node "+a.Node+": "+agent(a))
	}
	if len(w.Silence.Agents) == 0 {
		facts = append(facts, "  no agent to ask: no member is bound to a Node yet "+
			"(the webhook's leader binds it within seconds of an agent's announcement)")
	}
	if why := printable.Line(w.Silence.Unbound); why != "" {
		facts = append(facts, "  "+why)
	}
	check := "check what the agents report: " + w.describeNode() + ", and their logs; then " + w.again() + "\n" +
		"    (if this is the etcd of kube-apiserver, it has quorum, because your request passed through it: " +
		"check the agents' certificates and the network)"
	if w.Silence.IsEachNodeGone {
		check = "all nodes of this etcd cluster that Holdfast knew are gone. When their machines are gone too, resolve the " +
			"grant of each of them (kubectl holdfast settle NODE): then the members of the nodes that exist are bound"
	}
	note, retire := "", fmt.Sprintf("kubectl delete etcdcluster %s", w.id)
	if w.Request.AnnouncesMemberOf(w.id) {
		note = needsVerb
		retire = fmt.Sprintf("kubectl annotate node %s %s-, then %s (in the other order, the leader creates it again)",
			w.node, observation.AnnouncementAnnotation, retire)
	}
	return w.refusal(facts, check,
		"if etcd has already lost quorum, keep this node even if its member is dead: "+
			"the cluster may have to be restored from its disk",
		"only if this etcd cluster no longer exists anywhere"+note+": "+retire)
}

// missing words why no member list counts.
func missing(m quorum.MissingList) string {
	switch m {
	case quorum.NoObserverLeft:
		return "no node with a role is left to observe it; if you trust a node with a member: " + observation.RoleCommand
	case quorum.NoConfirmedList:
		return "no agent returned a member list that a quorum confirmed"
	case quorum.NoEqualLists:
	}
	return "no two nodes returned the same confirmed member list, and no node has a role; if you trust a node with a " +
		"member, so that its word counts alone: " + observation.RoleCommand
}

// agent words how an agent answered the probe request.
func agent(a quorum.AgentState) string {
	switch a.Answer {
	case quorum.AgentGone:
		return "it is gone, together with its agent"
	case quorum.AgentWithoutRole:
		return fmt.Sprintf("node %s is no observer, because it lacks a role", a.Node)
	case quorum.AgentUnconfirmed:
		return fmt.Sprintf("node %s is no observer: only that node claims member %s", a.Node, a.MemberID)
	case quorum.AgentSilent:
		return "its agent has not answered; its last report is from " + a.Last.Time.UTC().Format(time.RFC3339)
	case quorum.AgentListsAlone:
		return "its agent lists " + quorum.ListKey(a.Last) + ", and no second node has answered with the same list"
	case quorum.AgentWithoutList:
		return "its agent answered without a confirmed member list"
	case quorum.AgentFailed:
		return "its agent reports: " + printable.Quote(a.Last.Problem)
	case quorum.AgentNeverReported, quorum.AgentUnknown:
	}
	return "its agent has never reported"
}

// rejoin explains that an unknown member may be on the node.
func (w writer) rejoin() string {
	n, ids := len(w.Members), joinIDs(w.Members)
	fact := fmt.Sprintf("node %s may have an unknown member of etcd cluster %s: "+
		"%s, which was on it, left the member list, and %s %s in that list, but bound to no observer; "+
		"etcd on this node may have joined again as %s, and the agent of node %s has not reported which member it is",
		w.node, w.id, joinIDs(w.Assigned), ids, agree(n, "is", "are"), agree(n, "that member", "one of them"), w.node)
	steps := []string{
		fmt.Sprintf("check that the agent of this node runs, and what it reports: %s; then %s", w.describeNode(), w.again()),
		fmt.Sprintf("if %s runs on another machine: check that an agent runs there, and, if other nodes with etcd have a "+
			"role, that its Node has one too (%s); within seconds of its announcement, the %s of this node can be decided "+
			"without that member", ids, observation.RoleCommand, w.verb.Noun),
	}
	if w.Request.AnnouncesMemberOf(w.id) {
		steps = append(steps, fmt.Sprintf("only if you know that this machine no longer has etcd with data%s: "+
			"kubectl annotate node %s %s-, and %s in a minute",
			needsVerb, w.node, observation.AnnouncementAnnotation, w.again()))
	}
	return w.refusal([]string{fact}, steps...)
}

// contested explains that the node announces members that are bound to another Node.
func (w writer) contested() string {
	facts := []string{fmt.Sprintf("node %s announces %s of etcd cluster %s, but another Node has it: %s the "+
		"wrong Node would lose a member without counting it", w.node, joinIDs(w.Members), w.id, w.verb.Gerund)}
	var others []string
	for _, h := range w.Holders {
		fact := fmt.Sprintf("  member %s is bound to node %s, which exists", h.Member, h.Node)
		if h.HasAnswered {
			fact += " and whose agent runs"
		}
		facts = append(facts, fact)
		if !slices.Contains(others, h.Node) {
			others = append(others, h.Node)
		}
	}
	names := strings.Join(others, " ")
	return w.refusal(facts,
		fmt.Sprintf("keep both Nodes until you know on which host the member runs: "+
			"kubectl describe node %s %s (condition %s)", w.node, names, observation.EtcdMemberCondition),
		fmt.Sprintf("only if the member does not run on the host of node %s any more%s: "+
			"kubectl annotate node %[1]s %[3]s-, then kubectl delete etcdcluster %[4]s while it has no open grant; "+
			"the agents announce again what they find", names, needsVerb, observation.AnnouncementAnnotation, w.id))
}

// noCluster explains that an announced cluster has no EtcdCluster.
func (w writer) noCluster() string {
	fact := fmt.Sprintf("cannot see etcd cluster %s, of which node %s announces %s: it has no EtcdCluster; "+quorumUnknown,
		w.id, w.node, joinIDs(w.Members), w.verb.Noun)
	return w.refusal([]string{fact},
		"wait: the webhook's leader creates the EtcdCluster within seconds of the announcement; "+
			"check that a webhook replica runs and leads, then "+w.again(),
		"if the leader does not create it because there are too many (event EtcdClusterNotCreated of the node): kubectl "+
			"get etcdclusters, then kubectl delete etcdcluster for those that no longer exist, or raise the webhook's flag "+
			"--max-etcd-clusters; the leader then creates this one",
		fmt.Sprintf("only if this etcd cluster no longer exists anywhere%s: kubectl annotate node %s %s-",
			needsVerb, w.node, observation.AnnouncementAnnotation))
}

// unverified explains that servers on the node have never identified themselves.
func (w writer) unverified() string {
	fact := fmt.Sprintf("node %s has an etcd server that has never identified itself (%s): "+
		"its cluster and member ID are unknown, so it is not known what the %s would break",
		w.node, joinPlaces(w.Request.Unverified), w.verb.Noun)
	return w.refusal([]string{fact},
		"find the cause, and what the agent has tried: "+w.describeNode(),
		"give the agent on this node a client certificate that this etcd accepts (--etcd-ca, --etcd-cert, --etcd-key); "+
			"the agent then identifies the server within seconds, and the "+w.verb.Noun+" can be decided",
		"if it is a leftover and not a member of any cluster: stop it, move its data directory away, and "+w.again())
}

// joinPlaces lists the first places of unidentified servers.
func joinPlaces(places []string) string {
	return printable.Join(printable.First(places, 4), ", ", printable.Quote)
}

// unlabelled explains that the label is missing.
func (w writer) unlabelled() string {
	content := fmt.Sprintf("a member of etcd cluster %s", w.id)
	if w.id == "" {
		content = fmt.Sprintf("an etcd server that has never identified itself (%s)", joinPlaces(w.Request.Unverified))
	}
	fact := fmt.Sprintf("node %s has %s, but its label %s is missing; Holdfast reviews the deletion only with the label",
		w.node, content, observation.EtcdMemberLabel)
	return w.refusal([]string{fact}, append([]string{
		"wait a few seconds and delete the node again: Holdfast restores the label",
		"or restore it yourself: " + w.labelCommand(),
	}, removeGone(w.Members)...)...)
}

// unreported explains that members may be on a node whose agent has not reported.
func (w writer) unreported() string {
	steps, why, rest := []string{
		"wait until the agent of this node has reported, within seconds of its start, and delete the node again: " +
			w.describeNode(),
	}, "", ""
	if w.WasThere {
		why = "an earlier Node of this name had " + agree(len(w.Members), "it", "them")
		steps = append(steps, "if no agent can run on this node, set the label, and delete the node again: "+
			"Holdfast then reviews the deletion: "+w.labelCommand())
		steps = append(steps, removeGone(w.Members)...)
	} else {
		with := strings.Join(w.Listers, ", ")
		why = fmt.Sprintf("node %s lists it at an address of this node", with)
		if len(w.Others) > 0 {
			rest = fmt.Sprintf("; the list of node %s does not have it there", strings.Join(w.Others, ", "))
		}
		steps = append(steps, fmt.Sprintf("if no agent can run on this node, find out on another etcd node than %s whether "+
			"the member is on this machine: etcdctl member list", with))
	}
	fact := fmt.Sprintf("node %s may have %s of etcd cluster %s: %s, and the agent of this node has not reported whether "+
		"etcd runs here%s", w.node, joinIDs(w.Members), w.id, why, rest)
	return w.refusal([]string{fact}, steps...)
}

func (w writer) labelCommand() string {
	return "kubectl label node " + w.node + " " + observation.EtcdMemberLabel + "=" + observation.EtcdMemberLabelValue
}

// removeGone returns the steps for members that are assigned to the node only by its name or
// address.
func removeGone(doubtful []v1alpha1.MemberID) (steps []string) {
	for _, m := range doubtful {
		steps = append(steps, fmt.Sprintf("if holdfast-agent inspect finds neither a server nor data of member %[1]s on "+
			"this machine, and the machine that had its name or address before is permanently gone: "+
			"etcdctl member remove %[1]s", m))
	}
	return steps
}
