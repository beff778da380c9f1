package departure

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// removalRows returns the annotations on which a distribution removes the etcd member of a Node,
// while that is still to be done.
//
// k3s removes the member if the value is "true" in any case (pkg/etcd/member_controller.go). It
// then writes the name of the member into another annotation. While that one is there, nothing is
// left to do. When the server joins again, k3s removes it and sets the marker to "false". RKE2 runs
// the same controller, and the server of the node ends its static pods as soon as it reads "true",
// also if etcd refuses to remove the member (pkg/rke2/spc.go, rke2#4066).
func removalRows() []markRow {
	row := markRow{class: ForGood, kind: Annotation, says: "is marked for the removal of its etcd member", onlyTrue: true}
	k3s, rke2 := row, row
	k3s.key, k3s.unless = "etcd.k3s.cattle.io/remove", "etcd.k3s.cattle.io/removed-node-name"
	rke2.key, rke2.unless, rke2.stopsFirst = "etcd.rke2.cattle.io/remove", "etcd.rke2.cattle.io/removed-node-name", true
	return []markRow{k3s, rke2}
}

// IsRemoval reports whether the mark announces the removal of the member, and not of its machine.
func (m Mark) IsRemoval() bool {
	return slices.ContainsFunc(removalRows(), func(r markRow) bool { return r.key == m.Key })
}

// A Removal is what an update of a Node asks a distribution to do.
type Removal struct {
	// Key is the key of the marker, empty if the update sets none.
	Key string
	// StopsFirst means that the member may stop before it is removed.
	StopsFirst bool
}

// RemovalBy returns which marker an update of a Node sets. The update sets a marker if the member
// would not have been removed before, or has been removed already and would be again. The match
// condition of the webhook configuration is the same rule.
func RemovalBy(old, updated *corev1.Node) Removal {
	var found Removal
	for _, pending := range removalRows() {
		marked := pending
		marked.unless = ""
		if marked.isNew(old, updated) || pending.isNew(old, updated) {
			found = Removal{Key: pending.key, StopsFirst: found.StopsFirst || pending.stopsFirst}
		}
	}
	return found
}

func (r markRow) isNew(old, updated *corev1.Node) bool {
	return r.on(old).Key == "" && r.on(updated).Key != ""
}
