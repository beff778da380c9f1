// Package protect decides two things about etcd on nodes: whether a node holds a member (Assess), and whether the
// deletion of a Node may go ahead (Decide).
//
// Both are pure: no clock, no context, no log, no error. Each answer carries the sentence that explains it, and that
// sentence is what `kubectl describe node`, the refusal, the event and the log show. What could not be read is a value
// of its own here, never a "no" and never a "yes".
package protect
