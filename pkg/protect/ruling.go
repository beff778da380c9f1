package protect

// CannotDecide is the reason of a refusal that is about Holdfast itself: what a verdict needs could not be read, or a
// grant could not be written. It says nothing about etcd.
const CannotDecide Reason = "CannotDecide"

// Question is the deletion of one Node as the webhook was asked about it.
type Question struct {
	Request Request
	// User is who asks, by name; it goes into the grant.
	User string
	// DryRun says that nothing may be written, and so that no agent can be asked to look again.
	DryRun bool
	// BreakGlass is the valid permission to set the verdict aside that the Node carries, nil if it carries none.
	BreakGlass *BreakGlass
}

// Ruling is the answer to a Question over all etcd clusters. The zero value refuses.
type Ruling struct {
	Allowed bool
	// Message explains, with the next step if the deletion is refused.
	Message string
	// Warnings are what the person who was allowed should know.
	Warnings []string
	// Reason is that of the verdict which tipped the scales.
	Reason Reason
	// Verdicts are the answers cluster by cluster, in the order of cluster ID.
	Verdicts []Verdict
}
