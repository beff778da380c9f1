// Package readiness decides whether a Node is held, released or left alone while its network
// comes up.
//
// A caller passes to Decide the Node as the API server has it, the Facts of one inspection of
// the host, and the operator's Policy. Decide returns a Decision: the cordon, taints,
// annotations and conditions to write, and a message that names everything that is missing.
// The caller writes the Decision and calls Decide again when the Node or the host changes.
// Once nothing is left to do, a Decision contains only conditions that are already set.
//
// The webhook's leader does not observe hosts. It passes each Node and the age of its hold to
// CheckHold, which reports holds without an agent and holds that last too long.
//
// A hold is a cordon (or a taint) together with the Record in HoldAnnotation, which states
// that Holdfast set it. A gate is one requirement for the release of a node, such as a usable
// CNI configuration. A requirement that could not be checked keeps its gate closed.
//
// The package is pure: it reads no files, no network and no clock.
package readiness
