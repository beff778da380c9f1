package protect

import (
	"slices"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// outlived says that a member which was announced has left its cluster and that nothing here is taken for it any more. A
// server that does not answer is: it is the removed member by all appearance, with its data left behind, and only an
// announcement gets its node judged by the cluster, which finds nothing to protect. Unless the cluster has a member that
// nobody is bound to: then the silent server may be that one, having joined again, and who it is stays unknown.
func outlived(c *v1alpha1.EtcdCluster, m v1alpha1.MemberID, silent bool) bool {
	return c != nil && Departed(c, m) && (!silent || unclaimed(c))
}

// unclaimed says that some list has a member that is bound to no Node.
func unclaimed(c *v1alpha1.EtcdCluster) bool {
	return len(Unbound(c)) > 0
}

// replaced says that a member which was announced is no more, because all that was found here is somebody else and the
// member's cluster is not known for anything but that announcement. So it is when etcd was restored from a snapshot, which
// gives it a new cluster ID: announced on, the old one would be made anew for ever, with nobody who could see it.
func replaced(c *v1alpha1.EtcdCluster, m v1alpha1.MemberID, incomplete bool) bool {
	return !incomplete && (c == nil || (!binds(c, m) && !listedByAny(observers(c), m)))
}

func binds(c *v1alpha1.EtcdCluster, m v1alpha1.MemberID) bool {
	return slices.ContainsFunc(c.Spec.Members, func(b v1alpha1.Binding) bool { return b.MemberID == m })
}
