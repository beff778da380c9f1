package ledger

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// census is all Nodes by name, as the cache has them.
type census map[string]resident

// resident is one Node with what its agent announces on it.
type resident struct {
	*corev1.Node
	announced []protect.MemberRef
}

// census reads the announcements, and logs those that cannot be read.
func (l *Leader) census(nodes []corev1.Node) census {
	n := make(census, len(nodes))
	for i := range nodes {
		node := &nodes[i]
		announced, err := announcedOn(node)
		text := ""
		if err != nil {
			text = err.Error()
		}
		if l.said.new("announcement/"+node.Name, text) {
			l.log.Warn("the announcement on the node cannot be read", "node", node.Name, "err", text)
		}
		n[node.Name] = resident{Node: node, announced: announced}
	}
	return n
}

// announcedOn reads what the agent announces on its Node. A Node without the label announces nothing: the two are
// written together.
func announcedOn(node *corev1.Node) ([]protect.MemberRef, error) {
	annotation, ok := node.Annotations[protect.AnnouncementAnnotation]
	if !ok || !labelled(node) {
		return nil, nil
	}
	return protect.ParseAnnouncement(annotation)
}

func labelled(node *corev1.Node) bool {
	return node.Labels[protect.EtcdMemberLabel] == protect.EtcdMemberLabelValue
}

// announcers names, sorted, the Nodes that announce a member of the cluster.
func (n census) announcers(c *v1alpha1.EtcdCluster) []string {
	var names []string
	for name, r := range n {
		if slices.ContainsFunc(r.announced, func(ref protect.MemberRef) bool { return string(ref.Cluster) == c.Name }) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// announcedClusters lists, sorted, every cluster that some Node announces.
func (n census) announcedClusters() []v1alpha1.ClusterID {
	var ids []v1alpha1.ClusterID
	for _, r := range n {
		for _, ref := range r.announced {
			ids = append(ids, ref.Cluster)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// states are the Nodes as the cache has them: good enough to sum up, never to decide.
func (n census) states(names []string) map[string]protect.NodeState {
	states := make(map[string]protect.NodeState, len(names))
	for _, name := range names {
		states[name] = live{node: n[name].Node}.state()
	}
	return states
}

// claims are all Nodes as bindings are made from them, sorted by name: those that were read live as they were read, the
// others, whose addresses alone matter, as the cache has them. It fails if a Node could not be read, since one that is
// not among the claims is taken to be gone.
func (n census) claims(nodes map[string]live) ([]protect.NodeClaim, error) {
	current := make(map[string]*corev1.Node, len(n))
	for name, r := range n {
		current[name] = r.Node
	}
	for name, l := range nodes {
		if l.err != nil {
			return nil, fmt.Errorf("reading node %q: %w", name, l.err)
		}
		current[name] = l.node
	}
	var found []protect.NodeClaim
	for _, node := range current {
		if node != nil {
			found = append(found, claimOf(node))
		}
	}
	slices.SortFunc(found, func(a, b protect.NodeClaim) int { return strings.Compare(a.Node, b.Node) })
	return found, nil
}

// placed says at which Nodes' addresses the members are that are bound to none.
func (n census) placed(c *v1alpha1.EtcdCluster) []v1alpha1.Binding {
	if len(protect.Unbound(c)) == 0 {
		return nil // Most often so, which spares comparing the addresses of all nodes.
	}
	var all []protect.NodeClaim
	for _, r := range n {
		all = append(all, addressesOf(r.Node))
	}
	return protect.Placed(c, all)
}

// addressesOf is a Node that claims nothing.
func addressesOf(node *corev1.Node) protect.NodeClaim {
	claim := protect.NodeClaim{Node: node.Name, UID: node.UID, Deleting: node.DeletionTimestamp != nil}
	for _, a := range node.Status.Addresses {
		claim.Addresses = append(claim.Addresses, a.Address)
	}
	return claim
}

func claimOf(node *corev1.Node) protect.NodeClaim {
	claim := addressesOf(node)
	// An announcement that cannot be read claims nothing; the census has logged it.
	claim.Announced, _ = announcedOn(node)
	return claim
}

// traits are the parts of a Node that the leader acts on.
type traits struct {
	Name, Label, Announcement, Addresses string
	UID                                  types.UID
	Deleting                             bool
}

func traitsOf(node *corev1.Node) traits {
	var addresses []string
	for _, a := range node.Status.Addresses {
		addresses = append(addresses, a.Address)
	}
	return traits{
		Name: node.Name, UID: node.UID, Deleting: node.DeletionTimestamp != nil,
		Label: node.Labels[protect.EtcdMemberLabel], Announcement: node.Annotations[protect.AnnouncementAnnotation],
		Addresses: strings.Join(addresses, " "),
	}
}
