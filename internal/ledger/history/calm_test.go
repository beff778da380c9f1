package history

import (
	"context"
	"testing/synctest"
	"time"
)

// pass lets time go by. Timers fire, and what follows from them waits at the gate.
func (w *world) pass(d time.Duration) {
	<-time.After(d)
}

// calm lets everybody do their work at once for a while: calls are answered, caches are up to date, agents look.
func (w *world) calm(d time.Duration) {
	until := time.Now().Add(d)
	for !w.failed() {
		synctest.Wait()
		w.collect()
		if w.everybodyWorks() {
			continue
		}
		left := time.Until(until)
		if left <= 0 {
			return
		}
		ctx, stop := context.WithTimeout(w.ctx, left)
		select {
		case <-w.gate.rang:
		case <-ctx.Done():
		}
		stop()
	}
}

// everybodyWorks does all that there is to do, and returns whether there was anything.
func (w *world) everybodyWorks() bool {
	waiting, abandoned := w.gate.waiting()
	for _, c := range abandoned {
		if c.write && !c.done && w.profile.faults {
			w.late = append(w.late, c)
		}
	}
	worked := false
	for _, c := range waiting {
		if w.waits != nil && w.waits(c) {
			continue
		}
		worked = true
		if !c.done {
			c.carryOut()
			w.tellOf(c, "")
		}
		w.gate.answer(c)
	}
	for _, r := range w.replicas {
		if r.crashed() {
			continue
		}
		if !r.deafToClusters {
			worked = hear(r.caches.clusters) || worked
		}
		if !r.deafToNodes {
			worked = hear(r.caches.nodes) || worked
		}
	}
	if worked {
		return true
	}
	for _, h := range w.hosts {
		if h.agent.working() {
			worked = w.wholeLooks(h.agent) || worked
		}
	}
	return worked
}

func hear[T interface {
	behind() (int, int)
	hold(int)
	tell(int)
}](m T) bool {
	held, told := m.behind()
	m.hold(held)
	m.tell(held + told)
	return held+told > 0
}

// wholeLooks has an agent do all that is due: look at every cluster with a new question, and write its Node.
func (w *world) wholeLooks(a *agent) bool {
	a.catchUp()
	worked := a.writeNode(w)
	for _, e := range w.etcds {
		if q, due := a.due(e); due {
			l := a.begin(e, q)
			l.rest()
			if l.end() {
				w.publish(l)
			}
			worked = true
		}
	}
	return worked
}
