package quorum

import (
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/printable"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// A Summary describes a cluster in numbers. If several member lists are confirmed, the numbers
// are from the list with the smallest margin.
type Summary struct {
	// Voters includes the learners that count as lost, because they may still be promoted.
	Voters, Healthy, Quorum int
	// MayLose is how many of the healthy voters the cluster can lose. It is never negative.
	MayLose int
	// Known reports whether a confirmed list exists. If not, the numbers have no meaning.
	Known bool
	// Message describes the cluster in one line.
	Message string
}

// A MemberSummary describes one member without any deletion.
type MemberSummary struct {
	ID   v1alpha1.MemberID
	Name string
	// Node is empty if the member is bound to no Node.
	Node  string
	Count MemberCount
	// Description tells how the member counts, and why.
	Description string
	Alarms      []string
}

// A MemberCount is how a member counts.
type MemberCount string

// How members count. All of them are voters except learners.
const (
	CountsHealthy  MemberCount = "Healthy"
	CountsUnproven MemberCount = "NotConfirmed"
	CountsLost     MemberCount = "Lost"
	CountsAway     MemberCount = "Away"
	CountsLearner  MemberCount = "Learner"
)

// summary describes the member.
func (m memberState) summary() MemberSummary {
	return MemberSummary{
		ID: m.ID, Name: printable.Quote(m.Name), Node: m.node, Description: printable.Line(m.description()), Alarms: m.Alarms,
		Count: map[memberStatus]MemberCount{
			statusHealthy: CountsHealthy, statusUnproven: CountsUnproven, statusLost: CountsLost, statusAway: CountsAway,
			statusLearner: CountsLearner,
		}[m.status],
	}
}

// Summarize describes the cluster without any deletion.
func Summarize(v View) Summary {
	s := NewSnapshot(v)
	if len(s.Lists) == 0 {
		if len(s.Cluster.Spec.Members) == 0 {
			return Summary{Message: "no member is bound to a Node yet, so no agent can be asked"}
		}
		return Summary{Message: printable.Line(s.missingLists() + "; " + s.describeObservers())}
	}
	worst := s.worstTally()
	texts := []string{fmt.Sprintf("%s, %d healthy, quorum %d",
		observation.Plural(worst.voters, "voter"), worst.healthy, worst.quorum)}
	for _, m := range worst.members {
		if m.status == statusUnproven || m.status == statusLost || m.status == statusAway {
			texts = append(texts, m.title()+" "+m.description())
		}
	}
	return Summary{
		Voters: worst.voters, Healthy: worst.healthy, Quorum: worst.quorum, MayLose: max(0, worst.healthy-worst.quorum),
		Known: true, Message: printable.Line(strings.Join(texts, "; ")),
	}
}

// worstTally returns the tally of the list with the smallest margin, nil without a list.
func (s Snapshot) worstTally() *memberTally {
	var worst *memberTally
	for _, list := range s.Lists {
		if tally := s.tallyList(list, nil, 0); tally.isWorseThan(worst) {
			worst = &tally
		}
	}
	return worst
}

// Members describes the members of the list from which the numbers of Summarize are. Without a
// confirmed list, the result is empty.
func Members(v View) []MemberSummary {
	worst := NewSnapshot(v).worstTally()
	if worst == nil {
		return nil
	}
	var members []MemberSummary
	for _, m := range worst.members {
		members = append(members, m.summary())
	}
	return members
}

// An Overview describes a cluster for monitoring: the numbers of its Summary, and the members that
// need attention. Without a confirmed list, the members are those that are bound to a Node.
type Overview struct {
	Summary
	// WithoutNode are the members that run on no Node of this cluster, as far as the leader knows: no
	// binding or address leads to a Node, or the Node is gone. Such a member has a vote, and no agent
	// observes its host.
	WithoutNode []v1alpha1.MemberID
	// Unseen are the members on a Node whose agent has not answered the last probe request.
	Unseen []v1alpha1.MemberID
	// Alarms are the members with each alarm of etcd. It is nil if no answer has read the alarms.
	Alarms map[string][]v1alpha1.MemberID
}

// Alarms returns the names of the alarms of etcd.
func Alarms() []string { return []string{CorruptAlarm, noSpaceAlarm} }

// Inspect describes the cluster for monitoring.
func Inspect(v View) Overview {
	o := Overview{Summary: Summarize(v)}
	s := NewSnapshot(v)
	for _, id := range s.listedMembers() {
		switch b, exists := s.nodeOf(id); {
		case !exists:
			o.WithoutNode = append(o.WithoutNode, id)
		case !s.isSeen(b):
			o.Unseen = append(o.Unseen, id)
		}
	}
	if s.AlarmsRead {
		o.Alarms = s.alarms()
	}
	return o
}

// listedMembers returns, sorted, the members of all lists that count. Without a list it returns the
// bound members.
func (s Snapshot) listedMembers() []v1alpha1.MemberID {
	found := map[v1alpha1.MemberID]bool{}
	for _, list := range s.Lists {
		for _, m := range list.Members {
			found[m.ID] = true
		}
	}
	if len(s.Lists) == 0 {
		for id := range s.Bindings {
			found[id] = true
		}
	}
	return observation.SortedIDs(found)
}

// nodeOf returns where the member runs: its binding, or the Node at its address. It reports whether
// that Node may exist.
func (s Snapshot) nodeOf(id v1alpha1.MemberID) (binding v1alpha1.Binding, exists bool) {
	if b, bound := s.Bindings[id]; bound {
		return b, s.mayExist(b)
	}
	at := slices.IndexFunc(s.possibleNodes, func(b v1alpha1.Binding) bool { return b.MemberID == id && s.mayExist(b) })
	if at < 0 {
		return v1alpha1.Binding{}, false
	}
	return s.possibleNodes[at], true
}

// isSeen reports whether the agent on the Node of the binding has answered.
func (s Snapshot) isSeen(b v1alpha1.Binding) bool {
	_, isAnswered := s.OwnAnswer(b)
	return isAnswered
}

// alarms returns the members with each alarm, by the lists that count.
func (s Snapshot) alarms() map[string][]v1alpha1.MemberID {
	found := map[string][]v1alpha1.MemberID{}
	for _, alarm := range Alarms() {
		raised := map[v1alpha1.MemberID]bool{}
		for _, list := range s.Lists {
			for _, m := range list.Members {
				raised[m.ID] = raised[m.ID] || slices.Contains(m.Alarms, alarm)
			}
		}
		found[alarm] = observation.SortedIDs(raised)
	}
	return found
}
