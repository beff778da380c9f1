package history

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// deletes are new DELETEs: the same Nodes again and again, or all at once.
func (w *world) deletes() []action {
	if len(w.deletions) > 6 {
		return nil
	}
	actions := []action{{w.profile.deletions, func() { w.delete(w.hosts[w.choose(len(w.hosts))], false, false) }}}
	if w.profile.has[dryRuns] {
		actions = append(actions, action{1, func() { w.delete(w.hosts[w.choose(len(w.hosts))], true, false) }})
	}
	if w.profile.has[collections] && len(w.deletions) == 0 {
		actions = append(actions, action{1, func() {
			for _, h := range w.hosts {
				w.delete(h, false, true)
			}
		}})
	}
	return actions
}

// one picks one of those that qualify; the zero value if there is none.
func one[T any](w *world, all []T, is func(T) bool) (found T, ok bool) {
	all = slices.DeleteFunc(slices.Clone(all), func(t T) bool { return !is(t) })
	if len(all) == 0 {
		return found, false
	}
	return all[w.choose(len(all))], true
}

func (w *world) etcd() *etcd { return w.etcds[w.choose(len(w.etcds))] }

func (w *world) memberStops() {
	if m, ok := one(w, w.etcd().members, (*member).alive); ok {
		m.running = false
		w.say("member %s stops", m.id)
	}
}

func (w *world) memberStarts() {
	e := w.etcd()
	if m, ok := one(w, e.members, func(m *member) bool { return m.started && !m.running && m.host.up && !m.host.killed }); ok {
		m.running = true
		w.say("member %s starts", m.id)
	}
}

func (w *world) machineStops() {
	if h, ok := one(w, w.hosts, func(h *host) bool { return h.up && !h.killed }); ok {
		h.up = false
		w.say("machine %s is off", h.name)
	}
}

func (w *world) machineStarts() {
	if h, ok := one(w, w.hosts, func(h *host) bool { return !h.up && !h.killed }); ok {
		h.up = true
		w.say("machine %s is on", h.name)
	}
}

// vanishes deletes a Node of which the webhook is not asked. Not while an operator's word of its last deletion lies there
// unread: the leader, which reads it in a second or two, would take it for this one.
func (w *world) vanishes() {
	h, ok := one(w, w.hosts, func(h *host) bool { return h.node != "" && !w.named(h.node) })
	if !ok {
		return
	}
	w.say("Node %s (%s) is deleted, and nobody asked", h.name, h.node)
	w.lose(h, w.known(h.name, h.node).bound[h.node])
	if err := w.api.deleteNode(h.name); err != nil {
		w.fail("deleting a Node: %v", err)
	}
	w.kubelets()
}

// named says that an operator has named the Node's grant, and the leader has not read it.
func (w *world) named(uid types.UID) bool {
	return slices.ContainsFunc(w.etcds, func(e *etcd) bool {
		c := w.api.clusters.objects[string(e.id)]
		return c != nil && c.Annotations[protect.SettleAnnotation] == string(uid)
	})
}

// lose dooms a machine without a grant.
func (w *world) lose(h *host, members []protect.MemberRef) {
	w.dooms = append(w.dooms, &doom{
		uid: h.node, node: h.name, host: h, members: members, happened: true, at: time.Now(),
		turn: map[v1alpha1.ClusterID]int{}, forgiven: map[v1alpha1.ClusterID]bool{},
	})
}

func (w *world) registers() {
	if h, ok := one(w, w.hosts, func(h *host) bool { return h.up && !h.killed && h.node == "" }); ok {
		w.register(h)
	}
}

const casTaint = "ToBeDeletedByClusterAutoscaler"

