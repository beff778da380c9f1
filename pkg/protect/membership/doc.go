// Package membership maintains the bindings and grants in the spec of an EtcdCluster. A binding
// records that a member runs on a Node, a grant that a Node with members was allowed to go.
//
// Bind returns the next bindings of a cluster from what the agents claim. Tombstones returns the
// grants that are missing for Nodes that are gone. Resolve decides whether a grant has ended, and
// ResolveByHand ends one on behalf of an operator.
//
// All functions are pure. The leader calls them in each round and writes the results.
package membership
