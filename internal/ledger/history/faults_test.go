package history

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// forgets deletes an EtcdCluster by hand: any that has no grants, and one with grants by breaking the glass. What was on
// its way is on the operator's head then.
func (w *world) forgets() {
	e := w.etcd()
	if err := w.api.deleteCluster(string(e.id)); err != nil {
		return
	}
	w.say("EtcdCluster %s is deleted", e.id)
	for _, d := range w.dooms {
		d.forgiven[e.id] = true
	}
	w.api.unbind(e.id)
}

// backsUp makes a backup of the API server's etcd, or restores the one there is. The API server is down meanwhile, and with
// it go the requests that it works on.
func (w *world) backsUp() {
	if w.saved == nil {
		s := w.api.snapshot()
		w.saved, w.savedAt = &s, time.Now()
		w.say("the API server's etcd is backed up")
		return
	}
	w.say("the API server is down for a restore")
	for _, d := range slices.Clone(w.deletions) {
		if d.review != nil {
			d.review.end()
		}
		d.review = nil
		w.finish(d, "the API server is down")
	}
	w.deletions = nil
	w.late = nil
	w.held = nil
	waiting, _ := w.gate.waiting()
	for _, c := range waiting {
		if !c.done {
			c.fail(fmt.Errorf("connection refused"))
		}
		w.gate.answer(c)
	}
	w.downFor(time.Duration(10+w.choose(30)) * time.Second)
	for _, r := range w.replicas { // what they have received they have heard of by now
		r.caches.clusters.tell(len(w.api.clusters.log))
		r.caches.nodes.tell(len(w.api.nodes.log))
		r.caches.clusters.cut, r.caches.nodes.cut = true, true
	}
	w.api.restore(*w.saved)
	for _, e := range w.etcds {
		w.api.unbind(e.id)
	}
	for _, name := range sortedKeys(w.api.clusters.objects) {
		w.api.bind(w.api.clusters.objects[name])
	}
	w.say("the API server's etcd is restored")
	w.dooms = slices.DeleteFunc(w.dooms, func(d *doom) bool {
		n, err := w.api.node(d.node)
		undone := !d.happened || d.at.After(w.savedAt) || (err == nil && n.UID == d.uid && n.DeletionTimestamp == nil && len(n.Spec.Taints) == 0)
		d.over = d.over || undone
		return d.over
	})
	w.saved = nil
	w.home()
}

// downFor lets time pass in which every call fails.
func (w *world) downFor(d time.Duration) {
	until := time.Now().Add(d)
	for time.Now().Before(until) {
		w.pass(500 * time.Millisecond)
		w.await()
		waiting, _ := w.gate.waiting()
		for _, c := range waiting {
			c.fail(fmt.Errorf("connection refused"))
			w.gate.answer(c)
		}
	}
	w.await()
}

// home gives each machine the Node that is there under its name.
func (w *world) home() {
	for _, h := range w.hosts {
		h.node = ""
	}
	for _, name := range sortedKeys(w.api.nodes.objects) {
		var owner *host
		for _, h := range w.hosts {
			if h.name == name && (owner == nil || !h.killed) {
				owner = h
			}
		}
		if owner != nil {
			owner.node = w.api.nodes.objects[name].UID
		}
	}
	for _, h := range w.hosts {
		h.agent = newAgent(w, h)
	}
}

func (w *world) replicaCrashes() {
	i := w.choose(len(w.replicas))
	led := w.replicas[i].leading
	w.say("webhook %d crashes and is started again", i)
	w.restart(i)
	if led && !slices.ContainsFunc(w.replicas, func(r *replica) bool { return r.leading }) && w.choose(2) == 0 {
		w.replicas[w.choose(len(w.replicas))].lead()
	}
}

func (w *world) restart(i int) {
	old := w.replicas[i]
	waiting, _ := w.gate.waiting()
	for _, c := range waiting {
		if c.replica == old && c.write && !c.done && w.profile.faults {
			w.late = append(w.late, c) // it was sent
		}
	}
	old.crash()
	w.collect()
	w.gate.waiting()
	w.replicas[i] = w.start(i)
}

// leads has a replica lead if none does.
func (w *world) leads() {
	if !slices.ContainsFunc(w.replicas, func(r *replica) bool { return r.leading }) {
		i := w.choose(len(w.replicas))
		w.say("webhook %d leads", i)
		w.replicas[i].lead()
	}
}