// taints puts the mark of cluster-autoscaler on a Node, or takes it off again.
func (w *world) taints() {
	h, ok := one(w, w.hosts, func(h *host) bool { return h.node != "" })
	if !ok {
		return
	}
	had := false
	n, err := w.api.editNode(h.name, func(n *corev1.Node) {
		had = len(n.Spec.Taints) > 0
		n.Spec.Taints = nil
		if !had {
			n.Spec.Taints = []corev1.Taint{{Key: casTaint, Effect: corev1.TaintEffectNoSchedule}}
		}
	})
	if err != nil {
		w.fail("tainting a Node: %v", err)
		return
	}
	w.say("Node %s has the taint of an autoscaler: %t", h.name, !had)
	if !had {
		w.lose(h, w.known(h.name, n.UID).bound[n.UID])
		return
	}
	for _, d := range w.dooms {
		if d.uid == n.UID && len(d.turn) == 0 && n.DeletionTimestamp == nil {
			d.over = d.over || d.happened // it was announced, and is not to happen
		}
	}
}

// strips takes the label off a Node.
func (w *world) strips() {
	if h, ok := one(w, w.hosts, func(h *host) bool { return h.node != "" }); ok {
		_, err := w.api.editNode(h.name, func(n *corev1.Node) {
			n.Labels = maps.Clone(n.Labels)
			delete(n.Labels, protect.EtcdMemberLabel)
		})
		w.say("the label is taken off Node %s: %s", h.name, outcome(err))
	}
}

// machineComes is a new machine, under a new name or under one that a dead machine had.
func (w *world) machineComes() {
	if len(w.hosts) > 9 {
		return
	}
	name := fmt.Sprintf("n%d", len(w.hosts))
	if h, ok := one(w, w.hosts, func(h *host) bool { return h.killed && h.node == "" }); ok && w.choose(2) == 1 {
		name = h.name
		if _, err := w.api.node(name); err == nil {
			return
		}
	}
	w.addHost(name)
}

func (w *world) breaksGlass() {
	if h, ok := one(w, w.hosts, func(h *host) bool { return h.node != "" }); ok {
		w.breakGlassFor(h)
	}
}

func (w *world) breakGlassFor(h *host) {
	_, err := w.api.editNode(h.name, func(n *corev1.Node) {
		n.Annotations = maps.Clone(n.Annotations)
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		n.Annotations[protect.BreakGlassAnnotation] = fmt.Sprintf(`{"uid":%q,"until":%q,"reason":"test"}`, h.node, time.Now().Add(10*time.Minute).Format(time.RFC3339))
	})
	w.say("the glass is broken for Node %s: %s", h.name, outcome(err))
}

// settles has an operator end a grant of which he knows that it is over: nothing of the deletion can happen any more, or
// he promises that the machine stays.
func (w *world) settles() {
	e := w.etcd()
	c, err := w.api.cluster(string(e.id))
	if err != nil {
		return
	}
	g, ok := one(w, c.Spec.Grants, func(g v1alpha1.Grant) bool { return w.maySettle(g.NodeUID) })
	if !ok {
		return
	}
	w.settle(c, g.NodeUID)
}

// settle has an operator name a grant: the machine of that Node stays, he promises.
func (w *world) settle(c *v1alpha1.EtcdCluster, uid types.UID) {
	for _, d := range w.dooms {
		if d.uid == uid {
			d.over, d.host.kept = true, true
		}
	}
	body := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, protect.SettleAnnotation, uid)
	_, err := w.api.patchCluster(c.Name, types.MergePatchType, []byte(body))
	w.say("an operator settles the grant for Node UID %s in %s: %s", uid, c.Name, outcome(err))
}

// maySettle says whether it would be the truth.
func (w *world) maySettle(uid types.UID) bool {
	for _, d := range w.deletions {
		if (d.admitted != nil && d.admitted.UID == uid) || (d.review != nil && d.review.node.UID == uid) {
			return false
		}
	}
	for _, d := range w.active() {
		if d.uid != uid {
			continue
		}
		if n, err := w.api.node(d.node); d.host.killed || (err == nil && n.UID == uid) {
			return false
		}
	}
	return true
}
