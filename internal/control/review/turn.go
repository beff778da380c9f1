package review

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore"
	"github.com/holdfast-dev/holdfast/internal/shared/apiaccess"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// turn reads the observations and the Nodes, decides for each attempt of the batch in the order of
// their arrival, and writes the grants of all in one patch. Each decision counts the grants before
// it. If another grant was written first, turn reads and decides again. It then requests no new
// probe: the answers are as true as before.
func (r *Reviewer) turn(batch []*attempt) {
	ctx, cancel := batchContext(batch)
	defer cancel()
	c := r.newestCluster(ctx, batch)
	for {
		err := r.readAndWrite(ctx, c, batch)
		if errors.Is(err, clusterstore.ErrConflict) {
			if c, err = r.store.LiveCluster(ctx, c.Name); err == nil {
				continue
			}
		}
		if err != nil {
			for _, a := range batch {
				a.verdict, a.err = quorum.Verdict{}, err
			}
		}
		return
	}
}

// readAndWrite makes one attempt at a turn. It fails with clusterstore.ErrConflict if another grant
// was written first.
func (r *Reviewer) readAndWrite(ctx context.Context, c *v1alpha1.EtcdCluster, batch []*attempt) error {
	view, err := r.viewFor(ctx, c, batch)
	if err != nil {
		return err
	}
	ops := decideAll(view, batch)
	if len(ops) == 0 {
		return nil
	}
	switch _, err = r.store.Patch(ctx, c, ops); {
	case errors.Is(err, clusterstore.ErrConflict):
		return err
	case err != nil:
		err = fmt.Errorf("recording the grant: %w", err)
	}
	for _, a := range batch {
		if a.needsWrite {
			a.err = err // nil if the grants were written
		}
	}
	return nil
}

// viewFor reads the observations and the Nodes for the attempts. The state of a Node that cannot be
// read is unknown.
func (r *Reviewer) viewFor(ctx context.Context, c *v1alpha1.EtcdCluster, batch []*attempt) (quorum.View, error) {
	names := make([]string, len(batch))
	for i, a := range batch {
		names[i] = a.request.Node
	}
	reading, cancel := readingTime(ctx)
	defer cancel()
	view, err := r.store.View(reading, c, names...)
	view.Now = r.now()
	return view, err
}

// maxReadingTime limits the reads of a turn: others with less time may wait for it.
const maxReadingTime = 5 * time.Second

// readingTime returns the context of the reads of a turn, which leave time for the grant.
func readingTime(ctx context.Context) (context.Context, context.CancelFunc) {
	limit := maxReadingTime
	if deadline, isSet := ctx.Deadline(); isSet {
		left := time.Until(deadline)
		limit = min(limit, max(left-grantReserve, left/2))
	}
	return context.WithTimeout(ctx, limit)
}

// decideAll decides each attempt, and returns the patch with their grants. It is empty if there are
// none.
func decideAll(view quorum.View, batch []*attempt) []clusterstore.Operation {
	before := view.Cluster
	var ops []clusterstore.Operation
	for _, a := range batch {
		view.Nonces, view.Others = a.result().Nonces, a.others
		grant, isNew := a.decideOne(view)
		if a.needsWrite = a.err == nil && (isNew || view.Cluster != before); a.needsWrite {
			a.err = errNotRecorded
		}
		if !isNew {
			continue
		}
		after := *view.Cluster
		after.Spec.Grants = clusterstore.WithGrant(after.Spec.Grants, grant)
		view.Cluster = &after
		if named := before.Annotations[quorum.ResolveAnnotation]; named == string(a.request.UID) && len(ops) == 0 {
			// The annotation of an operator is about an earlier deletion of this Node.
			ops = clusterstore.RemoveResolveAnnotation(named)
		}
	}
	if view.Cluster == before {
		return nil
	}
	return append(clusterstore.ReplaceGrants(before, view.Cluster.Spec.Grants), ops...)
}

// decideOne decides the attempt, and returns the grant that it needs.
func (a *attempt) decideOne(view quorum.View) (grant v1alpha1.Grant, isNew bool) {
	a.verdict, a.err = quorum.Verdict{}, context.Cause(a.ctx)
	if a.err != nil {
		return grant, false
	}
	verdict := a.judge(view, a.request)
	if !a.mayGrant || !verdict.Allowed || len(verdict.Members) == 0 || !a.ends(verdict) {
		a.verdict = verdict
		return grant, false
	}
	if a.err = requireNode(view.Nodes[a.request.Node], a.request); a.err != nil {
		return grant, false
	}
	a.verdict = verdict
	return quorum.With(view, grantFor(view.Cluster, a.request.UID), a.request, verdict.Members), true
}

// ends reports whether the review waits for no further observation.
func (a *attempt) ends(v quorum.Verdict) bool { return v.Final || a.mustEnd }

// grantFor returns the grant for a Node, or the zero value.
func grantFor(c *v1alpha1.EtcdCluster, uid types.UID) v1alpha1.Grant {
	at := slices.IndexFunc(c.Spec.Grants, func(g v1alpha1.Grant) bool { return g.NodeUID == uid })
	if at < 0 {
		return v1alpha1.Grant{}
	}
	return c.Spec.Grants[at]
}

// requireNode returns an error unless the Node of the request exists with its UID: a forged
// request must not leave a grant.
func requireNode(s observation.NodeState, req quorum.Request) error {
	switch {
	case !s.Known:
		return fmt.Errorf("finding node %q: it cannot be read", req.Node)
	case s.UID != req.UID:
		return fmt.Errorf("finding node %q: there is none with UID %q", req.Node, req.UID)
	}
	return nil
}

// newestCluster returns the newest version that an attempt of the batch knows. For an attempt that
// waits no longer, it is read now: watches that hang must not hide the nonces and the answers.
func (r *Reviewer) newestCluster(ctx context.Context, batch []*attempt) *v1alpha1.EtcdCluster {
	newest := batch[0].result().Cluster
	for _, a := range batch[1:] {
		if c := a.result().Cluster; apiaccess.IsNewer(c, newest) {
			newest = c
		}
	}
	if !slices.ContainsFunc(batch, func(a *attempt) bool { return a.mustEnd }) {
		return newest
	}
	reading, cancel := readingTime(ctx)
	defer cancel()
	if live, err := r.store.LiveCluster(reading, newest.Name); err == nil {
		return live
	}
	return newest
}