// leadsToo has every replica lead: the one that should have given up has not noticed yet.
func (w *world) leadsToo() {
	for _, r := range w.replicas {
		if !r.leading {
			w.say("webhook %d leads as well", r.number)
			r.lead()
		}
	}
}

func (w *world) agentFalls() {
	h := w.hosts[w.choose(len(w.hosts))]
	if w.choose(3) == 1 {
		h.agent.blind = true
	} else {
		h.agent.silent = true
	}
	w.say("the agent of %s is silent %t, blind %t", h.name, h.agent.silent, h.agent.blind)
}

func (w *world) agentRises() {
	if h, ok := one(w, w.hosts, func(h *host) bool { return h.agent.silent || h.agent.blind }); ok {
		w.say("the agent of %s works again", h.name)
		h.agent.silent, h.agent.blind = false, false
	}
}

// finalizer puts Karpenter's on a Node.
func (w *world) finalizer() {
	if h, ok := one(w, w.hosts, func(h *host) bool { return h.node != "" }); ok {
		_, err := w.api.editNode(h.name, func(n *corev1.Node) {
			if n.DeletionTimestamp == nil {
				n.Finalizers = []string{"karpenter.sh/termination"}
			}
		})
		w.say("Node %s has a finalizer: %s", h.name, outcome(err))
	}
}

// finalizes takes it off a Node that is to go, once its machine is gone.
func (w *world) finalizes() {
	h, ok := one(w, w.hosts, func(h *host) bool {
		n := w.api.nodes.objects[h.name]
		return h.node != "" && n != nil && n.DeletionTimestamp != nil
	})
	if ok {
		w.kill(h)
		_, err := w.api.editNode(h.name, func(n *corev1.Node) { n.Finalizers = nil })
		w.say("Node %s goes, its finalizer is taken off: %s", h.name, outcome(err))
		w.kubelets()
	}
}

// heartbeat writes a Node, so that whoever is about to delete it must ask again.
func (w *world) heartbeat() {
	if h, ok := one(w, w.hosts, func(h *host) bool { return h.node != "" && !h.killed }); ok {
		_, err := w.api.editNode(h.name, func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Message: fmt.Sprint(w.api.revision)}}
		})
		w.say("the kubelet of %s writes its Node: %s", h.name, outcome(err))
	}
}

// fate terminates the machine of a Node that is gone, within a quarter of an hour.
func (w *world) fate() {
	d, ok := one(w, w.active(), func(d *doom) bool {
		return d.happened && !d.host.killed && !d.host.kept && time.Since(d.at) < 15*time.Minute
	})
	if ok && (!w.profile.careful || !w.stillJoining(d.host)) {
		w.kill(d.host)
	}
}

// stillJoining says that a machine was doomed with less on it than it has now.
func (w *world) stillJoining(h *host) bool {
	for _, e := range w.etcds {
		if m := e.of(h); m != nil && !m.started {
			return true
		}
	}
	return false
}

func (w *world) kill(h *host) {
	if !h.killed && !h.kept {
		h.killed = true
		w.say("machine %s is terminated", h.name)
	}
}

// jump lets everybody work at once for a while.
func (w *world) jump(d time.Duration) {
	w.say("%s in which everybody works", d)
	w.calm(d)
}

// stallsOrNot has the watches of a replica hang, or hear again of everything that they missed.
func (w *world) stallsOrNot() {
	r := w.replicas[w.choose(len(w.replicas))]
	if w.choose(3) == 1 {
		r.deafToClusters = !r.deafToClusters
	} else {
		r.deafToNodes = !r.deafToNodes
	}
	w.say("webhook %d hears nothing of Nodes: %t, of EtcdClusters: %t", r.number, r.deafToNodes, r.deafToClusters)
	if !r.deafToNodes && !r.deafToClusters && w.choose(2) == 1 {
		r.caches.clusters.skip()
		r.caches.nodes.skip()
	}
}

// skewed starts a replica again with another clock. A clock that is set while a process runs is nothing to it: Go measures
// what passes between two moments by a clock that nobody sets.
func (w *world) skewed() {
	i := w.choose(len(w.replicas))
	led := w.replicas[i].leading
	w.restart(i)
	r, ahead := w.replicas[i], time.Duration(w.choose(40)-20)*time.Minute
	r.skew.Store(int64(ahead))
	w.say("webhook %d is started again, with a clock that is ahead by %s", r.number, ahead)
	if led {
		r.lead()
	}
}
