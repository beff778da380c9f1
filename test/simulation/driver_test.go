package simulation

import (
	"errors"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// An action is something that may happen next.
type action struct {
	weight int
	does   func()
}

// run lets random actions happen, one after the other.
func (sim *simulation) run(steps int) {
	for range steps {
		sim.settle()
		sim.collectAnswers()
		if sim.hasFailed() {
			return
		}
		sim.step()
		sim.recordSnapshot()
		if sim.profile.careful {
			sim.checkAllQuorums()
		}
	}
	sim.settle()
	sim.collectAnswers()
}

func (sim *simulation) step() {
	actions := sim.profile.environmentActions(sim)
	actions = append(actions, sim.workActions()...)
	actions = append(actions, action{2, func() { sim.sleep(time.Duration(50+sim.choose(500)) * time.Millisecond) }})
	sim.pickAction(actions)
}

// pickAction runs one of the actions. The choice 0 picks the last action, which only lets
// time pass.
func (sim *simulation) pickAction(actions []action) {
	all := 0
	for _, a := range actions {
		all += a.weight
	}
	at := sim.choose(all)
	for _, a := range slices.Backward(actions) {
		if at < a.weight {
			a.does()
			return
		}
		at -= a.weight
	}
}

// workActions returns the work of calls, caches, agents and deletions.
func (sim *simulation) workActions() []action {
	waiting, abandoned := sim.gate.waiting()
	for _, c := range abandoned {
		if c.write && !c.done {
			sim.lateWrites = append(sim.lateWrites, c)
		}
	}
	var actions []action
	for _, c := range waiting {
		actions = append(actions, action{sim.profile.call, func() { sim.serveCall(c) }})
	}
	for _, r := range sim.replicas {
		actions = append(actions, sim.cacheActions(r)...)
	}
	for _, h := range sim.hosts {
		if h.agent.isWorking() {
			actions = append(actions, action{6, func() { sim.stepAgent(h.agent) }})
		}
	}
	for _, l := range sim.delayedProbes {
		actions = append(actions, action{1, func() {
			sim.delayedProbes = slices.DeleteFunc(sim.delayedProbes, func(o *agentProbe) bool { return o == l })
			sim.log("agent %s: probe %d arrives late", l.agent.host.name, l.number)
			sim.publish(l)
		}})
	}
	for _, c := range sim.lateWrites {
		actions = append(actions, action{1, func() {
			sim.lateWrites = slices.DeleteFunc(sim.lateWrites, func(o *apiCall) bool { return o == c })
			if time.Since(c.began) < lateness {
				c.carryOut()
				sim.log("webhook %d: %s is executed late: %s", c.replica.number, c.what, errorText(c.err))
			}
		}})
	}
	actions = append(actions, sim.drainWork()...)
	actions = append(actions, sim.machineWork()...)
	for _, d := range sim.deletions {
		if d.review == nil && d.admitted != nil {
			weight := sim.profile.commit
			if d.drain != nil {
				weight = 6
			}
			actions = append(actions, action{weight, func() { sim.commit(d) }},
				action{1, func() { sim.abandon(d, "another plugin refuses") }})
		}
	}
	return actions
}

func errorText(err error) string {
	if err == nil {
		return "done"
	}
	return err.Error()
}

// cacheActions returns the actions by which the caches of a replica receive versions and
// notify their handlers.
func (sim *simulation) cacheActions(r *simulatedReplica) []action {
	if r.isCrashed() {
		return nil
	}
	var actions []action
	for _, c := range r.caches.all() {
		if c.watch().stalled {
			continue
		}
		held, told := c.pending()
		c.bookmark()
		if held > 0 {
			actions = append(actions, action{sim.profile.deliver, func() { c.receive(1 + sim.choose(held)) }})
		}
		if told > 0 {
			actions = append(actions, action{sim.profile.deliver, func() { c.notify(1 + sim.choose(told)) }})
		}
	}
	return actions
}

// serveCall executes and answers a call, or makes it fail in one of several ways.
func (sim *simulation) serveCall(c *apiCall) {
	if c.done {
		sim.gate.answer(c)
		return
	}
	fate := sim.choose(20)
	if !sim.profile.faults || c.isInternal {
		fate = 0
	}
	switch fate {
	default:
		c.carryOut()
		sim.logCall(c, "")
		sim.gate.answer(c)
	case 15, 16:
		c.carryOut()
		sim.logCall(c, ", the answer is delayed")
	case 17:
		if c.write {
			unknown := *c
			sim.lateWrites = append(sim.lateWrites, &unknown)
		}
		c.fail(apierrors.NewTimeoutError("the request did not end in time", 1))
		sim.logCall(c, ", it may still be executed")
		sim.gate.answer(c)
	case 18:
		if c.write {
			c.carryOut()
		}
		c.fail(errors.New("connection reset"))
		sim.logCall(c, ", a write was executed")
		sim.gate.answer(c)
	case 19:
		c.fail(apierrors.NewInternalError(errors.New("etcd: leader changed")))
		if c.write && sim.choose(2) == 1 {
			c.fail(apierrors.NewConflict(schema.GroupResource{Resource: "somethings"}, "it",
				errors.New("the object has been modified")))
		}
		sim.logCall(c, "")
		sim.gate.answer(c)
	}
}

func (sim *simulation) logCall(c *apiCall, how string) {
	if c.write || c.err != nil || sim.verbose {
		whose := "leader:"
		if c.review != nil {
			whose = c.review.deletion.String() + ":"
		}
		sim.log("webhook %d, %s %s: %s%s", c.replica.number, whose, c.what, errorText(c.err), how)
	}
}

// stepAgent does one step of an agent.
func (sim *simulation) stepAgent(a *simulatedAgent) {
	if len(a.probes) > 0 && !sim.choices.oneIn(4) {
		sim.stepProbe(a.probes[sim.choose(len(a.probes))])
		return
	}
	switch sim.choose(6) {
	default: // Most probes are complete ones: otherwise few histories would have an answer.
		sim.syncAgent(a)
		sim.log("agent %s probes and publishes", a.host.name)
	case 3:
		a.catchUp()
		a.writeNode(sim)
	case 4, 5:
		switch sim.choose(4) {
		case 0:
			a.catchUp()
		case 1: // The other watch is behind.
			a.clusters.receive(len(a.clusters.table.log))
		}
		for _, e := range sim.etcds {
			if q, due := a.dueProbe(e); due && len(a.probes) < 3 {
				l := a.beginProbe(e, q)
				sim.log("agent %s begins probe %d of %s", a.host.name, l.number, e.id)
			}
		}
	}
}

// stepProbe does the next step of a probe.
func (sim *simulation) stepProbe(l *agentProbe) {
	name := l.agent.host.name
	switch {
	case !l.hasList:
		l.listMembers()
		sim.log("agent %s, probe %d: lists %d members", name, l.number, len(l.result.Members))
	case !l.hasAlarms && (len(l.remaining) == 0 || sim.choose(2) == 1):
		l.readAlarms(sim.choices.oneIn(8))
		sim.log("agent %s, probe %d: alarms unknown %t", name, l.number, l.result.AlarmsUnknown)
	case len(l.remaining) > 0 && sim.choose(2) == 1:
		l.probeMember(sim.choose(len(l.remaining)), sim.choices.oneIn(8))
	case len(l.remaining) > 0:
		l.complete()
	case !l.finish():
	case sim.choices.oneIn(4):
		sim.delayedProbes = append(sim.delayedProbes, l)
	default:
		sim.log("agent %s publishes probe %d", name, l.number)
		sim.publish(l)
	}
}
