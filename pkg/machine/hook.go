package machine

// A HookStep is what is to be done about the HookAnnotation of a Machine.
type HookStep int

// The steps.
const (
	// HookKeep leaves the Machine as it is.
	HookKeep HookStep = iota
	// HookAdd sets the annotation.
	HookAdd
	// HookRemove removes the annotation, because the Machine stands for no node with etcd.
	HookRemove
	// HookReview asks for a review: the annotation is all that keeps Cluster API from ending the
	// machine.
	HookReview
)

// PlanHook returns the step for a Machine. hasEtcd reports whether the Machine stands for a node
// with etcd.
//
// A Machine that is being deleted without the annotation does not get it: its machine may be about
// to end already, or the end was allowed. One that has the annotation keeps it until its end is
// reviewed, also if no node with etcd is known: the review knows best, and it is the last one.
func PlanHook(o Object, hasEtcd bool) HookStep {
	switch {
	case o.Kind != KindMachine:
		return HookKeep
	case !o.IsHooked && hasEtcd && !o.Deleting:
		return HookAdd
	case o.IsHooked && o.Deleting && o.AwaitsHook:
		return HookReview
	case o.IsHooked && !o.Deleting && !hasEtcd:
		return HookRemove
	}
	return HookKeep
}

// IsEnding reports whether the controller ends the machine of the object without another request
// that Holdfast reviews. A Machine with the hook, and a NodeClaim whose Node Karpenter deletes
// first, still wait for one.
func (o Object) IsEnding() bool {
	if o.Kind == KindNodeClaim {
		return o.Deleting && !o.IsRegistered
	}
	return o.Deleting && !o.IsHooked
}
