package quorum

import (
	"slices"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// A Summary describes a cluster without any deletion: the arithmetic, and the members that need
// attention. If several member lists are confirmed, the Tally is that of the list with the smallest
// margin. Its Voters include the learners that count as lost, because they may still be promoted.
// Without a confirmed list, the members are those that are bound to a Node.
type Summary struct {
	Tally
	// Known reports whether a confirmed list exists. If not, the numbers have no meaning, and Silence
	// is why.
	Known   bool
	Silence Silence
	// MayLose is how many of the healthy voters the cluster can lose. It is never negative.
	MayLose int
	// WithoutNode are the members that run on no Node of this cluster, as far as the leader knows: no
	// binding or address leads to a Node, or the Node is gone. Such a member has a vote, and no agent
	// observes its host.
	WithoutNode []v1alpha1.MemberID
	// Unseen are the members on a Node whose agent has not answered the last probe request.
	Unseen []v1alpha1.MemberID
	// Alarms are the members with each alarm of etcd. It is nil if no answer has read the alarms.
	Alarms map[string][]v1alpha1.MemberID

	snapshot Snapshot
}

// Summarize describes the cluster.
func Summarize(v View) Summary {
	s := NewSnapshot(v)
	found := Summary{snapshot: s}
	if worst := s.worstTally(s.Lists, nil); worst != nil {
		found.Tally, found.Known, found.MayLose = *worst, true, max(0, worst.Healthy-worst.Quorum)
	} else {
		found.Silence = s.silence()
	}
	for _, id := range s.listedMembers() {
		nodes := slices.DeleteFunc(slices.Clone(s.nodesOf[id]), func(b v1alpha1.Binding) bool { return !s.mayExist(b) })
		isSeen := func(b v1alpha1.Binding) bool { _, isAnswered := s.OwnAnswer(b); return isAnswered }
		switch {
		case len(nodes) == 0:
			found.WithoutNode = append(found.WithoutNode, id)
		case !slices.ContainsFunc(nodes, isSeen):
			found.Unseen = append(found.Unseen, id)
		}
	}
	if s.AlarmsRead {
		found.Alarms = s.alarms()
	}
	return found
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

// Alarms returns the names of the alarms of etcd.
func Alarms() []string { return []string{CorruptAlarm, NoSpaceAlarm} }

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
