package protect

import (
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// asked is the nonce of the question in all tests, and clusterX the cluster that they are about.
const (
	asked    = "now"
	clusterX = "cdf818194e3a8c32"
)

func noon() time.Time { return time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC) }

// world is an etcd cluster whose members a, b, c, … (1, 2, … after f) run on the nodes w1, w2, w3, … (UIDs u1, u2, u3, …), whose agents all
// answer and prove every member healthy. Tests then break it.
type world struct {
	View
}

func voters(n int) *world {
	w := &world{View{
		Cluster: &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Name: clusterX}},
		Asked:   []string{asked},
		Nodes:   map[string]NodeState{},
	}}
	var members []v1alpha1.MemberStatus
	for i := range n {
		members = append(members, member(i))
	}
	for i := range n {
		w.bind(i)
		w.Cluster.Status.Observations = append(w.Cluster.Status.Observations, v1alpha1.Observation{
			Node: node(i), NodeUID: uid(i), Nonce: asked, Time: metav1.NewTime(noon()), LocalMember: id(i), Linearizable: true, Members: copied(members),
		})
	}
	return w
}

func id(i int) v1alpha1.MemberID { return v1alpha1.MemberID("abcdef123456789"[i : i+1]) }
func node(i int) string          { return fmt.Sprintf("w%d", i+1) }
func uid(i int) types.UID        { return types.UID(fmt.Sprintf("u%d", i+1)) }
func address(i int) string       { return fmt.Sprintf("10.0.0.%d", i+1) }

func member(i int) v1alpha1.MemberStatus {
	return v1alpha1.MemberStatus{
		ID: id(i), Name: fmt.Sprintf("etcd%d", i+1), Healthy: true,
		PeerURLs: []string{"https://" + address(i) + ":2380"}, ClientURLs: []string{"https://" + address(i) + ":2379"},
	}
}

func copied(members []v1alpha1.MemberStatus) []v1alpha1.MemberStatus {
	var all []v1alpha1.MemberStatus
	for _, m := range members {
		all = append(all, *m.DeepCopy())
	}
	return all
}

// bind binds member i to its node, which exists.
func (w *world) bind(i int) {
	w.Cluster.Spec.Members = append(w.Cluster.Spec.Members, v1alpha1.Binding{MemberID: id(i), Node: node(i), NodeUID: uid(i)})
	w.Nodes[node(i)] = NodeState{Known: true, UID: uid(i)}
}

// everywhere changes member i in every list.
func (w *world) everywhere(i int, change func(*v1alpha1.MemberStatus)) *world {
	for o := range w.Cluster.Status.Observations {
		w.inList(o, i, change)
	}
	return w
}

// inList changes member i in the list of the o-th observer.
func (w *world) inList(o, i int, change func(*v1alpha1.MemberStatus)) *world {
	members := w.Cluster.Status.Observations[o].Members
	for m := range members {
		if members[m].ID == id(i) {
			change(&members[m])
		}
	}
	return w
}

// sick makes nobody prove the members healthy.
func (w *world) sick(members ...int) *world {
	for _, i := range members {
		w.everywhere(i, func(m *v1alpha1.MemberStatus) { m.Healthy, m.Reason = false, "connection refused" })
	}
	return w
}

// dead is sick, with an agent that does not answer either.
func (w *world) dead(members ...int) *world {
	for _, i := range members {
		w.observer(i).Nonce = "before"
	}
	return w.sick(members...)
}

func (w *world) learner(i int) *world {
	return w.everywhere(i, func(m *v1alpha1.MemberStatus) { m.Learner = true })
}

// removed takes a member out of every list.
func (w *world) removed(i int) *world {
	for o := range w.Cluster.Status.Observations {
		w.removedFrom(o, i)
	}
	return w
}

func (w *world) removedFrom(o, i int) *world {
	observation := &w.Cluster.Status.Observations[o]
	observation.Members = slices.DeleteFunc(observation.Members, func(m v1alpha1.MemberStatus) bool { return m.ID == id(i) })
	return w
}

