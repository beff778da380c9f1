package quorum

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/printable"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

func (t requestTarget) nothingMessage() string {
	return fmt.Sprintf("no member of etcd cluster %s is on node %s", observation.ClusterIDOf(t.Cluster), t.Node)
}

func (t requestTarget) keptMessage(tally memberTally) string {
	without := "node " + t.Node
	if t.Remove {
		without = "the member of " + without
	}
	return fmt.Sprintf("etcd cluster %s keeps quorum without %s: %d of %s must be healthy, and %d would remain",
		observation.ClusterIDOf(t.Cluster), without, tally.quorum, tally.votersAfter(), tally.healthy)
}

// keptWarning describes which members to remove after an allowed deletion. It warns if the next
// loss breaks quorum, if the member on the node is unhealthy, or if a database is full.
func (t requestTarget) keptWarning(tally memberTally) string {
	id, onNode := observation.ClusterIDOf(t.Cluster), tally.withStatus(statusOnNode)
	warnings := []string{t.removeNext(onNode)}
	switch {
	case tally.healthy == tally.quorum && t.Drain:
		warnings = append(warnings, fmt.Sprintf("until then, or until its machine is gone and replaced, "+
			"etcd cluster %s cannot lose another voter", id))
	case tally.healthy == tally.quorum:
		joined := ""
		switch more := tally.missingAfter(onNode); more {
		case 0:
		case 1:
			joined = " and 1 new voter has joined"
		default:
			joined = fmt.Sprintf(" and %d new voters have joined", more)
		}
		warnings = append(warnings, fmt.Sprintf("until %s left the member list%s, etcd cluster %s cannot lose another voter",
			agree(len(onNode), "it has", "they have"), joined, id))
	}
	warnings = append(warnings, t.changeSafely())
	for _, m := range onNode {
		if m.reason != "" {
			warnings = append(warnings, fmt.Sprintf("%s on node %s is not confirmed healthy at present", m.title(), t.Node))
		}
	}
	for _, m := range tally.withStatus(statusHealthy) {
		if notice := t.Nodes[m.node].Notice; notice.Key != "" {
			warnings = append(warnings, fmt.Sprintf("%s counts as healthy, but its node %s %s (%s)",
				m.title(), m.node, notice.Says, notice))
		}
	}
	for _, m := range tally.members {
		if slices.Contains(m.Alarms, noSpaceAlarm) {
			warnings = append(warnings, fmt.Sprintf("%s has the alarm NOSPACE: etcd cluster %s accepts no writes "+
				"until its database is compacted and defragmented, and the alarm is disarmed", m.title(), id))
		}
	}
	return strings.Join(warnings, "; ")
}

// removeNext describes which members to remove after the deletion of the node, before any other
// member. The list still counts them as voters, so the removal of a healthy member first would cost
// quorum.
func (t requestTarget) removeNext(onNode []memberState) string {
	id, titles := observation.ClusterIDOf(t.Cluster), joinTitles(onNode)
	if t.Drain {
		return fmt.Sprintf("%s counts as lost from now on; it counts again when node %s is back and open "+
			"(kubectl uncordon %s), and its agent has proven it healthy", titles, t.Node, t.Node)
	}
	if t.Remove {
		return fmt.Sprintf("%s counts as lost from now on; before any other member is removed, and before another node "+
			"goes, check that it has left the member list (%s)", titles, t.etcdctl("member list"))
	}
	if d := t.distributionOf(onNode[0]); removesWithNode(d) {
		return fmt.Sprintf("%s removes %s from etcd cluster %s after the deletion of node %s: "+
			"before any other member is removed, check that the member list has changed (%s)",
			d, titles, id, t.Node, t.etcdctl("member list"))
	}
	return fmt.Sprintf("after the deletion of node %s, remove %s from etcd cluster %s, and no other member before (%s)",
		t.Node, titles, id, joinCommands(onNode, t.removeWithoutNode))
}

// changeSafely describes which changes of the member list cost no quorum while the machine of the
// node is still to go. Holdfast does not review them, and etcd checks them against the members that
// serve now.
func (t requestTarget) changeSafely() string {
	switch {
	case t.Drain:
		return fmt.Sprintf("until node %s is back, add members as learners, and remove none", t.Node)
	case t.Remove:
		return "until then, add members as learners, and remove no other"
	}
	return fmt.Sprintf("until the machine of node %s is gone, add members as learners, and remove only its member", t.Node)
}

// missingAfter returns how many new voters the cluster needs to be able to lose a voter, once these
// members have left the list.
func (t memberTally) missingAfter(left []memberState) int {
	more := 0
	for voters := t.voters - len(left); t.healthy+more <= (voters+more)/2+1; {
		more++
	}
	return more
}

