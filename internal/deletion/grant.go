package deletion

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/clusterstore"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// grant writes the grant for one cluster and returns the verdict that it stands for. It decides
// from Nodes that it reads now, and decides again from a newer version whenever another grant
// was written first. It then requests no new probe: the observations are as true as before.
// It writes nothing unless decide allows.
//
// nonces is a function because observations with further nonces may arrive meanwhile. decide is
// quorum.Decide, or quorum.Force for a break-glass override.
func (r *Reviewer) grant(
	ctx context.Context, req quorum.Request, c *v1alpha1.EtcdCluster, nonces func() []string,
	decide func(quorum.View, quorum.Request) quorum.Verdict,
) (quorum.Verdict, error) {
	for {
		view, err := r.store.View(ctx, c, nonces(), req.Node)
		if err != nil {
			return quorum.Verdict{}, err
		}
		verdict := decide(view, req)
		if !verdict.Allowed || len(verdict.Members) == 0 {
			return verdict, nil
		}
		if err := requireNode(view.Nodes[req.Node], req); err != nil {
			return quorum.Verdict{}, err
		}
		ops := clusterstore.ReplaceGrants(c, clusterstore.WithGrant(c.Spec.Grants, newGrant(view, req, verdict)))
		if named := c.Annotations[quorum.ResolveAnnotation]; named == string(req.UID) {
			// The annotation of an operator is about an earlier deletion of this Node.
			ops = append(ops, clusterstore.RemoveResolveAnnotation(named)...)
		}
		if _, err = r.store.Patch(ctx, c, ops); err == nil {
			return verdict, nil
		}
		if !errors.Is(err, clusterstore.ErrConflict) {
			return quorum.Verdict{}, fmt.Errorf("recording the grant: %w", err)
		}
		if c, err = r.store.Cluster(ctx, c.Name); err != nil {
			return quorum.Verdict{}, err
		}
	}
}

// newGrant returns the grant that the verdict requires. It is never weaker than the grant that it
// replaces: a deletion keeps the time of the drain, and a drain leaves the grant of a deletion as
// it is, except for its times.
func newGrant(view quorum.View, req quorum.Request, v quorum.Verdict) v1alpha1.Grant {
	machine, now := view.Nodes[req.Node].Machine, metav1.Now()
	g := v1alpha1.Grant{
		NodeUID: req.UID, Node: req.Node, Members: v.Members, Time: now, User: cmp.Or(req.User, noUser),
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
