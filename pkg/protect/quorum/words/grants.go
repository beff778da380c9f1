package words

import (
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// ShutWhen describes when a door of this kind is shut (membership.Resolve).
func ShutWhen(k quorum.DoorKind) string {
	switch k {
	case quorum.DoorDelete:
		return "the Node is written after that, or is gone"
	case quorum.DoorMachine:
		return fmt.Sprintf("no controller is ending the machine, and its Node still exists %s later, or is gone",
			quorum.ResolvePresentAfter)
	case quorum.DoorRemove:
		return fmt.Sprintf("the Node still exists %s later; its members then count as lost as long as it is marked for "+
			"their removal; for an EtcdMember of k0s, when they have left", quorum.ResolvePresentAfter)
	case quorum.DoorDrain:
		return fmt.Sprintf("the node is open for pods, and its agent has proven its members healthy for %s",
			quorum.ResolveReturnedAfter)
	case quorum.DoorGone:
	}
	return fmt.Sprintf("%s have passed, and each of its members has left the member list or is proven on another Node, "+
		"or another machine has the name of its Node", quorum.ResolveMovedAfter)
}

// grant explains a grant by the door that was opened last. node describes the Node of the grant to
// the reader, for example "its node".
func grant(g v1alpha1.Grant, node string) string {
	d := quorum.LastDoor(g)
	at, noun := d.Time.UTC().Format(time.RFC3339), VerbOf(d.Kind).Noun
	switch {
	case d.Kind == quorum.DoorGone:
		if g.Drain != nil {
			at += ", after its drain at " + g.Drain.Time.UTC().Format(time.RFC3339)
		}
		return fmt.Sprintf("%s %s is gone, and its deletion was not reviewed (detected at %s)", node, g.Node, at)
	case d.BreakGlass:
		return fmt.Sprintf("the %s of %s %s was forced by %s at %s", noun, node, g.Node, d.User, at)
	}
	return fmt.Sprintf("the %s of %s %s by %s was allowed at %s", noun, node, g.Node, d.User, at)
}

// rejoin explains why a member that joined again, or may have, counts as lost, and until when.
func rejoin(c quorum.Cause) string {
	g := *c.Grant
	end := quorum.LastOpened(g).Add(quorum.ResolveMovedAfter).UTC().Format(time.RFC3339)
	switch {
	case c.Problem == quorum.PerhapsRejoined:
		return fmt.Sprintf("no node is known to run it, and it may have joined again on a machine that may still be "+
			"removed: "+
			"%s; it counts again as soon as a node announces it, otherwise not before %s",
			grant(g, "the machine's earlier node"), end)
	case quorum.IsDrainOnly(g):
		return "it joined again on a machine that may still restart or go: " + grant(g, "the machine's node")
	}
	return fmt.Sprintf("it joined again on a machine that may still be removed: %s; it counts again when the agent "+
		"of its node has proven it healthy for %s, not before %s", grant(g, "the machine's earlier node"),
		quorum.ResolveMovedAfter, end)
}
