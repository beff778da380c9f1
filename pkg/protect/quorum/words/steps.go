package words

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// steps words the steps of a refusal.
func (w writer) steps() []string {
	texts, lastRepair := make([]string, len(w.Steps)), -1
	for i, s := range w.Steps {
		texts[i] = w.step(s)
		if s.Kind == quorum.StepRepair {
			lastRepair = i
		}
	}
	isFound := func(m quorum.MemberState) bool { return m.FoundOn != "" && m.Cause.Problem == quorum.NotProven }
	if len(w.Removable) > 0 && !slices.ContainsFunc(w.Removable, isFound) {
		texts[lastRepair] += fmt.Sprintf("\n    (without %s in the member list, this %s is allowed)",
			titles(w.Removable), w.verb.Noun)
	}
	return texts
}

func (w writer) step(s quorum.Step) string {
	names := titles(s.Members)
	switch s.Kind {
	case quorum.StepReadNodes:
		return fmt.Sprintf("%s in a few seconds: the API server did not return node %s in time",
			w.again(), strings.Join(s.Nodes, ", "))
	case quorum.StepReadAlarms:
		return w.again() + " in a few seconds; if the problem persists, check what the agents report about the alarms: " +
			"kubectl get etcdobservations (column PROBLEM)"
	case quorum.StepCompareLists:
		return fmt.Sprintf("%s in a few seconds, because the member list may have just "+
			"changed; if the lists still differ, find out with `etcdctl member list` whether the cluster has %s, "+
			"and check the agent of the node that reports otherwise; remove no member before", w.again(), names)
	case quorum.StepAwaitDrained:
		return w.awaitDrained(s)
	case quorum.StepAwaitNode:
		within := "a minute, unless a Machine or NodeClaim of it is being deleted or cannot be read"
		if !s.At.IsZero() {
			within = "a minute of " + s.At.UTC().Format(time.RFC3339)
		}
		return fmt.Sprintf("node %s still exists; if it stays, wait: its members count again within %s", s.Nodes[0], within)
	case quorum.StepAwaitMachine:
		return fmt.Sprintf("if the machine of node %s stays, wait: %s counts again by itself at the time above",
			s.Members[0].Node, names)
	case quorum.StepAwaitRemoval:
		cancel := "set spec.leave of its EtcdMember to false, and settle the grant of its node"
		if s.Mark.IsRemoval() {
			cancel = s.Mark.RemoveCommand(s.Members[0].Node)
		}
		return fmt.Sprintf("wait until %s has left the member list, then %s node %s again; to cancel its removal: %s",
			names, w.verb.Base, w.node, cancel)
	case quorum.StepAwaitEnd:
		return fmt.Sprintf("%s still answers: if its machine is being removed, "+
			"wait until it is gone, then %s node %s again to see the remaining steps", names, w.verb.Base, w.node)
	case quorum.StepAwaitReturn:
		return w.awaitReturn(s.Members[0])
	case quorum.StepRepair:
		return w.repair(s)
	case quorum.StepAddVoters:
		return fmt.Sprintf("first add %s and wait until %s; then the cluster can lose this node",
			observation.Plural(s.Voters, "more member"), agree(s.Voters, "it is a voter", "they are voters"))
	case quorum.StepRemoveFirst:
		return "or, if this node is to be removed permanently, first remove its members from the cluster " +
			"(etcd checks that this is safe): " + commands(s.Members, w.removeCommand)
	case quorum.StepResolve:
	}
	return w.settle(s)
}

// awaitDrained explains how a drained node comes back.
func (w writer) awaitDrained(s quorum.Step) string {
	g, n, names := s.Grant, s.State, titles(s.Members)
	since := "node " + g.Node + " was drained at " + g.Drain.Time.UTC().Format(time.RFC3339)
	again := fmt.Sprintf("%s %s again when the agent there has proven it healthy twice, %s apart",
		names, agree(len(s.Members), "counts", "count"), quorum.ResolveReturnedAfter)
	switch {
	case n.Deleting:
		return fmt.Sprintf("%s and is being deleted: wait until its machine is gone, then %s node %s again to see the "+
			"remaining steps", since, w.verb.Base, w.node)
	case n.Departure.Class != departure.None:
		return fmt.Sprintf("%s and %s (%s): wait until it is back, uncordoned and without that mark, and etcd runs there; %s",
			since, n.Departure.Says, n.Departure, again)
	case n.Cordoned:
		return fmt.Sprintf("%s and is still cordoned: wait until it is back; the program that drained it uncordons it, "+
			"or you do when etcd runs there: kubectl uncordon %s; %s", since, g.Node, again)
	}
	return fmt.Sprintf("%s and is open again: wait until etcd runs there; %s", since, again)
}

// awaitReturn is about a member whose node is away for a while.
func (w writer) awaitReturn(m quorum.MemberState) string {
	mark := m.Cause.Mark
	step := fmt.Sprintf("wait for %s: node %s %s (%s); once that is over, %s node %s again",
		title(m), m.Node, mark.Says, mark, w.verb.Base, w.node)
	if !m.StillAnswers && m.FoundOn == "" {
		step += fmt.Sprintf("; only if node %s never comes back: %s", m.Node, w.removeCommand(m))
	}
	return step + "\n    (only if that mark is a leftover: " + mark.RemoveCommand(m.Node) + ")"
}

func (w writer) repair(s quorum.Step) string {
	m := s.Members[0]
	name, remove, add := title(m)+location(m), w.removeCommand(m), ", then add a new member"
	if len(w.Removable) > 0 {
		add = ""
	}
	switch {
	case m.Count == quorum.CountsLost:
		return fmt.Sprintf("once %s is permanently gone: %s", name, remove) + add
	case m.Cause.Problem == quorum.Corrupt:
		return fmt.Sprintf("replace %s: %s, empty its data directory, let it join again, then %s",
			name, w.removeWithoutNode(m), w.etcdctl("alarm disarm"))
	case m.Cause.Problem == quorum.NeverStarted:
		return fmt.Sprintf("start the new member %s; if it is no longer wanted: %s", name, w.removeWithoutNode(m)) + add
	case m.FoundOn != "":
		return fmt.Sprintf("start %s if it is down: the agent of node %s finds its server or its data", name, m.FoundOn)
	case m.Node == "":
		return fmt.Sprintf("start %s if it is down; if it is running, no agent can confirm that: "+
			"run a Holdfast agent on its host, or make it listen on an address that the agents can reach; "+
			"if it is permanently gone: %s", name, remove) + add
	}
	return fmt.Sprintf("start %s if it is down; if it is permanently gone: %s", name, remove) + add
}

// settle has the command that resolves a grant by hand.
func (w writer) settle(s quorum.Step) string {
	notBefore := ""
	if !s.At.IsZero() {
		notBefore = fmt.Sprintf("not before %s, and ", s.At.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("%sonly if %s %s running, "+
		"on the same machine or on another one that stays: kubectl holdfast settle %s\n"+
		"    or without the plugin:\n    kubectl annotate --overwrite etcdcluster %s %s=%s",
		notBefore, titles(s.Members), agree(len(s.Members), "keeps", "keep"), s.Grant.Node,
		cmp.Or(s.Members[0].Cause.Cluster, w.id), quorum.ResolveAnnotation, s.Grant.NodeUID)
}
