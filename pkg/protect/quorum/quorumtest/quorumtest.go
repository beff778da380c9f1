// Package quorumtest builds etcd clusters for the tests of the packages under pkg/protect.
package quorumtest

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

const (
	// Nonce is the nonce of the current request. Other observations carry the nonce "before".
	Nonce = "now"
	// ClusterID is the name of the EtcdCluster.
	ClusterID = "cdf818194e3a8c32"
)

// Noon is the time of all observations and grants.
func Noon() time.Time { return time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC) }

// A Cluster is an etcd cluster with the members a, b, c, … (1, 2, … after f) on the nodes w1, w2,
// w3, … with the UIDs u1, u2, u3, … Methods change one aspect of it and return the Cluster.
type Cluster struct {
	quorum.View
}

// Voters returns a cluster of n voters on Nodes with a role. All agents answer and prove every
// member healthy.
func Voters(n int) *Cluster {
	c := &Cluster{quorum.View{
		Cluster: &v1alpha1.EtcdCluster{
			ObjectMeta: metav1.ObjectMeta{Name: ClusterID},
			Spec:       v1alpha1.EtcdClusterSpec{Observers: v1alpha1.NodesWithRole},
		},
		Nonces: []string{Nonce},
		Nodes:  map[string]observation.NodeState{},
	}}
	var members []v1alpha1.MemberStatus
	for i := range n {
		members = append(members, Member(i))
	}
	for i := range n {
		c.Bind(i)
		c.With(v1alpha1.Observation{
			Node: Node(i), NodeUID: UID(i), Nonce: Nonce, Time: metav1.NewTime(Noon()),
			LocalMember: ID(i), Linearizable: true, Members: CopyMembers(members),
		})
	}
	return c
}

// Everywhere changes member i in every list.
func (c *Cluster) Everywhere(i int, change func(*v1alpha1.MemberStatus)) *Cluster {
	for o := range c.Cluster.Observations {
		c.InList(o, i, change)
	}
	return c
}

// InList changes member i in the list of the o-th observation.
func (c *Cluster) InList(o, i int, change func(*v1alpha1.MemberStatus)) *Cluster {
	members := c.Cluster.Observations[o].Members
	for m := range members {
		if members[m].ID == ID(i) {
			change(&members[m])
		}
	}
	return c
}

// Unhealthy makes no observer prove the members healthy.
func (c *Cluster) Unhealthy(members ...int) *Cluster {
	for _, i := range members {
		c.Everywhere(i, func(m *v1alpha1.MemberStatus) { m.Healthy, m.Reason = false, "connection refused" })
	}
	return c
}

// Dead makes the members unhealthy and their agents silent.
func (c *Cluster) Dead(members ...int) *Cluster { return c.Silent(members...).Unhealthy(members...) }

// Learner makes member i a learner.
func (c *Cluster) Learner(i int) *Cluster {
	return c.Everywhere(i, func(m *v1alpha1.MemberStatus) { m.Learner = true })
}

// URLs sets the URLs of member i.
func (c *Cluster) URLs(i int, urls ...string) *Cluster {
	return c.Everywhere(i, func(m *v1alpha1.MemberStatus) { m.PeerURLs, m.ClientURLs = urls, nil })
}

// Unprovable moves members to hosts without an agent, where they listen on loopback only.
func (c *Cluster) Unprovable(members ...int) *Cluster {
	for _, i := range members {
		c.withoutObservation(i).Unbound(i).Everywhere(i, func(m *v1alpha1.MemberStatus) {
			m.Healthy, m.Reason = false, "https://127.0.0.1:2379: it is member a, not "+string(m.ID)
			m.ClientURLs = []string{"https://127.0.0.1:2379"}
		})
	}
	return c
}

// Removed removes member i from every list.
func (c *Cluster) Removed(i int) *Cluster {
	for o := range c.Cluster.Observations {
		c.RemovedFrom(o, i)
	}
	return c
}

// RemovedFrom removes member i from the list of the o-th observation.
func (c *Cluster) RemovedFrom(o, i int) *Cluster {
	list := &c.Cluster.Observations[o]
	list.Members = slices.DeleteFunc(list.Members, func(m v1alpha1.MemberStatus) bool { return m.ID == ID(i) })
	return c
}

