// Package guard defines the guard pods: pods that run on nodes with etcd and do nothing. A program
// that drains a node must evict its guard pod, and Holdfast judges that eviction like the deletion
// of the Node.
package guard

import (
	"fmt"
	"hash/fnv"
)

const (
	// Namespace is the namespace of all guard pods.
	Namespace = "holdfast-system"
	// NamePrefix is the beginning of the names of all guard pods. The webhook configuration selects
	// evictions by it.
	NamePrefix = "holdfast-guard-"
	// NodeLabel is the label of guard pods. Its value does not matter.
	NodeLabel = "holdfast.dev/drain-guard"
	// Never is the value of the label NodeLabel by which a Node has no guard pod.
	Never = "never"

	maxName = 253 // of a pod
)

// Name returns the name of the guard pod of a node. A node has at most one.
func Name(node string) string {
	if len(NamePrefix)+len(node) <= maxName {
		return NamePrefix + node
	}
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(node)) // a hash returns no error
	suffix := fmt.Sprintf("-%016x", hash.Sum64())
	return NamePrefix + node[:maxName-len(NamePrefix)-len(suffix)] + suffix
}