// refusalMessage explains that quorum would be lost: the arithmetic, every member, and the steps.
func (t requestTarget) refusalMessage(tally memberTally) string {
	id := observation.ClusterIDOf(t.Cluster)
	what, reserve, while := fmt.Sprintf("would break quorum of etcd cluster %s", id), "", ""
	if reserved := tally.required - tally.quorum; reserved > 0 {
		what = fmt.Sprintf("would leave etcd cluster %s without the required reserve", id)
		reserve = fmt.Sprintf(" and %d more must be in reserve", reserved)
	}
	if dead := tally.removableMembers(); tally.isSafeWithout(dead) {
		while = fmt.Sprintf(" while %s %s in its member list", joinTitles(dead), agree(len(dead), "is", "are"))
	}
	remaining := "none"
	if tally.healthy > 0 {
		remaining = fmt.Sprintf("only %d", tally.healthy)
	}
	lines := []string{fmt.Sprintf("%s node %s %s%s: %d of %s must be healthy%s, and %s would remain",
		t.Verb().Gerund, t.Node, what, while, tally.quorum, tally.votersAfter(), reserve, remaining)}
	if tally.sources != "" {
		lines = append(lines, "  "+tally.sources)
	}
	for _, m := range tally.members {
		lines = append(lines, "  "+m.title()+m.location()+": "+m.description())
	}
	return refusalText(t.Request, lines,
		slices.Concat(t.waitSteps(tally), t.repairSteps(tally), t.replaceSteps(tally), t.resolveSteps(tally))...)
}

// title returns the name and ID of a member. A member without a name has its first peer URL
// instead.
func (m memberState) title() string {
	switch {
	case m.Name != "":
		return fmt.Sprintf("%s (%s)", printable.Quote(m.Name), m.ID)
	case len(m.PeerURLs) > 0:
		return fmt.Sprintf("%s (%s)", printable.Quote(m.PeerURLs[0]), m.ID)
	}
	return string(m.ID)
}

// location names the node of a member unless its description does.
func (m memberState) location() string {
	if m.node == "" || m.status == statusOnNode || m.status == statusLost || m.status == statusAway {
		return ""
	}
	return " on node " + m.node
}

// description describes how the member counts, and why.
func (m memberState) description() string {
	detail, until := "", "it is lost"
	if m.status == statusAway {
		until = "its node is away"
	}
	if m.isPromotable {
		detail = fmt.Sprintf(" (a learner; it counts as a voter because it may be promoted before %s)", until)
	}
	switch m.status {
	case statusOnNode:
		if m.reason != "" {
			detail += "; not confirmed healthy: " + m.reason
		}
		return "on this node" + detail
	case statusLost:
		if m.stillAnswers {
			detail += "; it still answers, so its etcd is still running"
		}
		return "counts as lost: " + m.reason + detail
	case statusAway:
		if m.stillAnswers {
			detail += "; it still answers"
		}
		return "away for a while: " + m.reason + detail
	case statusUnproven:
		return "not confirmed healthy: " + m.reason
	case statusHealthy:
		return "healthy"
	case statusLearner:
	}
	return "learner, does not vote"
}

// Parts of the messages for the reason CannotSee.
const (
	quorumUnknown   = "it is not known whether the %s would break quorum"
	noConfirmedList = "no agent returned a member list that a quorum confirmed"
)

// cannotSeeMessage explains that no confirmed member list is available, with the state of each
// observer.
func (t requestTarget) cannotSeeMessage(members []v1alpha1.MemberID) string {
	id := observation.ClusterIDOf(t.Cluster)
	has := "has " + joinIDs(members)
	if len(members) == 0 {
		has = "may have a member"
	}
	facts := []string{fmt.Sprintf("cannot see etcd cluster %s, which %s on node %s: %s; "+quorumUnknown,
		id, has, t.Node, t.missingLists(), t.Verb().Noun)}
	for _, b := range distinctNodes(t.Cluster.Spec.Members) {
		facts = append(facts, "  node "+b.Node+": "+t.describeAgent(b))
	}
	if len(t.Cluster.Spec.Members) == 0 {
		facts = append(facts, "  no agent to ask: no member is bound to a Node yet "+
			"(the webhook's leader binds it within seconds of an agent's announcement)")
	}
	if why := unboundMessage(t.Cluster); why != "" {
		facts = append(facts, "  "+why)
	}
	check := "check what the agents report: kubectl describe node " + t.Node +
		" (condition " + observation.EtcdMemberCondition + "), and their logs; then " + t.again() + "\n" +
		"    (if this is the etcd of kube-apiserver, it has quorum, because your request passed through it: " +
		"check the agents' certificates and the network)"
	if t.isEachNodeGone() {
		check = "all nodes of this etcd cluster that Holdfast knew are gone. When their machines are gone too, resolve the " +
			"grant of each of them (kubectl holdfast settle NODE): then the members of the nodes that exist are bound"
	}
	note, retire := "", fmt.Sprintf("kubectl delete etcdcluster %s", id)
	if t.announcesMemberOf(id) {
		note = breakGlassVerbNote
		retire = fmt.Sprintf("kubectl annotate node %s %s-, then %s (in the other order, the leader creates it again)",
			t.Node, observation.AnnouncementAnnotation, retire)
	}
	return refusalText(t.Request, facts, check,
		"if etcd has already lost quorum, keep this node even if its member is dead: "+
			"the cluster may have to be restored from its disk",
		"only if this etcd cluster no longer exists anywhere"+note+": "+retire)
}

