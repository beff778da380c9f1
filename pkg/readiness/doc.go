// Package readiness decides whether a node is held, released or left alone while its network comes up.
//
// It is pure: what the host shows goes in as Facts, the Node as it stands goes in beside it, and out comes what the Node
// should look like, with the sentence that says what is missing. A signal that could not be read keeps its gate shut.
package readiness
