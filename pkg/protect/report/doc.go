// Package report describes what Holdfast knows about a Kubernetes cluster: its [Status], a [Page]
// about one Node, and a [Plan] for the replacement of Nodes.
//
// The answers come from the same decisions as the verdicts of the webhook (package quorum). They
// are based on the last observations of the agents, because a reader cannot request new ones, and
// on no observation that is older than observation.SilentAfter. All functions are pure.
package report

// Version is the version of the JSON of all reports. It changes when a key is removed or gets
// another meaning. New keys do not change it.
const Version = 1
