package history

import (
	"errors"
	"fmt"
	"slices"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// action is something that may happen next.
type action struct {
	weight int
	does   func()
}

// run lets things happen, one after the other.
func (w *world) run(steps int) {
	for range steps {
		synctest.Wait()
		w.collect()
		if w.failed() {
			return
		}
		w.step()
		w.note()
		if w.profile.careful {
			w.quorate()
		}
	}
	synctest.Wait()
	w.collect()
}

func (w *world) step() {
	actions := w.profile.environment(w)
	actions = append(actions, w.work()...)
	actions = append(actions, action{2, func() { w.pass(time.Duration(50+w.choose(500)) * time.Millisecond) }})
	w.pick(actions)
}

// pick has one of the actions happen; the first is the likeliest to be harmless.
func (w *world) pick(actions []action) {
	all := 0
	for _, a := range actions {
		all += a.weight
	}
	at := w.choose(all)
	for _, a := range slices.Backward(actions) {
		if at < a.weight {
			a.does()
			return
		}
		at -= a.weight
	}
}

// work is what goes on by itself: calls, caches, agents, deletions.
func (w *world) work() []action {
	waiting, abandoned := w.gate.waiting()
	for _, c := range abandoned {
		if c.write && !c.done {
			w.late = append(w.late, c)
		}
	}
	var actions []action
	for _, c := range waiting {
		actions = append(actions, action{w.profile.call, func() { w.serve(c) }})
	}
	for _, r := range w.replicas {
		actions = append(actions, w.hearing(r)...)
	}
	for _, h := range w.hosts {
		if h.agent.working() {
			actions = append(actions, action{6, func() { w.agentWorks(h.agent) }})
		}
	}
	for _, l := range w.held {
		actions = append(actions, action{1, func() {
			w.held = slices.DeleteFunc(w.held, func(o *look) bool { return o == l })
			w.say("agent %s: look %d arrives late", l.agent.host.name, l.number)
			w.publish(l)
		}})
	}
	for _, c := range w.late {
		actions = append(actions, action{1, func() {
			w.late = slices.DeleteFunc(w.late, func(o *call) bool { return o == c })
			if time.Since(c.began) < lateness {
				c.carryOut()
				w.say("webhook %d: %s is carried out late: %s", c.replica.number, c.what, outcome(c.err))
			}
		}})
	}
	for _, d := range w.deletions {
		if d.review == nil && d.admitted != nil {
			actions = append(actions, action{w.profile.commit, func() { w.commit(d) }},
				action{1, func() { w.finish(d, "another plugin refuses") }})
		}
	}
	return actions
}

func outcome(err error) string {
	if err == nil {
		return "done"
	}
	return err.Error()
}

// hearing is a replica's caches hearing of what they have not heard of yet.
func (w *world) hearing(r *replica) []action {
	if r.crashed() {
		return nil
	}
	var actions []action
	add := func(held, told int, hold, tell func(int)) {
		if held > 0 {
			actions = append(actions, action{w.profile.hear, func() { hold(1 + w.choose(held)) }})
		}
		if told > 0 {
			actions = append(actions, action{w.profile.hear, func() { tell(1 + w.choose(told)) }})
		}
	}
	if held, told := r.caches.clusters.behind(); !r.deafToClusters {
		add(held, told, r.caches.clusters.hold, r.caches.clusters.tell)
	}
	if held, told := r.caches.nodes.behind(); !r.deafToNodes {
		add(held, told, r.caches.nodes.hold, r.caches.nodes.tell)
	}
	return actions
}

// serve has a call carried out and answered, or something worse.
func (w *world) serve(c *call) {
	if c.done {
		w.gate.answer(c)
		return
	}
	fate := w.choose(20)
	if !w.profile.faults {
		fate = 0
	}
	switch fate {
	default:
		c.carryOut()
		w.tellOf(c, "")
		w.gate.answer(c)
	case 15, 16:
		c.carryOut()
		w.tellOf(c, ", and its answer is on its way")
	case 17:
		if c.write {
			unknown := *c
			w.late = append(w.late, &unknown)
		}
		c.fail(apierrors.NewTimeoutError("the request did not end in time", 1))
		w.tellOf(c, ", it may be carried out yet")
		w.gate.answer(c)
	case 18:
		if c.write {
			c.carryOut()
		}
		c.fail(errors.New("the connection was cut"))
		w.tellOf(c, ", and it was carried out if it writes")
		w.gate.answer(c)
	case 19:
		c.fail(apierrors.NewInternalError(errors.New("etcd: leader changed")))
		if c.write && w.choose(2) == 1 {
			c.fail(apierrors.NewConflict(schema.GroupResource{Resource: "somethings"}, "it", errors.New("somebody was faster")))
		}
		w.tellOf(c, "")
		w.gate.answer(c)
	}
}

func (w *world) tellOf(c *call, how string) {
	if c.write || c.err != nil || w.verbose {
		whose := "the leader's"
		if c.asker != nil {
			whose = fmt.Sprintf("DELETE %d's", c.asker.deletion.number)
		}
		w.say("webhook %d: %s %s: %s%s", c.replica.number, whose, c.what, outcome(c.err), how)
	}
}

// agentWorks does one thing of an agent's.
func (w *world) agentWorks(a *agent) {
	if len(a.looks) > 0 && !w.choices.chance(4) {
		w.goesOn(a.looks[w.choose(len(a.looks))])
		return
	}
	switch w.choose(6) {
	default: // whole looks are most common, or few histories would see an answer
		w.wholeLooks(a)
		w.say("agent %s looks and publishes", a.host.name)
	case 3:
		a.catchUp()
		a.writeNode(w)
	case 4, 5:
		if w.choose(2) == 0 {
			a.catchUp()
		}
		for _, e := range w.etcds {
			if q, due := a.due(e); due && len(a.looks) < 3 {
				l := a.begin(e, q)
				w.say("agent %s begins look %d at %s", a.host.name, l.number, e.id)
			}
		}
	}
}

// goesOn does the next step of a look.
func (w *world) goesOn(l *look) {
	name := l.agent.host.name
	switch {
	case !l.listed:
		l.list()
		w.say("agent %s, look %d: lists %d members", name, l.number, len(l.seen.Members))
	case len(l.unprobed) > 0 && w.choose(2) == 1:
		l.probe(w.choose(len(l.unprobed)), w.choices.chance(8))
	case len(l.unprobed) > 0:
		l.rest()
	case !l.end():
	case w.choices.chance(4):
		w.held = append(w.held, l)
	default:
		w.say("agent %s publishes look %d", name, l.number)
		w.publish(l)
	}
}

// await waits until everything that can go on has.
func (w *world) await() { synctest.Wait() }
