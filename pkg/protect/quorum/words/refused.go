package words

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/pkg/printable"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// refused explains that quorum would be lost: the arithmetic, every member, and the steps.
func (w writer) refused() string {
	t := w.Tally
	what, reserve, while := fmt.Sprintf("would break quorum of etcd cluster %s", w.id), "", ""
	if reserved := t.Required - t.Quorum; reserved > 0 {
		what = fmt.Sprintf("would leave etcd cluster %s without the required reserve", w.id)
		reserve = fmt.Sprintf(" and %d more must be in reserve", reserved)
	}
	if n := len(w.Removable); n > 0 {
		while = fmt.Sprintf(" while %s %s in its member list", titles(w.Removable), agree(n, "is", "are"))
	}
	remaining := "none"
	if t.Healthy > 0 {
		remaining = fmt.Sprintf("only %d", t.Healthy)
	}
	arithmetic := fmt.Sprintf("%s node %s %s%s: %d of %s must be healthy%s, and %s would remain",
		w.verb.Gerund, w.node, what, while, t.Quorum, w.votersAfter(), reserve, remaining)
	return w.refusal(w.counted(arithmetic), w.steps()...)
}

// counted returns the arithmetic, the Nodes whose lists differ, and every member.
func (w writer) counted(arithmetic string) []string {
	lines := []string{arithmetic}
	if len(w.Tally.Differing) > 0 {
		text := fmt.Sprintf("  the member lists differ; this is by the list of node %s", w.Tally.List.Node)
		for _, o := range w.Tally.Differing {
			text += fmt.Sprintf("; node %s lists %s", o.Node, quorum.ListKey(o))
		}
		lines = append(lines, text)
	}
	for _, m := range w.Tally.Members {
		description := describe(m)
		if w.Together && m.Count == quorum.CountsOnNode {
			description = "would be gone"
			if m.Node != "" {
				description += " with node " + m.Node
			}
		}
		lines = append(lines, "  "+title(m)+location(m)+": "+description)
	}
	return lines
}

// location names the node of a member unless its description does.
func location(m quorum.MemberState) string {
	isDescribed := m.Count == quorum.CountsOnNode || m.Count == quorum.CountsLost || m.Count == quorum.CountsAway
	if m.Node == "" || isDescribed {
		return ""
	}
	return " on node " + m.Node
}

// Describe describes how a member counts, and why, in one line.
func Describe(m quorum.MemberState) string { return printable.Line(describe(m)) }

func describe(m quorum.MemberState) string {
	detail, until := "", "it is lost"
	if m.Count == quorum.CountsAway {
		until = "its node is away"
	}
	if m.IsPromotable {
		detail = fmt.Sprintf(" (a learner; it counts as a voter because it may be promoted before %s)", until)
	}
	switch m.Count {
	case quorum.CountsOnNode:
		if m.Cause.Problem != quorum.NoProblem {
			detail += "; not confirmed healthy: " + cause(m.Cause)
		}
		return "on this node" + detail
	case quorum.CountsLost:
		if m.StillAnswers {
			detail += "; it still answers, so its etcd is still running"
		}
		return "counts as lost: " + cause(m.Cause) + detail
	case quorum.CountsAway:
		if m.StillAnswers {
			detail += "; it still answers"
		}
		return "away for a while: " + cause(m.Cause) + detail
	case quorum.CountsUnproven:
		return "not confirmed healthy: " + cause(m.Cause)
	case quorum.CountsHealthy:
		return "healthy"
	case quorum.CountsLearner:
	}
	return "learner, does not vote"
}

