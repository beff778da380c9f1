package machine

// A Request is a request of a controller that Holdfast reviews before a machine ends.
type Request int

// The requests.
const (
	// NoRequest: the machine ends without another review.
	NoRequest Request = iota
	// DeleteObject is the deletion of the Machine or the NodeClaim.
	DeleteObject
	// DeleteNode is the deletion of the Node, by the controller of a NodeClaim.
	DeleteNode
	// RemoveHook is the removal of the hook from a Machine, by the leader of the webhook.
	RemoveHook
)

// Next returns the next request before the machine of the object ends. hasNode reports whether the
// Node of the machine exists. The review of the last request before NoRequest decides, whatever was
// answered before: another member may have failed since (docs/verdict.md, F65, F69, F72).
//
//	kind       deleting  hooked  registered and has a Node   next
//	any        no        -       -                           DeleteObject
//	Machine    yes       yes     -                           RemoveHook
//	Machine    yes       no      -                           NoRequest
//	NodeClaim  yes       -       yes                         DeleteNode
//	NodeClaim  yes       -       no                          NoRequest
//
// A NodeClaim is registered if its controller knows its Node (karpenter,
// pkg/controllers/nodeclaim/lifecycle/termination.go). It deletes that Node first, and ends the
// machine when the Node is gone.
func (o Object) Next(hasNode bool) Request {
	switch {
	case !o.Deleting:
		return DeleteObject
	case o.Kind == KindNodeClaim && o.IsRegistered && hasNode:
		return DeleteNode
	case o.Kind != KindNodeClaim && o.IsHooked:
		return RemoveHook
	}
	return NoRequest
}

// EndsWithNode reports whether the deletion of the object is the last request about its machine
// while its Node is being deleted: the Node is gone before the machine ends.
func (o Object) EndsWithNode() bool {
	o.Deleting = true
	return o.Next(false) == NoRequest
}

// IsEnding reports whether the controller ends the machine of the object without another request.
func (o Object) IsEnding(hasNode bool) bool { return o.Next(hasNode) == NoRequest }
