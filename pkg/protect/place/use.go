package place

import (
	"slices"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// A Use is what a part of Holdfast does about a member that may be on a Node.
type Use string

// The uses. Uses returns all of them.
const (
	// Review: the deletion or drain of the Node is decided for the member's cluster. The claim of one
	// other Node is never sufficient, so a Node can involve only itself and the leader.
	Review Use = "the cluster is asked"
	// Override: the same with a break-glass override, which only adds a grant.
	Override Use = "the same, with break-glass"
	// Target: the member is on the node of the request, whatever its addresses are.
	Target Use = "on the node of the request"
	// Verified: the member explains a server on the Node that has never identified itself.
	Verified Use = "explains an unidentified server"
	// Unlabelled: the deletion of the Node is refused while it has no label.
	Unlabelled Use = "kept without the label"
	// Label: the leader sets the label.
	Label Use = "gets the label back"
	// GuardPod: the Node has a guard pod.
	GuardPod Use = "needs a guard pod"
	// Keep: an existing guard pod stays, and the Machine of the Node has the hook.
	Keep Use = "keeps its guard pod and hook"
	// Lost: the member is lost with the Node.
	Lost Use = "lost with the Node"
)

// Uses returns all uses.
func Uses() []Use {
	return []Use{Review, Override, Target, Verified, Unlabelled, Label, GuardPod, Keep, Lost}
}

// lists are the sources that only show the address of a member.
const lists = OneList | SoleList | TwoLists

// A rule has the sources on which a use acts.
type rule struct {
	// always are those that suffice, and silent those that suffice while the agent of the Node has not
	// reported whether it found a member.
	always, silent Source
	// countsLocated means that a list counts also for a member whose binding shows where it runs.
	countsLocated bool
}

// rule returns the sources on which the use acts.
func (u Use) rule() rule {
	const granted = Granted | GrantedLeft
	switch u {
	case Review:
		return rule{always: ByBinding | Announced | granted | TwoLists, countsLocated: true}
	case Override:
		return rule{always: ByBinding | Announced | granted | lists, countsLocated: true}
	case Target:
		return rule{always: ByBinding | Announced | Own | OwnEarlier | granted}
	case Verified:
		return rule{always: Bound | TwoLists}
	case Unlabelled:
		return rule{always: Bound | Name | Announced | Own | Granted | TwoLists, silent: NameGivenUp | OneList}
	case Label:
		return rule{always: Bound | Granted | TwoLists}
	case GuardPod:
		return rule{always: Bound | Announced}
	case Keep:
		return rule{always: Bound, silent: ByBinding}
	case Lost:
		return rule{always: AnyList}
	}
	return rule{}
}

// Accepts reports whether the place suffices for the use. isSilent means that the agent of the Node
// has not reported whether it found a member.
func (u Use) Accepts(p Place, isSilent bool) bool {
	r := u.rule()
	by := p.By
	if p.IsLocated && !r.countsLocated {
		by &^= lists
	}
	return by&r.always != 0 || (isSilent && by&r.silent != 0)
}

// Members returns, sorted, the members whose places suffice for the use.
func (u Use) Members(places []Place, isSilent bool) []v1alpha1.MemberID {
	var found []v1alpha1.MemberID
	for _, p := range places {
		if u.Accepts(p, isSilent) {
			found = append(found, p.Member)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}
