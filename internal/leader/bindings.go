package leader

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/clusterstore"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/membership"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// madeForAnnotation on an EtcdCluster names the Node whose announcement it was created from.
const madeForAnnotation = "holdfast.dev/made-for"

// tombstoneEvent is the reason of the event about a Node that is gone although no review allowed
// its deletion.
const tombstoneEvent = "Tombstone"

// createClusters creates the EtcdClusters that are announced and missing. An empty object
// protects no node and refuses no deletion until membership.Bind accepts a claim; it only allows
// agents to report. The number per Node is bounded, so that one Node cannot use up the limit of
// all.
func (l *Leader) createClusters(ctx context.Context, existing []*v1alpha1.EtcdCluster, index nodeIndex) error {
	var errs []error
	count, madeFor := len(existing), map[string]int{}
	for _, c := range existing {
		madeFor[c.Annotations[madeForAnnotation]]++
	}
	for _, id := range index.announcedClusters() {
		if slices.ContainsFunc(existing, func(c *v1alpha1.EtcdCluster) bool { return c.Name == string(id) }) {
			continue
		}
		c := &v1alpha1.EtcdCluster{}
		c.Name = string(id)
		announcers := index.announcers(c)
		at := slices.IndexFunc(announcers, func(node string) bool { return madeFor[node] < l.MaxClustersPerNode })
		if at < 0 || count >= l.MaxClusters {
			if l.logged.Changed("create/"+c.Name, "too many") {
				l.Log.Warn("not creating an EtcdCluster for an announced etcd cluster: too many exist; "+
					"delete those of etcd clusters that no longer exist",
					"etcd_cluster", id, "announced_by", announcers, "objects", count, "limit", l.MaxClusters,
					"limit_per_node", l.MaxClustersPerNode)
			}
			continue
		}
		c.Annotations = map[string]string{madeForAnnotation: announcers[at]}
		switch err := l.createAnnounced(ctx, c, announcers[at]); {
		case errors.Is(err, errNotAnnounced):
			continue // The cache will deliver the new version of the Node.
		case apierrors.IsAlreadyExists(err):
		case err != nil:
			errs = append(errs, fmt.Errorf("creating etcd cluster %s: %w", id, err))
			continue
		default:
			l.Log.Info("created an EtcdCluster for an announced etcd cluster",
				"etcd_cluster", id, "announced_by", announcers[at])
		}
		count++
		madeFor[announcers[at]]++
	}
	return errors.Join(errs...)
}

var errNotAnnounced = errors.New("the node no longer announces the etcd cluster")

// createAnnounced creates the EtcdCluster if the Node still announces it. The Node is read without
// the cache. Otherwise the leader would create an EtcdCluster again that an operator deletes just
// after the announcement was removed.
func (l *Leader) createAnnounced(ctx context.Context, c *v1alpha1.EtcdCluster, announcer string) error {
	live := l.Store.LiveNodes(ctx, []string{announcer})[announcer]
	if live.Err != nil {
		return fmt.Errorf("reading node %q: %w", announcer, live.Err)
	}
	if live.Node == nil || !slices.ContainsFunc(claimOf(live.Node).Announced,
		func(ref evidence.MemberRef) bool { return string(ref.Cluster) == c.Name }) {
		return errNotAnnounced
	}
	return l.Store.Create(ctx, c)
}

// writeTombstones writes grants for Nodes that are gone without one: the members of a deleted
// Node are lost, whether or not a review allowed the deletion.
func (l *Leader) writeTombstones(ctx context.Context, v quorum.View) (*v1alpha1.EtcdCluster, error) {
	tombstones := membership.Tombstones(v)
	if len(tombstones) == 0 {
		return v.Cluster, nil
	}
	grants := v.Cluster.Spec.Grants
	for _, g := range tombstones {
		if g.Time.IsZero() {
			g.Time.Time = l.Now()
			_, g.BreakGlass = l.overrides.of(g.NodeUID)
		}
		grants = clusterstore.WithGrant(grants, g)
	}
	made, err := l.Store.Patch(ctx, v.Cluster, clusterstore.ReplaceGrants(v.Cluster, grants))
	if err != nil {
		return nil, err
	}
	for _, g := range tombstones {
		message := l.overrides.tombstoneMessage(g)
		l.Log.Warn("node is gone without a review; its members count as lost",
			"etcd_cluster", v.Cluster.Name, "node", g.Node, "node_uid", g.NodeUID, "members", g.Members, "message", message)
		l.Event(made, tombstoneEvent, message)
	}
	return made, nil
}

// writeBindings writes the bindings that follow from the observations and the claims.
func (l *Leader) writeBindings(
	ctx context.Context, v quorum.View, claims []observation.NodeClaim, s *clusterState,
) (*v1alpha1.EtcdCluster, error) {
	c := v.Cluster
	bindings, refused := membership.Bind(c, claims, v.Nonces)
	if text := strings.Join(refused, "; "); s.logged.Changed("refused", text) && text != "" {
		l.Log.Warn("refused a node's claim to a member", "etcd_cluster", c.Name, "reason", text)
	}
	if slices.Equal(bindings, c.Spec.Members) {
		return c, nil
	}
	made, err := l.Store.Patch(ctx, c, clusterstore.ReplaceBindings(c, bindings))
	if err != nil {
		return nil, err
	}
	l.Log.Info("bound members to nodes", "etcd_cluster", c.Name, "before", c.Spec.Members, "after", bindings)
	parts := make([]string, len(bindings))
	for i, b := range bindings {
		parts[i] = fmt.Sprintf("%s on %s", b.MemberID, b.Node)
	}
	l.Event(made, "Bound", "members by node: "+strings.Join(parts, ", "))
	return made, nil
}

func joinIDs(ids []v1alpha1.MemberID) string {
	parts := make([]string, len(ids))
	for i, id := range ids {
		parts[i] = string(id)
	}
	return strings.Join(parts, ", ")
}
