package quorum

import (
	"slices"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
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
	// Silence is why no list is confirmed, and Tally is where the numbers are from.
	Silence Silence
	Tally   Tally
}

// Summarize describes the cluster without any deletion.
func Summarize(v View) Summary { return NewSnapshot(v).summarize() }

func (s Snapshot) summarize() Summary {
	worst := s.worstTally(s.Lists, nil)
	if worst == nil {
		return Summary{Silence: s.silence()}
	}
	return Summary{
		Voters: worst.Voters, Healthy: worst.Healthy, Quorum: worst.Quorum, MayLose: max(0, worst.Healthy-worst.Quorum),
		Known: true, Tally: *worst,
	}
}

// worstTally returns the tally of the list with the smallest margin, nil without a list. If members
// are gone, a list without any of them does not matter.
func (s Snapshot) worstTally(lists []v1alpha1.Observation, gone []v1alpha1.MemberID) *Tally {
	var worst *Tally
	for _, list := range lists {
		tally := s.tallyList(list, gone, 0)
		if (len(gone) == 0 || len(tally.With(CountsOnNode)) > 0) && tally.isWorseThan(worst) {
			worst = &tally
		}
	}
	return worst
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
func Alarms() []string { return []string{CorruptAlarm, NoSpaceAlarm} }

// Inspect describes the cluster for monitoring.
func Inspect(v View) Overview {
	s := NewSnapshot(v)
	o := Overview{Summary: s.summarize()}
	for _, id := range s.listedMembers() {
		b, exists := s.nodeOf(id)
		if _, isSeen := s.OwnAnswer(b); !exists {
			o.WithoutNode = append(o.WithoutNode, id)
		} else if !isSeen {
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
	at := slices.IndexFunc(s.PossibleNodes, func(b v1alpha1.Binding) bool { return b.MemberID == id && s.mayExist(b) })
	if at < 0 {
		return v1alpha1.Binding{}, false
	}
	return s.PossibleNodes[at], true
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
