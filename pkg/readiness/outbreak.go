package readiness

import (
	"fmt"
	"slices"
	"time"
)

const (
	// fewestStuck is the least number of nodes that tell a broken installation from a broken node: of the nodes of a small
	// cluster one is more than a tenth. An autoscaler that buys one node after the other gets there.
	fewestStuck = 3
	// switchAgain is the least time between two times that the parameter is taken away. Whoever puts it back, a person or
	// GitOps, is told and is not fought.
	switchAgain = time.Hour
)

// Outbreak is what says whether nodes should go on being born held. All its times are by the API server's clock.
type Outbreak struct {
	// Nodes is how many there are.
	Nodes int
	// Stuck are the times at which those were created that have been held without an agent for long enough to count.
	Stuck []time.Time
	// Parameter is when the policy's parameter was created.
	Parameter time.Time
	// Now is zero if the API server's clock is not known.
	Now time.Time
	// Taken is for how long it has been taken away by this process; zero if it never was.
	Taken time.Duration
}

// Widespread says that more than a tenth of the nodes are held without an agent, and no fewer than three.
func (o Outbreak) Widespread() bool {
	return len(o.Stuck) >= fewestStuck && len(o.Stuck)*10 > o.Nodes
}

// SwitchOff says whether the policy's parameter is to be taken away, and why or why not.
//
// A parameter that is younger than a node that was born held without an agent has been put back while nodes were stuck.
// That is seen from the objects alone, so that a leader that has just started neither forgets it.
func (o Outbreak) SwitchOff() (yes bool, why string) {
	stuck := fmt.Sprintf("%d of %d nodes are held and no agent has looked at them", len(o.Stuck), o.Nodes)
	switch {
	case !o.Widespread():
		return false, ""
	case o.Taken > 0 && o.Taken < switchAgain:
		return false, fmt.Sprintf("%s; the parameter was taken away for that less than %s ago and somebody has put it back", stuck, switchAgain)
	case !slices.ContainsFunc(o.Stuck, func(born time.Time) bool { return born.Before(o.Parameter) }):
		return true, stuck
	case o.Now.Sub(o.Parameter) < switchAgain: // An unknown Now lies before everything.
		return false, fmt.Sprintf("%s; the parameter was put back less than %s ago, when some of them were stuck already", stuck, switchAgain)
	}
	return true, stuck + ", still after the parameter was put back"
}
