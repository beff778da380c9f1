package deletion

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// grant writes the grant for one cluster and returns the verdict that it stands for.
func (r *Reviewer) grant(
	ctx context.Context, req quorum.Request, c *v1alpha1.EtcdCluster, nonces func() []string,
	decide func(quorum.View, quorum.Request) quorum.Verdict,
) (quorum.Verdict, error) {
	return r.grants.do(&grantRequest{
		ctx: ctx, request: req, cluster: c, nonces: nonces, decide: decide, done: make(chan struct{}),
	}, r.writeGrants)
}

// newGrant returns the grant that the verdict requires. It is never weaker than the grant that it
// replaces: a deletion keeps the time of the drain, and a drain leaves the grant of a deletion as
// it is, except for its times.
func newGrant(view quorum.View, req quorum.Request, v quorum.Verdict) v1alpha1.Grant {
	machine, now := view.Nodes[req.Node].Machine, metav1.Now()
	g := v1alpha1.Grant{
		NodeUID: req.UID, Node: req.Node, Members: v.Members, Voters: v.VoterIDs, Time: now, User: cmp.Or(req.User, noUser),
		NodeVersion: req.Version, Reason: v1alpha1.GrantDeletion, BreakGlass: req.BreakGlass != nil,
		MachineID: machine.MachineID, SystemUUID: machine.SystemUUID,
		Addresses: quorum.MachineAddresses(view.Cluster, v.Members, req.Addresses),
	}
	old, isRenewed := grantFor(view.Cluster, req.UID)
	switch {
	case req.Drain && isRenewed && old.Reason != v1alpha1.GrantDrain:
		old.Time, old.Drained, old.BreakGlass = now, &now, old.BreakGlass || g.BreakGlass
		old.Members = append(old.Members, v.Members...)
		slices.Sort(old.Members)
		old.Members = slices.Compact(old.Members)
		return old
	case req.Drain:
		g.Reason, g.Drained = v1alpha1.GrantDrain, &now
	case isRenewed:
		g.Drained = old.Drained
	}
	return g
}

// noUser is the user in a grant for an account without a name. A grant without a user is one that
// no review wrote.
const noUser = "an account without a name"

// grantFor returns a copy of the grant for a Node.
func grantFor(c *v1alpha1.EtcdCluster, uid types.UID) (g v1alpha1.Grant, isFound bool) {
	at := slices.IndexFunc(c.Spec.Grants, func(g v1alpha1.Grant) bool { return g.NodeUID == uid })
	if at < 0 {
		return v1alpha1.Grant{}, false
	}
	return *c.Spec.Grants[at].DeepCopy(), true
}

// requireNode returns an error unless the Node of the request exists with its UID: a forged
// request must not leave a grant.
func requireNode(s observation.NodeState, req quorum.Request) error {
	switch {
	case !s.Known:
		return fmt.Errorf("reading node %q: the API server did not answer in time", req.Node)
	case s.UID != req.UID:
		return fmt.Errorf("finding node %q: there is none with UID %q", req.Node, req.UID)
	}
	return nil
}
