// Package quorum decides whether a Node may be deleted or drained, or its member removed, without
// breaking the quorum of an etcd cluster.
//
// A caller has the EtcdClusters and a [Request] for the deletion of one Node:
//
//  1. [SelectOrDecide] returns the clusters that may have a member on the Node ([Select]), or
//     refuses where a decision is impossible ([RefuseUndecidable], [RefuseUnattributed]).
//     [RefuseUnparsable] refuses a Node whose announcement cannot be read.
//  2. The caller requests fresh observations from the agents of each selected cluster and
//     builds a [View].
//  3. [Decide] returns the [Verdict] for one cluster. The deletion is allowed if every verdict
//     allows it. The caller writes a grant with Verdict.Members before the deletion proceeds.
//
// [DecideUnlabelled] answers for a Node without the etcd label from cached EtcdClusters.
// [ParseBreakGlass] and [Force] implement the override. [Summarize] describes a cluster when no
// deletion is requested.
//
// A verdict has facts. Package words words them, and no function here builds a sentence.
//
// All functions are pure: they use no clock, no context, no log and no I/O, and they do not
// modify their arguments. A value that could not be read has its own representation. It counts
// neither as good news nor as the absence of a member.
//
// docs/verdict.md lists every rule with its tests.
package quorum
