package quorum

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// A DoorKind says by which door of a grant the machine may leave.
type DoorKind string

// The kinds of doors. Each is the name of a field of a Grant.
const (
	DoorDelete  DoorKind = "Delete"
	DoorMachine DoorKind = "Machine"
	DoorDrain   DoorKind = "Drain"
	DoorRemove  DoorKind = "Remove"
	DoorGone    DoorKind = "Gone"
)

// An OpenDoor is an open door of a grant.
type OpenDoor struct {
	Kind DoorKind
	v1alpha1.Door
}

// Doors returns the open doors of a grant, the last opened one last.
func Doors(g v1alpha1.Grant) []OpenDoor {
	var open []OpenDoor
	for _, d := range []struct {
		kind DoorKind
		door *v1alpha1.Door
	}{{DoorDrain, g.Drain}, {DoorRemove, g.Remove}, {DoorMachine, g.Machine}, {DoorDelete, g.Delete}, {DoorGone, g.Gone}} {
		if d.door != nil {
			open = append(open, OpenDoor{d.kind, *d.door})
		}
	}
	slices.SortStableFunc(open, func(a, b OpenDoor) int { return a.Time.Compare(b.Time.Time) })
	return open
}

// LastDoor returns the door that was opened last. A grant without a door is from an earlier
// version.
func LastDoor(g v1alpha1.Grant) OpenDoor {
	open := Doors(g)
	if len(open) == 0 {
		return OpenDoor{Kind: DoorGone}
	}
	return open[len(open)-1]
}

// AreSame reports whether two lists of doors are the same: none was added, or opened again. The
// time of the last door does not show that, because the clock that opened an earlier one may have
// been ahead (docs/verdict.md, F98).
func AreSame(a, b []OpenDoor) bool {
	return slices.EqualFunc(a, b, func(x, y OpenDoor) bool {
		isSameTime := x.Time.Equal(&y.Time)
		x.Time, y.Time = metav1.Time{}, metav1.Time{}
		return isSameTime && x == y
	})
}

// LastOpened returns when the last door of the grant was opened.
func LastOpened(g v1alpha1.Grant) metav1.Time { return LastDoor(g).Time }

// IsDrainOnly reports whether a drain of the node was allowed, but no deletion. The removal of its
// member may have been allowed too: the drain lasts longer.
func IsDrainOnly(g v1alpha1.Grant) bool { return g.Drain != nil && !AllowsDeletion(g) }

// AllowsDeletion reports whether the grant is for the deletion of the Node or its machine. A grant
// without a door is from an earlier version.
func AllowsDeletion(g v1alpha1.Grant) bool {
	return g.Delete != nil || g.Machine != nil || g.Gone != nil || len(Doors(g)) == 0
}

// IsByEtcdMember reports whether the grant is for a removal by an EtcdMember of k0s, which marks no
// Node.
func IsByEtcdMember(g v1alpha1.Grant) bool { return g.Remove != nil && g.Remove.Version == "" }

// With returns the grant of the request's machine after one more door of it is opened. It is the
// only function that opens a door for a request. Doors are added and never replaced by another
// kind, and members, addresses and identities only grow, so a later request takes nothing from an
// earlier one that may still be carried out. old is the present grant of the same Node, or the zero
// value.
func With(v View, old v1alpha1.Grant, r Request, members []v1alpha1.MemberID) v1alpha1.Grant {
	n, g := v.Nodes[r.Node], *old.DeepCopy()
	g.NodeUID, g.Node = r.UID, r.Node
	g.Members = slices.Concat(old.Members, members)
	slices.Sort(g.Members)
	g.Members = slices.Compact(g.Members)
	g.MachineID = cmp.Or(n.Machine.MachineID, old.MachineID)
	g.SystemUUID = cmp.Or(n.Machine.SystemUUID, old.SystemUUID)
	g.ProviderID = cmp.Or(n.ProviderID, old.ProviderID)
	g.Addresses = MachineAddresses(v.Cluster, g.Members, slices.Concat(old.Addresses, r.Addresses))
	door := &v1alpha1.Door{
		Time: metav1.NewTime(v.Now), User: cmp.Or(r.User, noUser), BreakGlass: r.BreakGlass != nil,
	}
	switch r.Door {
	case DoorDrain:
		if old.Drain != nil && old.Drain.BreakGlass {
			door.User, door.BreakGlass = old.Drain.User, true // the forced one may not have begun
		}
		g.Drain = door
	case DoorRemove:
		if door.Version = r.Version; IsByEtcdMember(old) {
			door.Version = "" // The EtcdMember may still ask for the removal.
		}
		g.Remove = door
	case DoorMachine:
		g.Machine = door
	case DoorDelete, DoorGone, "":
		door.Version = r.Version
		if old.Delete != nil {
			door.Version = laterVersion(old.Delete.Version, r.Version)
		}
		g.Delete = door
	}
	return g
}

// noUser is the user of a door for an account without a name.
const noUser = "an account without a name"

// laterVersion returns the later one of two versions of a Node. Several DELETEs of one Node may be
// reviewed at once, each for the version that it has read, and the one for the later version may be
// carried out. Versions that cannot be compared give none, which no version of the Node makes void.
func laterVersion(a, b string) string {
	order, err := resourceversion.CompareResourceVersion(a, b)
	switch {
	case err != nil:
		return ""
	case order > 0:
		return a
	}
	return b
}

// IsVoid reports whether the DELETE that the grant allowed can no longer be carried out, and no
// other door is open. The API server deletes exactly the version of a Node that it had reviewed. If
// the Node was written since, it reviews the new version before it deletes the Node. A version that
// is not later shows nothing, because the state may be from before the grant.
func IsVoid(g v1alpha1.Grant, n observation.NodeState) bool {
	if g.Delete == nil || len(Doors(g)) > 1 || !n.Known || n.UID != g.NodeUID || n.Deleting {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(n.Version, g.Delete.Version)
	return err == nil && order > 0
}

// withoutVoid returns the cluster without the grants that are void.
func withoutVoid(c *v1alpha1.EtcdCluster, nodes map[string]observation.NodeState) *v1alpha1.EtcdCluster {
	open := *c
	open.Spec.Grants = slices.DeleteFunc(slices.Clone(c.Spec.Grants),
		func(g v1alpha1.Grant) bool { return IsVoid(g, nodes[g.Node]) })
	return &open
}
