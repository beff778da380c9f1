package machinehook

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/machine"
)

// maxBackoff limits the time between two reviews of one Machine, as a multiple of a tick.
const maxBackoff = 8

// A pastReview is the last review of a Machine.
type pastReview struct {
	at    time.Time
	basis basis
	// refusal is the message of the last refusal.
	refusal string
	// wait is the time until the next review if the basis stays the same.
	wait time.Duration
}

// isFollowedBy reports whether the next review is due. A review that is late keeps the hook longer,
// and can do no other harm.
func (p pastReview) isFollowedBy(next basis, tick time.Duration) bool {
	age := time.Since(p.at)
	return age >= p.wait || age >= tick && next != p.basis
}

// refused returns the review after p, which refuses.
func (p pastReview) refused(next pastReview, message string) pastReview {
	if next.refusal = message; next.basis == p.basis && message == p.refusal {
		next.wait = max(next.wait, min(2*p.wait, maxBackoff*next.wait))
	}
	return next
}

// A basis identifies what a refusal depends on, as far as the cache knows it: the Machine, its
// Nodes, and the bindings, grants and summaries of the EtcdClusters. Observations are not part of
// it, because agents write them all the time; the leader summarizes what is new in them.
type basis struct {
	machine         machine.Object
	nodes, clusters string
}

// newBasis returns the basis of a review of the Machine.
func newBasis(m machine.Object, nodes []*corev1.Node, clusters string) basis {
	b := basis{machine: m, clusters: clusters}
	b.machine.ResourceVersion = ""
	var versions []string
	for _, n := range nodes {
		if standsFor(m, n) {
			versions = append(versions, string(n.UID)+" "+n.ResourceVersion)
		}
	}
	slices.Sort(versions)
	b.nodes = strings.Join(versions, "\n")
	return b
}

// identify returns a text that changes with what a basis has of the EtcdClusters.
func identify(clusters []*v1alpha1.EtcdCluster) (string, error) {
	texts := make([]string, len(clusters))
	for i, c := range clusters {
		s := c.Status
		text, err := json.Marshal([]any{
			c.UID, c.Annotations, c.Spec.Ledger, c.Spec.Members, s.Voters, s.Healthy, s.Quorum, s.MayLose,
		})
		if err != nil {
			return "", fmt.Errorf("encoding EtcdCluster %s: %w", c.Name, err)
		}
		texts[i] = string(text)
	}
	slices.Sort(texts)
	return strings.Join(texts, "\n"), nil
}
