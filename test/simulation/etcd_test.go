package simulation

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

type simulatedHost struct {
	name, address string
	// systemUUID identifies the machine on its Node, empty if the kubelet reports none.
	systemUUID string
	// up is true while the machine runs. A killed machine never runs again.
	up, killed bool
	// node is the UID of the Node that the kubelet has registered, empty if there is none.
	node       types.UID
	registered time.Time
	// keptByOperator is true if an operator guaranteed that this machine stays, whatever
	// happens to its Node.
	keptByOperator bool
	// hadMachine is true after its Machine or NodeClaim was created.
	hadMachine bool
	agent      *simulatedAgent
}

// A simulatedMember is a current or former member of an etcd cluster.
type simulatedMember struct {
	id      v1alpha1.MemberID
	host    *simulatedHost
	learner bool
	// started is true after the member joined; from then on it has a name. running is true
	// while its process runs.
	started, running bool
	// corrupt is true while it has the alarm CORRUPT.
	corrupt bool
	// wiped is true if its data are gone from the host.
	wiped bool
	// rejoined is true if the distribution added the member without asking.
	rejoined bool
	// joined is when the member was added to the list.
	joined time.Time
	// lostNode is when the machine had registered the Node that was gone already when the member
	// joined, zero if the machine had a Node then.
	lostNode time.Time
}

func (m *simulatedMember) isAlive() bool {
	return m.started && m.running && m.host.up && !m.host.killed
}

type simulatedEtcd struct {
	id           v1alpha1.ClusterID
	members      []*simulatedMember
	removed      []*simulatedMember
	createdCount int
	// lastLeader is the member that led last, nil at first.
	lastLeader *simulatedMember
	// cutPeers are the broken connections between two members, cutAgents those of agents to members.
	cutPeers, cutAgents []brokenLink
}

func (e *simulatedEtcd) voters() []*simulatedMember {
	return slices.DeleteFunc(slices.Clone(e.members), func(m *simulatedMember) bool { return m.learner })
}

func (e *simulatedEtcd) memberOn(h *simulatedHost) *simulatedMember {
	for _, m := range e.members {
		if m.host == h {
			return m
		}
	}
	return nil
}

// memberWithDataOn returns the member whose data are on the host: the current member, or
// else the last former one.
func (e *simulatedEtcd) memberWithDataOn(h *simulatedHost) *simulatedMember {
	if m := e.memberOn(h); m != nil {
		return m
	}
	for _, m := range slices.Backward(e.removed) {
		if m.host == h && !m.wiped {
			return m
		}
	}
	return nil
}

func countOf(members []*simulatedMember, is func(*simulatedMember) bool) int {
	n := 0
	for _, m := range members {
		if is(m) {
			n++
		}
	}
	return n
}

func quorumOf(voters int) int { return voters/2 + 1 }

func (e *simulatedEtcd) addInitialMember(h *simulatedHost) {
	e.createdCount++
	id := v1alpha1.MemberID(fmt.Sprintf("%sa%d", e.id, e.createdCount))
	e.members = append(e.members, &simulatedMember{id: id, host: h, started: true, running: true})
}

// join adds a member to the list, unless etcd refuses it (server/etcdserver,
// --strict-reconfig-check, which is the default). Etcd accepts one learner at a time. It accepts
// a voter only if the started voters are a quorum of the larger cluster and all are connected.
func (e *simulatedEtcd) join(h *simulatedHost, learner bool) (*simulatedMember, bool) {
	voters := e.voters()
	started := countOf(voters, func(m *simulatedMember) bool { return m.started })
	switch {
	case !e.hasQuorum() || e.memberOn(h) != nil:
		return nil, false
	case learner && len(e.members) > len(voters):
		return nil, false
	case !learner && countOf(voters, e.serves) < len(voters):
		return nil, false
	case !learner && started < quorumOf(len(voters)+1) && len(voters) != 1:
		return nil, false
	}
	for _, old := range e.removed {
		if old.host == h {
			old.wiped = true
		}
	}
	e.createdCount++
	id := v1alpha1.MemberID(fmt.Sprintf("%sa%d", e.id, e.createdCount))
	m := &simulatedMember{id: id, host: h, learner: learner, joined: time.Now()}
	e.members = append(e.members, m)
	return m, true
}

// promote makes a learner a voter, unless etcd refuses it because the learner has not
// caught up.
func (e *simulatedEtcd) promote(m *simulatedMember) bool {
	if !m.learner || !e.serves(m) {
		return false
	}
	m.learner = false
	return true
}

// remove removes a member from the list, unless etcd refuses it because too few other
// members are connected.
func (e *simulatedEtcd) remove(m *simulatedMember) bool {
	voters := e.voters()
	connected := countOf(voters, e.serves)
	switch {
	case !e.hasQuorum() || len(e.members) == 1:
		return false
	case !m.learner && len(voters) == 1:
		return false
	case !m.learner && e.serves(m) && connected-1 < quorumOf(len(voters)-1):
		return false
	}
	e.members = slices.DeleteFunc(e.members, func(o *simulatedMember) bool { return o == m })
	e.removed = append(e.removed, m)
	m.running = false // A member stops when it learns of its removal.
	return true
}

// A memberSnapshot is the state of a member at one moment.
type memberSnapshot struct {
	id      v1alpha1.MemberID
	host    *simulatedHost
	learner bool
	serving bool // the member serves linearizable reads
	corrupt bool
	killed  bool // the machine is gone
}