func (c *Cluster) withoutObservation(i int) *Cluster {
	isOfNode := func(o v1alpha1.Observation) bool { return o.Node == Node(i) }
	c.Cluster.Observations = slices.DeleteFunc(c.Cluster.Observations, isOfNode)
	return c
}

// Observer returns the observation of node i.
func (c *Cluster) Observer(i int) *v1alpha1.Observation {
	at := slices.IndexFunc(c.Cluster.Observations, func(o v1alpha1.Observation) bool { return o.Node == Node(i) })
	return &c.Cluster.Observations[at]
}

// With adds an observation.
func (c *Cluster) With(o v1alpha1.Observation) *Cluster {
	c.Cluster.Observations = append(c.Cluster.Observations, o)
	return c
}

// Silent makes observers not answer the current request.
func (c *Cluster) Silent(observers ...int) *Cluster {
	return c.observers(observers, func(o *v1alpha1.Observation) { o.Nonce = "before" })
}

// WithoutList makes observers answer with a problem instead of a list.
func (c *Cluster) WithoutList(observers ...int) *Cluster {
	return c.observers(observers, func(o *v1alpha1.Observation) {
		o.Linearizable, o.Members, o.Problem = false, nil, "tls: certificate has expired"
	})
}

// Unconfirmed makes observers answer with a list that no quorum confirmed.
func (c *Cluster) Unconfirmed(observers ...int) *Cluster {
	return c.observers(observers, func(o *v1alpha1.Observation) { o.Linearizable = false })
}

// Emptied makes observers report that their hosts have no member any more.
func (c *Cluster) Emptied(observers ...int) *Cluster {
	return c.observers(observers, func(o *v1alpha1.Observation) { o.NoMember = true })
}

// AlarmsUnknown makes observers, all if none is named, answer without the alarms.
func (c *Cluster) AlarmsUnknown(observers ...int) *Cluster {
	if len(observers) == 0 {
		for o := range c.Cluster.Observations {
			c.Cluster.Observations[o].AlarmsUnknown = true
		}
	}
	return c.observers(observers, func(o *v1alpha1.Observation) { o.AlarmsUnknown = true })
}

func (c *Cluster) observers(observers []int, change func(*v1alpha1.Observation)) *Cluster {
	for _, i := range observers {
		change(c.Observer(i))
	}
	return c
}

// LocalMember makes the observer on node i report this member as its own.
func (c *Cluster) LocalMember(i int, m v1alpha1.MemberID) *Cluster {
	c.Observer(i).LocalMember = m
	return c
}

// Bind binds member i to its node, which exists.
func (c *Cluster) Bind(i int) {
	binding := v1alpha1.Binding{MemberID: ID(i), Node: Node(i), NodeUID: UID(i), Basis: v1alpha1.BasisRole}
	c.Cluster.Spec.Members = append(c.Cluster.Spec.Members, binding)
	c.Nodes[Node(i)] = observation.NodeState{Known: true, UID: UID(i), HasRole: true}
}

// Bound binds member i, which no list contains.
func (c *Cluster) Bound(i int) *Cluster {
	o := *c.Cluster.Observations[0].DeepCopy()
	o.Node, o.NodeUID, o.LocalMember = Node(i), UID(i), ID(i)
	c.Bind(i)
	return c.With(o)
}

// Unbound removes the binding and the node of member i.
func (c *Cluster) Unbound(i int) *Cluster {
	c.Cluster.Spec.Members = slices.DeleteFunc(c.Cluster.Spec.Members,
		func(b v1alpha1.Binding) bool { return b.MemberID == ID(i) })
	delete(c.Nodes, Node(i))
	return c
}

// NeverBound removes all bindings.
func (c *Cluster) NeverBound() *Cluster {
	c.Cluster.Spec.Members, c.Cluster.Spec.Observers = nil, ""
	return c
}