func (w *world) observer(i int) *v1alpha1.Observation {
	at := slices.IndexFunc(w.Cluster.Status.Observations, func(o v1alpha1.Observation) bool { return o.Node == node(i) })
	return &w.Cluster.Status.Observations[at]
}

// silent makes observers not answer this question.
func (w *world) silent(observers ...int) *world {
	for _, i := range observers {
		w.observer(i).Nonce = "before"
	}
	return w
}

// blind makes observers answer that they could not see.
func (w *world) blind(observers ...int) *world {
	for _, i := range observers {
		o := w.observer(i)
		o.Linearizable, o.Members, o.Problem = false, nil, "tls: certificate has expired"
	}
	return w
}

// unbound forgets the binding of member i, and its node.
func (w *world) unbound(i int) *world {
	w.Cluster.Spec.Members = slices.DeleteFunc(w.Cluster.Spec.Members, func(b v1alpha1.Binding) bool { return b.MemberID == id(i) })
	delete(w.Nodes, node(i))
	return w
}

func (w *world) state(i int, change func(*NodeState)) *world {
	n := w.Nodes[node(i)]
	change(&n)
	w.Nodes[node(i)] = n
	return w
}

// granted allows the deletion of a node.
func (w *world) granted(i int) *world {
	w.Cluster.Spec.Grants = append(w.Cluster.Spec.Grants, grantFor(i))
	return w
}

func grantFor(i int) v1alpha1.Grant {
	return v1alpha1.Grant{
		NodeUID: uid(i), Node: node(i), Members: []v1alpha1.MemberID{id(i)}, Time: metav1.NewTime(noon()), User: "alice",
	}
}

// deletion is the deletion of node i, labelled and announcing its member.
func deletion(i int) Request {
	return Request{
		Node: node(i), UID: uid(i), Labelled: true, Addresses: []string{address(i), node(i)}, Announced: []MemberRef{{clusterX, id(i)}},
	}
}

// twice lists member i a second time, with a change.
func (w *world) twice(i int, change func(*v1alpha1.MemberStatus)) *world {
	for o := range w.Cluster.Status.Observations {
		m := member(i)
		change(&m)
		w.Cluster.Status.Observations[o].Members = append(w.Cluster.Status.Observations[o].Members, m)
	}
	return w
}

// bound binds a member that no list has.
func (w *world) bound(i int) *world {
	w.Cluster.Status.Observations = append(w.Cluster.Status.Observations, *w.Cluster.Status.Observations[0].DeepCopy())
	last := &w.Cluster.Status.Observations[len(w.Cluster.Status.Observations)-1]
	last.Node, last.NodeUID, last.LocalMember = node(i), uid(i), id(i)
	w.bind(i)
	return w
}

func (w *world) urlsOfAll(urls ...string) *world {
	for i := range 3 {
		w.urls(i, urls...)
	}
	return w
}

// unconfirmed makes observers answer with a list that no quorum confirmed.
func (w *world) unconfirmed(observers ...int) *world {
	for _, i := range observers {
		w.observer(i).Linearizable = false
	}
	return w
}

// alarmsUnknown makes observers answer without having read the alarms.
func (w *world) alarmsUnknown(observers ...int) *world {
	for _, i := range observers {
		w.observer(i).AlarmsUnknown = true
	}
	return w
}

// localMember makes an observer say that this member is its own.
func (w *world) localMember(o int, m v1alpha1.MemberID) *world {
	w.observer(o).LocalMember = m
	return w
}

// rebound binds member i to the node of member to.
func (w *world) rebound(i, to int) *world {
	for b := range w.Cluster.Spec.Members {
		if w.Cluster.Spec.Members[b].MemberID == id(i) {
			w.Cluster.Spec.Members[b].Node, w.Cluster.Spec.Members[b].NodeUID = node(to), uid(to)
		}
	}
	return w
}

// copyOf is a view that shares nothing with the one it was made from.
func copyOf(v View) View {
	v.Cluster, v.Nodes = v.Cluster.DeepCopy(), maps.Clone(v.Nodes)
	return v
}
