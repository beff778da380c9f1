package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// madeForAnnotation on an EtcdCluster names the Node at whose word it was made.
const madeForAnnotation = "holdfast.dev/made-for"

// create makes the EtcdClusters that are announced and missing. An empty object protects nobody's node and refuses
// nobody's deletion until Bind finds a claim good; all it lets agents do is publish. How many a Node can have made is
// bounded, or one that lies could use up the room of all.
func (l *Leader) create(ctx context.Context, have []*v1alpha1.EtcdCluster, n census) error {
	var errs []error
	count, madeFor := len(have), map[string]int{}
	for _, c := range have {
		madeFor[c.Annotations[madeForAnnotation]]++
	}
	for _, id := range n.announcedClusters() {
		if slices.ContainsFunc(have, func(c *v1alpha1.EtcdCluster) bool { return c.Name == string(id) }) {
			continue
		}
		c := &v1alpha1.EtcdCluster{}
		c.Name = string(id)
		announcers := n.announcers(c)
		at := slices.IndexFunc(announcers, func(node string) bool { return madeFor[node] < l.o.MaxClustersPerNode })
		if at < 0 || count >= l.o.MaxClusters {
			if l.said.new("create/"+c.Name, "too many") {
				l.log.Warn("an announced etcd cluster gets no object, there are too many already; delete those that are no more",
					"etcd_cluster", id, "announced_by", announcers, "objects", count, "limit", l.o.MaxClusters, "limit_per_node", l.o.MaxClustersPerNode)
			}
			continue
		}
		c.Annotations = map[string]string{madeForAnnotation: announcers[at]}
		switch err := l.book.client.Create(ctx, c, client.FieldOwner(FieldManager)); {
		case apierrors.IsAlreadyExists(err):
		case err != nil:
			errs = append(errs, fmt.Errorf("creating etcd cluster %s: %w", id, err))
			continue
		default:
			l.log.Info("made an object for an announced etcd cluster", "etcd_cluster", id, "announced_by", announcers[at])
		}
		count++
		madeFor[announcers[at]]++
	}
	return errors.Join(errs...)
}

// tombstones grants what was deleted without a grant: a Node that is gone takes its members with it, whoever allowed it.
func (l *Leader) tombstones(ctx context.Context, v protect.View) (*v1alpha1.EtcdCluster, error) {
	gone := protect.Tombstones(v)
	if len(gone) == 0 {
		return v.Cluster, nil
	}
	grants := v.Cluster.Spec.Grants
	for _, g := range gone {
		if g.Time.IsZero() {
			g.Time.Time = l.o.Now()
		}
		grants = withGrant(grants, g)
	}
	made, err := l.book.patch(ctx, v.Cluster, replaceGrants(v.Cluster, grants))
	if err != nil {
		return nil, err
	}
	for _, g := range gone {
		l.log.Warn("the node is gone and nobody had asked, its members count as lost",
			"etcd_cluster", v.Cluster.Name, "node", g.Node, "node_uid", g.NodeUID, "members", g.Members)
		l.o.Tell(made, "Tombstone", fmt.Sprintf("node %s is gone and nobody had asked: %s count as lost until they are "+
			"removed from etcd or proven healthy on a new node", g.Node, words(g.Members)))
	}
	return made, nil
}

// bind writes the bindings that the answers and the claims justify.
func (l *Leader) bind(ctx context.Context, v protect.View, claims []protect.NodeClaim, m *memory) (*v1alpha1.EtcdCluster, error) {
	c := v.Cluster
	bindings, refused := protect.Bind(c, claims, v.Asked)
	if text := strings.Join(refused, "; "); m.said.new("refused", text) {
		l.log.Warn("a node's claim to hold a member is refused", "etcd_cluster", c.Name, "reason", text)
	}
	if slices.Equal(bindings, c.Spec.Members) {
		return c, nil
	}
	made, err := l.book.patch(ctx, c, replaceBindings(c, bindings))
	if err != nil {
		return nil, err
	}
	l.log.Info("bound members to nodes", "etcd_cluster", c.Name, "before", c.Spec.Members, "after", bindings)
	l.o.Tell(made, "Bound", boundWords(bindings))
	return made, nil
}

// replaceBindings makes the patch that replaces the bindings of c. An empty list is left out of the object, and tested
// by null (RFC 6902 knows no other word for absence; the API server's library takes it so).
func replaceBindings(c *v1alpha1.EtcdCluster, bindings []v1alpha1.Binding) []operation {
	const path = "/spec/members"
	ops := []operation{{Op: "test", Path: "/metadata/uid", Value: c.UID}, {Op: "test", Path: path}}
	if len(c.Spec.Members) > 0 {
		ops[1].Value = c.Spec.Members
	}
	switch {
	case len(bindings) > 0:
	case len(c.Spec.Members) > 0:
		return append(ops, operation{Op: "remove", Path: path})
	default:
		return ops
	}
	return append(ops, operation{Op: "add", Path: path, Value: bindings})
}

func boundWords(bindings []v1alpha1.Binding) string {
	parts := make([]string, len(bindings))
	for i, b := range bindings {
		parts[i] = fmt.Sprintf("%s on %s", b.MemberID, b.Node)
	}
	return "members by node: " + strings.Join(parts, ", ")
}

func words(ids []v1alpha1.MemberID) string {
	parts := make([]string, len(ids))
	for i, id := range ids {
		parts[i] = string(id)
	}
	return strings.Join(parts, ", ")
}
