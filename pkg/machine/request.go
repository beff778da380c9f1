package machine

// IsEnding reports whether the controller ends the machine of the object without another request
// that Holdfast reviews. hasNode reports whether the Node of the machine exists. The review of the
// last request decides, whatever was answered before: another member may have failed since
// (docs/verdict.md, F65, F69, F72).
//
//	kind       deleting  hooked  registered and has a Node   next request
//	any        no        -       -                           the deletion of the object
//	Machine    yes       yes     -                           the removal of the hook, by the leader
//	Machine    yes       no      -                           none
//	NodeClaim  yes       -       yes                         the deletion of the Node
//	NodeClaim  yes       -       no                          none
//
// A NodeClaim is registered if its controller knows its Node (karpenter,
// pkg/controllers/nodeclaim/lifecycle/termination.go). It deletes that Node first, and ends the
// machine when the Node is gone.
func (o Object) IsEnding(hasNode bool) bool {
	if o.Kind == KindNodeClaim {
		return o.Deleting && (!o.IsRegistered || !hasNode)
	}
	return o.Deleting && !o.IsHooked
}

// EndsWithNode reports whether the deletion of the object is the last request about its machine
// while its Node is being deleted: the Node is gone before the machine ends.
func (o Object) EndsWithNode() bool {
	o.Deleting = true
	return o.IsEnding(false)
}