// WithoutRoles removes the roles of all Nodes, so that what two of them report counts.
func (c *Cluster) WithoutRoles() *Cluster {
	c.Cluster.Spec.Observers = v1alpha1.AllNodes
	for i := range c.Cluster.Spec.Members {
		if b := &c.Cluster.Spec.Members[i]; b.Basis == v1alpha1.BasisRole {
			b.Basis = v1alpha1.BasisAddress
		}
	}
	for name, n := range c.Nodes {
		n.HasRole = false
		c.Nodes[name] = n
	}
	return c
}

// bindings changes the bindings of member i.
func (c *Cluster) bindings(i int, change func(*v1alpha1.Binding)) *Cluster {
	for b := range c.Cluster.Spec.Members {
		if c.Cluster.Spec.Members[b].MemberID == ID(i) {
			change(&c.Cluster.Spec.Members[b])
		}
	}
	return c
}

// Basis changes what the bindings of members rest on.
func (c *Cluster) Basis(basis v1alpha1.BindingBasis, members ...int) *Cluster {
	for _, i := range members {
		c.bindings(i, func(b *v1alpha1.Binding) { b.Basis = basis })
	}
	return c
}

// Rebound binds member i to the node of member to.
func (c *Cluster) Rebound(i, to int) *Cluster {
	return c.bindings(i, func(b *v1alpha1.Binding) { b.Node, b.NodeUID = Node(to), UID(to) })
}

// MayRunAt makes an existing node a possible Node of the unbound member i.
func (c *Cluster) MayRunAt(i, node int) *Cluster {
	c.PossibleNodes = append(c.PossibleNodes, v1alpha1.Binding{MemberID: ID(i), Node: Node(node), NodeUID: UID(node)})
	return c.State(node, func(n *observation.NodeState) { n.Known, n.UID = true, UID(node) })
}

// JoinedAgain lets member i leave, and its machine join again as member as: the Node of member i is
// registered again with another UID, and has its old address.
func (c *Cluster) JoinedAgain(i, as int) *Cluster {
	again := UID(i) + "-again"
	c.Removed(i).Unbound(i).URLs(as, "https://"+Address(i)+":2380")
	o := c.withoutObservation(i).Observer(as)
	o.Node, o.NodeUID = Node(i), again
	c.bindings(as, func(b *v1alpha1.Binding) { b.Node, b.NodeUID = Node(i), again })
	delete(c.Nodes, Node(as))
	c.Nodes[Node(i)] = observation.NodeState{Known: true, UID: again, HasRole: true}
	return c
}

// Gone deletes the Nodes.
func (c *Cluster) Gone(nodes ...int) *Cluster {
	for _, i := range nodes {
		c.State(i, func(n *observation.NodeState) { *n = observation.NodeState{Known: true} })
	}
	return c
}

// State changes the state of node i.
func (c *Cluster) State(i int, change func(*observation.NodeState)) *Cluster {
	n := c.Nodes[Node(i)]
	change(&n)
	c.Nodes[Node(i)] = n
	return c
}

// Granted adds the grant for node i.
func (c *Cluster) Granted(i int) *Cluster { return c.GrantedTo(UID(i), i) }

// GrantedTo adds a grant that names member i for the Node with this UID.
func (c *Cluster) GrantedTo(node types.UID, i int) *Cluster {
	g := GrantFor(i)
	g.NodeUID = node
	c.Cluster.Spec.Grants = append(c.Cluster.Spec.Grants, g)
	return c
}

// Drained adds the grant for a drain of node i, whose Node is cordoned.
func (c *Cluster) Drained(i int) *Cluster {
	c.Cluster.Spec.Grants = append(c.Cluster.Spec.Grants, DrainGrantFor(i))
	return c.State(i, Cordoned)
}

// Noticed adds the grant that the leader writes when node i is gone without a request.
func (c *Cluster) Noticed(i int) *Cluster {
	g := &c.Granted(i).Cluster.Spec.Grants[0]
	g.Delete, g.Gone = nil, &v1alpha1.Door{Time: g.Delete.Time}
	return c
}

// Forced adds the grant of a break-glass override for node i.
func (c *Cluster) Forced(i int) *Cluster {
	c.Granted(i).Cluster.Spec.Grants[0].Delete.BreakGlass = true
	return c
}
