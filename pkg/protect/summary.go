package protect

import (
	"fmt"
	"strings"
)

// Summary is a cluster in numbers: those of the member list that leaves the least to lose.
type Summary struct {
	// Voters counts learners that are given up as well, since they may still be promoted.
	Voters, Healthy, Quorum int
	// MayLose is how many of the healthy voters may be lost, never below zero.
	MayLose int
	// Known says that a confirmed list was there to count from. Otherwise the numbers mean nothing.
	Known bool
	// Message is one line for people.
	Message string
}

// Summarise counts the cluster as it stands, without any deletion.
func Summarise(v View) Summary {
	if v.Cluster == nil {
		return Summary{Message: "no EtcdCluster"}
	}
	s := newSight(v)
	if len(s.lists) == 0 {
		if len(s.cluster.Spec.Members) == 0 {
			return Summary{Message: "no member is bound to a Node yet, so that nobody can be asked"}
		}
		return Summary{Message: "no agent gave a member list that a quorum confirmed; " + s.roll()}
	}
	var worst *tally
	for _, list := range s.lists {
		count := s.count(list, nil, 0)
		if worst == nil || count.healthy-count.need < worst.healthy-worst.need {
			worst = &count
		}
	}
	words := []string{fmt.Sprintf("%s, %d healthy, quorum %d", many(worst.voters, "voter"), worst.healthy, worst.quorum)}
	for _, seat := range worst.seats {
		if seat.standing == unproven || seat.standing == lost {
			words = append(words, title(seat)+" "+fate(seat))
		}
	}
	return Summary{
		Voters: worst.voters, Healthy: worst.healthy, Quorum: worst.quorum, MayLose: max(0, worst.healthy-worst.quorum),
		Known: true, Message: strings.Join(words, "; "),
	}
}
