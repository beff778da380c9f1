package readiness

import (
	"fmt"
	"slices"
	"time"
)

const (
	// minStuck is the smallest number of nodes that indicates a broken installation instead of
	// a broken node: in a small cluster, one node is more than a tenth. An autoscaler that
	// buys one node after the other reaches this number.
	minStuck = 3
	// removalInterval is the shortest time between two deletions of the parameter. If a person
	// or GitOps restores the parameter, the leader reports that once and does not fight it.
	removalInterval = time.Hour
)

// MassHold describes the holds without an agent in a cluster, and decides whether nodes
// continue to be born held. All its times are from the API server's clock.
type MassHold struct {
	// Nodes is the number of nodes.
	Nodes int
	// StuckCreated are the creation times of the nodes that are held without an agent for long
	// enough to count.
	StuckCreated []time.Time
	// ParameterCreated is the creation time of the policy's parameter.
	ParameterCreated time.Time
	// Now is zero if the API server's clock is not known.
	Now time.Time
	// SinceRemoved is the time since this process deleted the parameter, zero if it never did.
	SinceRemoved time.Duration
}

// IsWidespread reports whether more than a tenth of the nodes, and at least three, are held
// without an agent.
func (m MassHold) IsWidespread() bool {
	return len(m.StuckCreated) >= minStuck && len(m.StuckCreated)*10 > m.Nodes
}

// CanRemoveParameter reports whether the leader may delete the policy's parameter, and why or
// why not. If the holds are not widespread, why is "".
//
// A parameter that is younger than a node that was born held without an agent has been
// restored while nodes were stuck. The objects alone show that, so a new leader observes it as
// well.
func (m MassHold) CanRemoveParameter() (ok bool, why string) {
	stuck := fmt.Sprintf("%d of %d nodes are held and no agent has reported on them", len(m.StuckCreated), m.Nodes)
	isOlder := func(created time.Time) bool { return created.Before(m.ParameterCreated) }
	switch {
	case !m.IsWidespread():
		return false, ""
	case m.SinceRemoved > 0 && m.SinceRemoved < removalInterval:
		return false, fmt.Sprintf("%s; the parameter was deleted for that reason less than %s ago and has been restored",
			stuck, removalInterval)
	case !slices.ContainsFunc(m.StuckCreated, isOlder):
		return true, stuck
	case m.Now.Sub(m.ParameterCreated) < removalInterval: // An unknown Now is before every time.
		return false, fmt.Sprintf("%s; the parameter was restored less than %s ago, when some of them were already held",
			stuck, removalInterval)
	}
	return true, stuck + ", even though the parameter was restored"
}
