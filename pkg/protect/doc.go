// Package protect decides whether a node holds an etcd member, and which marks its Node carries.
//
// Assess makes the decision from a scan of the host. AssessWithoutScan is its counterpart for a
// host that cannot be scanned. Marks returns the annotations and labels to change on the Node, and
// Protection.Message is the message of the Node's condition EtcdMember. Whether a Node may be
// deleted is decided by package quorum.
//
// All functions are pure: no clock, no context, no log, no error. Each result contains the sentence
// that explains it to people. A value that could not be read is unknown, and never yes or no.
package protect
