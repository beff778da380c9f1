package words

import (
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

func (w writer) kept() string {
	without := "node " + w.node
	if w.Request.Door == quorum.DoorRemove {
		without = "the member of " + without
	}
	return fmt.Sprintf("etcd cluster %s keeps quorum without %s: %d of %s must be healthy, and %d would remain",
		w.id, without, w.Tally.Quorum, w.votersAfter(), w.Tally.Healthy)
}

// votersAfter describes the voters of the list after the request.
func (w writer) votersAfter() string {
	return observation.Plural(w.Tally.Voters-w.Tally.Leaving, "voter")
}

// keptWarning describes which members to remove after an allowed deletion. It warns if the next
// loss breaks quorum, if the member on the node is unhealthy, or if a database is full.
func (w writer) keptWarning() string {
	onNode := w.Tally.With(quorum.CountsOnNode)
	warnings := []string{w.removeNext(onNode)}
	switch {
	case w.Tally.Healthy > w.Tally.Quorum:
	case w.Request.Door == quorum.DoorDrain:
		warnings = append(warnings, fmt.Sprintf("until then, or until its machine is gone and replaced, "+
			"etcd cluster %s cannot lose another voter", w.id))
	default:
		joined := ""
		if more := w.Tally.NewVotersAfter(len(onNode)); more > 0 {
			joined = fmt.Sprintf(" and %s %s joined", observation.Plural(more, "new voter"), agree(more, "has", "have"))
		}
		warnings = append(warnings, fmt.Sprintf("until %s left the member list%s, etcd cluster %s cannot lose another voter",
			agree(len(onNode), "it has", "they have"), joined, w.id))
	}
	warnings = append(warnings, w.changeSafely())
	for _, m := range onNode {
		if m.Cause.Problem != quorum.NoProblem {
			warnings = append(warnings, fmt.Sprintf("%s on node %s is not confirmed healthy at present", title(m), w.node))
		}
	}
	for _, m := range w.Tally.With(quorum.CountsHealthy) {
		if m.Notice.Key != "" {
			warnings = append(warnings, fmt.Sprintf("%s counts as healthy, but its node %s %s (%s)",
				title(m), m.Node, m.Notice.Says, m.Notice))
		}
	}
	for _, m := range w.Tally.Members {
		if slices.Contains(m.Alarms, quorum.NoSpaceAlarm) {
			warnings = append(warnings, fmt.Sprintf("%s has the alarm NOSPACE: etcd cluster %s accepts no writes "+
				"until its database is compacted and defragmented, and the alarm is disarmed", title(m), w.id))
		}
	}
	return strings.Join(warnings, "; ")
}

// removeNext describes which members to remove after the deletion of the node, before any other
// member. The list still counts them as voters, so the removal of a healthy member first would cost
// quorum.
func (w writer) removeNext(onNode []quorum.MemberState) string {
	names := titles(onNode)
	if w.Request.Door == quorum.DoorDrain {
		return fmt.Sprintf("%s counts as lost from now on; it counts again when node %s is back and open "+
			"(kubectl uncordon %s), and its agent has proven it healthy", names, w.node, w.node)
	}
	if w.Request.Door == quorum.DoorRemove {
		return fmt.Sprintf("%s counts as lost from now on; before any other member is removed, and before another node "+
			"goes, check that it has left the member list (%s)", names, w.etcdctl("member list"))
	}
	if d := onNode[0].Distribution; removesWithNode(d) {
		return fmt.Sprintf("%s removes %s from etcd cluster %s after the deletion of node %s: "+
			"before any other member is removed, check that the member list has changed (%s)",
			d, names, w.id, w.node, w.etcdctl("member list"))
	}
	return fmt.Sprintf("after the deletion of node %s, remove %s from etcd cluster %s, and no other member before (%s)",
		w.node, names, w.id, commands(onNode, w.removeWithoutNode))
}

// changeSafely describes which changes of the member list cost no quorum while the machine of the
// node is still to go. Holdfast does not review them, and etcd checks them against the members that
// serve now.
func (w writer) changeSafely() string {
	switch w.Request.Door {
	case quorum.DoorDrain:
		return fmt.Sprintf("until node %s is back, add members as learners, and remove none", w.node)
	case quorum.DoorRemove:
		return "until then, add members as learners, and remove no other"
	case quorum.DoorDelete, quorum.DoorMachine, quorum.DoorGone:
	}
	return fmt.Sprintf("until the machine of node %s is gone, add members as learners, and remove only its member", w.node)
}
