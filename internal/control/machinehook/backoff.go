package machinehook

import (
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/dump"

	"github.com/holdfast-dev/holdfast/internal/control/world"
	"github.com/holdfast-dev/holdfast/pkg/machine"
)

// maxBackoff limits the time between two reviews of one Machine, as a multiple of a tick.
const maxBackoff = 8

// A pastReview is the last review of a Machine.
type pastReview struct {
	at    time.Time
	basis string
	// refusal is the message of the last refusal.
	refusal string
	// wait is the time until the next review if the basis stays the same.
	wait time.Duration
}

// isFollowedBy reports whether the next review is due. A review that is late keeps the hook longer,
// and can do no other harm.
func (p pastReview) isFollowedBy(basis string, tick time.Duration) bool {
	age := time.Since(p.at)
	return age >= p.wait || age >= tick && basis != p.basis
}

// refused returns the review after p, which refuses.
func (p pastReview) refused(next pastReview, message string) pastReview {
	if next.refusal = message; next.basis == p.basis && message == p.refusal {
		next.wait = max(next.wait, min(2*p.wait, maxBackoff*next.wait))
	}
	return next
}

// basisOf returns a text that changes with what a refusal depends on, as far as the cache knows it:
// the Machine, its Nodes, and the bindings, grants and summaries of the EtcdClusters. Observations
// are not part of it, because agents write them all the time; the leader summarizes what is new in
// them.
func basisOf(m machine.Object, w world.World) string {
	m.ResourceVersion = ""
	parts := []string{dump.ForHash(m)}
	for _, n := range w.Nodes {
		if standsFor(m, n) {
			parts = append(parts, string(n.UID)+" "+n.ResourceVersion)
		}
	}
	for _, c := range w.Clusters {
		s := c.Status
		parts = append(parts, dump.ForHash([]any{
			c.UID, c.Annotations, c.Spec.Ledger, c.Spec.Members, s.Voters, s.Healthy, s.Quorum, s.MayLose,
		}))
	}
	slices.Sort(parts)
	return strings.Join(parts, "\n")
}