// cause words why a member does not count as healthy.
func cause(c quorum.Cause) string {
	switch c.Problem {
	case quorum.NotProven:
		return proof(c.Proof)
	case quorum.Corrupt:
		return "it has the alarm CORRUPT: its data differ from the data of the other members"
	case quorum.NeverStarted:
		return "it was added, but has never started"
	case quorum.AlarmsUnread:
		return "no agent that answered could read the etcd alarms, so its data may be corrupt"
	case quorum.AlarmDisputed:
		return "an agent reports the alarm CORRUPT for it, and too few others deny that"
	case quorum.NodeUnread:
		return fmt.Sprintf("its node %s could not be read", c.Node)
	case quorum.NodeGone:
		return fmt.Sprintf("its node %s is gone", c.Node)
	case quorum.NodeReplaced:
		return fmt.Sprintf("its node %s is gone; a different Node has the name now", c.Node)
	case quorum.NodeDeleting:
		return fmt.Sprintf("its node %s is being deleted", c.Node)
	case quorum.NodeLeaving, quorum.NodeAway:
		return fmt.Sprintf("its node %s %s (%s)", c.Node, c.Mark.Says, c.Mark)
	case quorum.Granted:
		return grant(*c.Grant, "its node")
	case quorum.GrantedElsewhere:
		return fmt.Sprintf("%s, which had a member of etcd cluster %s too", grant(*c.Grant, "its node"), c.Cluster)
	case quorum.Rejoined, quorum.PerhapsRejoined:
		return rejoin(c)
	case quorum.NoProblem:
	}
	return ""
}

// proof words why no answer proves a member healthy.
func proof(p quorum.Proof) string {
	text := "no agent that answered has probed it"
	switch {
	case p.OnlyBy != "":
		text = fmt.Sprintf("only node %s reports that it is healthy, and without a role the words of two nodes are needed",
			p.OnlyBy)
	case p.By != "":
		text = fmt.Sprintf("%s (reported by node %s)", cmp.Or(printable.Quote(p.Error), "no reason given"), p.By)
	}
	switch p.Agent.Answer {
	case quorum.AgentUnknown:
		text += "; no agent is known on its host"
	case quorum.AgentNeverReported:
		text += "; the agent on its node has never reported"
	case quorum.AgentSilent:
		text += "; the agent on its node has not answered since its report from " +
			p.Agent.Last.Time.UTC().Format(time.RFC3339)
	case quorum.AgentWithoutRole, quorum.AgentUnconfirmed:
		text += "; " + agent(p.Agent)
	case quorum.AgentGone, quorum.AgentListsAlone, quorum.AgentWithoutList, quorum.AgentFailed:
	}
	return text
}

// together words a verdict about several nodes: the arithmetic, and every member if the cluster may
// not keep quorum.
func (w writer) together(v quorum.Verdict) string {
	switch w.Finding {
	case quorum.FoundNoList:
		return printable.Line(blind(w.Silence))
	case quorum.FoundNothing:
		return fmt.Sprintf("no member of etcd cluster %s is on these nodes", w.id)
	case quorum.FoundTally:
	default:
		first, _, _ := strings.Cut(w.unknown(), "\n")
		return first
	}
	verb := "may lose quorum"
	switch {
	case v.Allowed:
		verb = "keeps quorum"
	case v.Final:
		verb = "would lose quorum"
	}
	arithmetic := fmt.Sprintf("etcd cluster %s %s without %s %s: %d of %s must be healthy, and %d would remain",
		w.id, verb, agree(len(w.Nodes), "node", "nodes"), strings.Join(w.Nodes, ", "),
		w.Tally.Quorum, observation.Plural(w.Tally.Voters, "voter"), w.Tally.Healthy)
	if v.Allowed {
		return arithmetic
	}
	return strings.Join(w.counted(arithmetic), "\n")
}

// Summary describes a cluster in one line.
func Summary(s quorum.Summary) string {
	if !s.Known {
		return printable.Line(blind(s.Silence))
	}
	texts := []string{fmt.Sprintf("%s, %d healthy, quorum %d", observation.Plural(s.Voters, "voter"), s.Healthy, s.Quorum)}
	for _, m := range s.Members {
		switch m.Count {
		case quorum.CountsUnproven, quorum.CountsLost, quorum.CountsAway:
			texts = append(texts, title(m)+" "+describe(m))
		case quorum.CountsHealthy, quorum.CountsLearner, quorum.CountsOnNode:
		}
	}
	return printable.Line(strings.Join(texts, "; "))
}

// blind words why a cluster is not seen, with the state of every observer.
func blind(s quorum.Silence) string {
	if len(s.Agents) == 0 {
		return "no member is bound to a Node yet, so no agent can be asked"
	}
	return missing(s.Missing) + "; " + printable.Join(s.Agents, ", ", func(a quorum.AgentState) string {
		return "node " + a.Node + ": " + agent(a)
	})
}