// An etcdSnapshot is the state of all etcd clusters at one moment, in the order of
// simulation.etcds.
type etcdSnapshot [][]memberSnapshot

func (sim *simulation) currentSnapshot() etcdSnapshot {
	m := make(etcdSnapshot, len(sim.etcds))
	for i, e := range sim.etcds {
		for _, o := range e.members {
			m[i] = append(m[i], memberSnapshot{
				id: o.id, host: o.host, learner: o.learner, serving: e.serves(o), corrupt: o.corrupt,
				killed: o.host.killed,
			})
		}
	}
	return m
}

// recordSnapshot keeps the current state if it differs from the last snapshot. It must run
// after every change of members or machines.
func (sim *simulation) recordSnapshot() {
	sim.updateDrains()
	m := sim.currentSnapshot()
	if len(sim.snapshots) > 0 && slices.EqualFunc(sim.snapshots[len(sim.snapshots)-1], m, slices.Equal[[]memberSnapshot]) {
		return
	}
	sim.snapshots = append(sim.snapshots, m)
}

// addMember adds a member on a machine without one. A careful operator skips machines that
// may be lost, adds learners only, and adds the next one only after the last one became a
// voter.
func (sim *simulation) addMember() {
	e := sim.pickEtcd()
	h, ok := pickMatching(sim, sim.hosts, func(h *simulatedHost) bool {
		return h.up && !h.killed && h != sim.attacker && e.memberOn(h) == nil &&
			(!sim.profile.careful || !sim.isLossPending(h))
	})
	if !ok {
		return
	}
	learner := sim.profile.careful || sim.choose(3) > 0
	if m, ok := e.join(h, learner); ok {
		sim.log("member %s is added on %s, learner %t", m.id, h.name, learner)
		sim.giveRole(h)
		if sim.choose(2) == 1 {
			m.started, m.running = true, true
			sim.log("member %s starts", m.id)
		}
	}
}

// startNewMember starts a member for the first time.
func (sim *simulation) startNewMember() {
	e := sim.pickEtcd()
	if m, ok := pickMatching(sim, e.members,
		func(m *simulatedMember) bool { return !m.started && m.host.up && !m.host.killed }); ok && e.hasQuorum() {
		m.started, m.running = true, true
		sim.log("member %s starts for the first time", m.id)
	}
}

// promoteMember makes a learner a voter. A careful operator does so only if Holdfast
// accounts for the member: its agent has announced it, and a deletion of its Node, if any,
// has a grant with the member.
func (sim *simulation) promoteMember() {
	e := sim.pickEtcd()
	if m, ok := pickMatching(sim, e.members,
		func(m *simulatedMember) bool { return m.learner && (!sim.profile.careful || sim.isAccountedFor(e, m)) }); ok &&
		e.promote(m) {
		sim.log("member %s is promoted", m.id)
	}
}

// removeMember removes a member, unless etcd refuses it. A careful operator makes sure that
// the remaining members can lose all machines with a pending loss.
func (sim *simulation) removeMember() {
	e := sim.pickEtcd()
	if m, ok := pickMatching(sim, e.members, func(m *simulatedMember) bool { return sim.canRemove(e, m) }); ok &&
		e.remove(m) {
		sim.log("member %s on %s is removed", m.id, m.host.name)
		if sim.choose(2) == 1 {
			m.wiped = true
		}
	}
}

// isAccountedFor reports whether Holdfast knows the member, and the deletion of its Node if
// there was one.
func (sim *simulation) isAccountedFor(e *simulatedEtcd, m *simulatedMember) bool {
	k := sim.knowledgeAbout(m.host.name, m.host.node)
	counted := slices.Contains(refsOf(e.id, k.announced, k.bound[m.host.node]), m.id)
	for _, d := range sim.pendingLosses() {
		if d.host == m.host {
			counted = slices.Contains(refsOf(e.id, d.members), m.id) && d.order[e.id] > 0
		}
	}
	return counted
}

// canRemove reports whether the operator of this history removes the member. A careful
// operator does not during a review: the latest observations still list the member.
func (sim *simulation) canRemove(e *simulatedEtcd, m *simulatedMember) bool {
	judging := slices.ContainsFunc(sim.deletions, func(d *simulatedDeletion) bool { return d.review != nil })
	return !sim.profile.careful || (!judging && sim.survivesWithout(e, m))
}

// survivesWithout reports whether the cluster without m keeps quorum after all pending
// losses.
func (sim *simulation) survivesWithout(e *simulatedEtcd, m *simulatedMember) bool {
	voters, left := sim.countAfterLosses(e, m)
	return left >= quorumOf(voters)
}

// countAfterLosses returns the voters without m, and how many of them are alive after all pending
// losses.
func (sim *simulation) countAfterLosses(e *simulatedEtcd, m *simulatedMember) (voters, left int) {
	for _, o := range e.members {
		doomed := sim.isLossPending(o.host)
		if o == m || (o.learner && !doomed) {
			continue
		}
		voters++
		if o.isAlive() && !doomed {
			left++
		}
	}
	return voters, left
}

// removeDeadMember removes a dead member, as an operator does before adding a new one.
func (sim *simulation) removeDeadMember() {
	e := sim.pickEtcd()
	if m, ok := pickMatching(sim, e.members,
		func(m *simulatedMember) bool { return !m.isAlive() && m.started && sim.canRemove(e, m) }); ok && e.remove(m) {
		sim.log("dead member %s on %s is removed", m.id, m.host.name)
		m.wiped = true
	}
}
