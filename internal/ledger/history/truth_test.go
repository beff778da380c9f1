package history

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// host is a machine.
type host struct {
	name, address string
	// up says that it runs; killed, that it never will again.
	up, killed bool
	// node is the UID of the Node that its kubelet has, empty if it has none.
	node       types.UID
	registered time.Time
	// kept says that an operator has promised that this machine stays whatever became of its Node.
	kept  bool
	agent *agent
}

// member is a member of an etcd cluster, in its list or no longer.
type member struct {
	id      v1alpha1.MemberID
	host    *host
	learner bool
	// started says that it has joined; it has a name since then. running, that its process runs.
	started, running bool
	// wiped says that its data are gone from the host.
	wiped bool
}

func (m *member) alive() bool { return m.started && m.running && m.host.up && !m.host.killed }

// etcd is one etcd cluster.
type etcd struct {
	id      v1alpha1.ClusterID
	members []*member
	left    []*member
	made    int
}

func (e *etcd) voters() []*member {
	return slices.DeleteFunc(slices.Clone(e.members), func(m *member) bool { return m.learner })
}

func (e *etcd) of(h *host) *member {
	for _, m := range e.members {
		if m.host == h {
			return m
		}
	}
	return nil
}

// remains returns the member whose data lie on the host: the one in the list, or else the last one that left.
func (e *etcd) remains(h *host) *member {
	if m := e.of(h); m != nil {
		return m
	}
	for _, m := range slices.Backward(e.left) {
		if m.host == h && !m.wiped {
			return m
		}
	}
	return nil
}

func countOf(members []*member, is func(*member) bool) int {
	n := 0
	for _, m := range members {
		if is(m) {
			n++
		}
	}
	return n
}

func quorumOf(voters int) int { return voters/2 + 1 }

// hasQuorum says whether it takes writes.
func (e *etcd) hasQuorum() bool {
	voters := e.voters()
	return countOf(voters, (*member).alive) >= quorumOf(len(voters))
}

// found adds a first member.
func (e *etcd) found(h *host) {
	e.made++
	id := v1alpha1.MemberID(fmt.Sprintf("%sa%d", e.id, e.made))
	e.members = append(e.members, &member{id: id, host: h, started: true, running: true})
}

// join adds a member to the list, unless etcd refuses (server/etcdserver, --strict-reconfig-check, which is the default:
// one learner at a time; a voter only if the started ones are a quorum of the larger cluster and all are connected).
func (e *etcd) join(h *host, learner bool) (*member, bool) {
	voters := e.voters()
	started := countOf(voters, func(m *member) bool { return m.started })
	switch {
	case !e.hasQuorum() || e.of(h) != nil:
		return nil, false
	case learner && len(e.members) > len(voters):
		return nil, false
	case !learner && countOf(voters, (*member).alive) < len(voters):
		return nil, false
	case !learner && started < quorumOf(len(voters)+1) && len(voters) != 1:
		return nil, false
	}
	for _, old := range e.left {
		if old.host == h {
			old.wiped = true
		}
	}
	e.made++
	m := &member{id: v1alpha1.MemberID(fmt.Sprintf("%sa%d", e.id, e.made)), host: h, learner: learner}
	e.members = append(e.members, m)
	return m, true
}

// promote makes a learner a voter, unless etcd refuses: it must have caught up.
func (e *etcd) promote(m *member) bool {
	if !e.hasQuorum() || !m.learner || !m.alive() {
		return false
	}
	m.learner = false
	return true
}

// remove takes a member out of the list, unless etcd refuses: of the others, enough must be connected.
func (e *etcd) remove(m *member) bool {
	voters := e.voters()
	alive := countOf(voters, (*member).alive)
	switch {
	case !e.hasQuorum() || len(e.members) == 1:
		return false
	case !m.learner && len(voters) == 1:
		return false
	case !m.learner && m.alive() && alive-1 < quorumOf(len(voters)-1):
		return false
	}
	e.members = slices.DeleteFunc(e.members, func(o *member) bool { return o == m })
	e.left = append(e.left, m)
	m.running = false // it stops when it learns that it was removed
	return true
}

// seat is a member at one moment.
type seat struct {
	id             v1alpha1.MemberID
	host           *host
	learner, alive bool
}

// moment is all etcd clusters at one moment, in the order of world.etcds.
type moment [][]seat

// now describes the clusters as they are.
func (w *world) now() moment {
	m := make(moment, len(w.etcds))
	for i, e := range w.etcds {
		for _, o := range e.members {
			m[i] = append(m[i], seat{id: o.id, host: o.host, learner: o.learner, alive: o.alive()})
		}
	}
	return m
}

// note keeps the moment if it differs from the last one. It is called after everything that may change the truth.
func (w *world) note() {
	m := w.now()
	if len(w.moments) > 0 && slices.EqualFunc(w.moments[len(w.moments)-1], m, slices.Equal[[]seat]) {
		return
	}
	w.moments = append(w.moments, m)
}
