package quorum

import (
	"fmt"
	"strings"

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

// Summarize describes the cluster without any deletion.
func Summarize(v View) Summary {
	if v.Cluster == nil {
		return Summary{Message: "no EtcdCluster"}
	}
	s := NewSnapshot(v)
	if len(s.Lists) == 0 {
		if len(s.Cluster.Spec.Members) == 0 {
			return Summary{Message: "no member is bound to a Node yet, so no agent can be asked"}
		}
		return Summary{Message: s.missingLists() + "; " + s.describeObservers()}
	}
	var worst *memberTally
	for _, list := range s.Lists {
		if tally := s.tallyList(list, nil, 0); tally.isWorseThan(worst) {
			worst = &tally
		}
	}
	texts := []string{fmt.Sprintf("%s, %d healthy, quorum %d",
		observation.Plural(worst.voters, "voter"), worst.healthy, worst.quorum)}
	for _, m := range worst.members {
		if m.status == statusUnproven || m.status == statusLost || m.status == statusAway {
			texts = append(texts, m.title()+" "+m.description())
		}
	}
	return Summary{
		Voters: worst.voters, Healthy: worst.healthy, Quorum: worst.quorum, MayLose: max(0, worst.healthy-worst.quorum),
		Known: true, Message: strings.Join(texts, "; "),
	}
}
