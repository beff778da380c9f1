package membership

import (
	"slices"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// hasEnded reports whether a binding has ended: no confirmed list of this request contains the
// member, and the lists are conclusive, or the host itself is known to be empty.
//
// With the word of the host one list is enough, because each of the two alone proves nothing. A
// false list frees a node only if its own agent found neither a server nor data there, so that no
// member is lost with it. An agent that is wrong, for example because a disk is not mounted, frees
// its node only if a quorum has confirmed a list without the member.
func hasEnded(s quorum.Snapshot, b v1alpha1.Binding) bool {
	if len(s.Lists) == 0 || observation.IsListedByAny(s.Lists, b.MemberID) {
		return false
	}
	return s.IsConclusive() || slices.ContainsFunc(s.Cluster.Status.Observations, func(o v1alpha1.Observation) bool {
		return o.NoMember && o.Node == b.Node && o.NodeUID == b.NodeUID
	})
}