// isEachNodeGone reports whether members are bound, and none of them to a Node that may exist. Then
// no list can count, so no member can be bound.
func (s Snapshot) isEachNodeGone() bool {
	bindings := distinctNodes(s.Cluster.Spec.Members)
	return len(bindings) > 0 && !slices.ContainsFunc(bindings, func(b v1alpha1.Binding) bool {
		n := s.Nodes[b.Node]
		return !n.Known || n.UID == b.NodeUID
	})
}

// BoundCondition is the type of the condition of an EtcdCluster that reports whether every claim to
// a member is bound.
const BoundCondition = "Bound"

// unboundMessage returns the leader's message about claims that are not bound, empty if there is
// none.
func unboundMessage(c *v1alpha1.EtcdCluster) string {
	for _, condition := range c.Status.Conditions {
		if condition.Type == BoundCondition && condition.Status == metav1.ConditionFalse {
			return printable.Line(condition.Message)
		}
	}
	return ""
}

// describeObservers describes the state of every observer in one line.
func (s Snapshot) describeObservers() string {
	var texts []string
	for _, b := range distinctNodes(s.Cluster.Spec.Members) {
		texts = append(texts, "node "+b.Node+": "+s.describeAgent(b))
	}
	return strings.Join(texts, ", ")
}

// describeAgent describes how the agent on the Node of a binding answered the probe request.
func (s Snapshot) describeAgent(b v1alpha1.Binding) string {
	if n := s.Nodes[b.Node]; n.Known && n.UID != b.NodeUID {
		return "it is gone, together with its agent"
	}
	if !slices.ContainsFunc(s.Cluster.Spec.Members, func(other v1alpha1.Binding) bool {
		return other.Node == b.Node && other.NodeUID == b.NodeUID && observation.IsObserver(other)
	}) {
		return s.describeNonObserver(b)
	}
	for _, o := range observation.Accepted(s.Cluster) {
		if o.Node != b.Node {
			continue
		}
		if slices.ContainsFunc(s.Answers, func(a v1alpha1.Observation) bool { return a.Node == o.Node }) {
			if observation.IsConfirmed(o) {
				return "its agent lists " + describeList(o) + ", and no second node has answered with the same list"
			}
			if o.Problem == "" {
				return "its agent answered without a confirmed member list"
			}
			return "its agent reports: " + printable.Quote(o.Problem)
		}
		return fmt.Sprintf("its agent has not answered; its last report is from %s", o.Time.UTC().Format(time.RFC3339))
	}
	return "its agent has never reported"
}

// contestedMessage explains that the node announces members that are bound to another Node.
func (t requestTarget) contestedMessage(members []v1alpha1.MemberID) string {
	facts := []string{fmt.Sprintf("node %s announces %s of etcd cluster %s, but another Node has it: %s the "+
		"wrong Node would lose a member without counting it",
		t.Node, joinIDs(members), observation.ClusterIDOf(t.Cluster), t.Verb().Gerund)}
	var others []string
	for _, id := range members {
		b := t.Bindings[id]
		fact := fmt.Sprintf("  member %s is bound to node %s, which exists", id, b.Node)
		if t.hasAnswered(b) {
			fact += " and whose agent runs"
		}
		facts = append(facts, fact)
		if !slices.Contains(others, b.Node) {
			others = append(others, b.Node)
		}
	}
	return refusalText(t.Request, facts,
		fmt.Sprintf("keep both Nodes until you know on which host the member runs: "+
			"kubectl describe node %s %s (condition %s)",
			t.Node, strings.Join(others, " "), observation.EtcdMemberCondition),
		fmt.Sprintf("only if the member does not run on the host of node %s any more%s: "+
			"kubectl annotate node %[1]s %[3]s-, then kubectl delete etcdcluster %[4]s while it has no open grant; "+
			"the agents announce again what they find", strings.Join(others, " "), breakGlassVerbNote,
			observation.AnnouncementAnnotation, observation.ClusterIDOf(t.Cluster)))
}

func joinTitles(members []memberState) string {
	return printable.Join(members, ", ", memberState.title)
}

func joinIDs(members []v1alpha1.MemberID) string {
	if len(members) == 1 {
		return "member " + string(members[0])
	}
	return "members " + observation.JoinIDs(members, ", ")
}

// agree returns the words that agree with this number of members.
func agree(n int, one, many string) string {
	if n > 1 {
		return many
	}
	return one
}

// distinctNodes returns one binding for each Node, sorted by name.
func distinctNodes(bindings []v1alpha1.Binding) []v1alpha1.Binding {
	var found []v1alpha1.Binding
	for _, b := range bindings {
		if !slices.ContainsFunc(found, func(f v1alpha1.Binding) bool { return f.Node == b.Node && f.NodeUID == b.NodeUID }) {
			found = append(found, b)
		}
	}
	slices.SortFunc(found, func(a, b v1alpha1.Binding) int { return strings.Compare(a.Node, b.Node) })
	return found
}
