package readiness

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// leaders are the webhook's leader at any age of what it sees: young, late, overdue, and overdue where it may end holds. The
// last of these, and a late one, may be killed after the first of their writes.
func leaders() []actor {
	p := patience()
	return []actor{
		leader("leader", 0, true, false),
		leader("leader, late", p.Agent, true, false), leader("leader, late, is killed", p.Agent, true, true),
		leader("leader, overdue", p.Hold, false, false),
		leader("leader, overdue, releases", p.Hold, true, false), leader("leader, overdue, releases, is killed", p.Hold, true, true),
	}
}

func leader(name string, age time.Duration, release, killed bool) actor {
	return actor{name, func(p play, s *scene) error {
		patience := patience()
		patience.Release = release
		by := author{leader: true, overdue: release && age >= patience.Hold}
		before := p.record(s.n)
		attend := func(n *corev1.Node) Decision {
			since := age
			if p.record(n).State != before.State {
				since = 0 // it is another shape
			}
			return Attend(n, since, patience, noon()).Decision
		}
		if done, err := p.work(s, by, killed, attend); err != nil || !done || age < patience.Agent {
			return err
		}
		return p.attended(s, by)
	}}
}

// attended checks what must hold when a leader that is late has nothing left to do, and no agent ever comes.
func (p play) attended(s *scene, by author) error {
	r, said := p.record(s.n), condition(s.n, NetworkHeld)
	c := condition(s.n, corev1.NodeNetworkUnavailable)
	ours := c != nil && c.Status == corev1.ConditionTrue && c.Reason == HeldByHoldfast
	shut := s.cordon == us
	if r.Taint != "" {
		shut = hasTaint(s.n, r.Taint)
	}
	switch {
	case r.State == "":
		return nil // Nobody can say that it is held by us.
	case ours && r.State != Held:
		return fmt.Errorf("our NetworkUnavailable stands in state %s", r.State)
	case r.State != Held && said != nil && said.Status == corev1.ConditionTrue:
		return fmt.Errorf("NetworkHeld stands in state %s", r.State)
	case r.State == Held && !shut:
		return fmt.Errorf("a hold that somebody has ended counts as one")
	case r.State == Held && p.blocked(s, by) && hasTaint(s.n, "medik8s.io/drain"):
		return nil
	case r.State == Held && by.overdue:
		return fmt.Errorf("a hold that is overdue is not ended")
	case r.State == Held && s.n.Labels[HoldLabel] == HoldNever:
		return fmt.Errorf("the label does not end the hold")
	case r.State == Held && !p.spoken(s.n, s.cordon) && (said == nil || said.Reason != AgentMissing && said.Reason != Overdue):
		return fmt.Errorf("nobody is loud")
	}
	return nil
}

// spoken says that an agent has said in this boot why the node is held: then the leader has nothing to say.
func (p play) spoken(n *corev1.Node, cordon string) bool {
	r, said := p.record(n), condition(n, NetworkHeld)
	if r.State != Held || said == nil || cordon != us && r.Taint == "" {
		return false
	}
	switch said.Reason {
	case AgentMissing, Overdue:
		return false
	case GoingDown:
		return n.Status.NodeInfo.BootID == "" || r.BootID == n.Status.NodeInfo.BootID
	}
	return true
}

// said is the condition NetworkHeld, empty if nobody has written it.
func said(n *corev1.Node) corev1.NodeCondition {
	if c := condition(n, NetworkHeld); c != nil {
		return *c
	}
	return corev1.NodeCondition{}
}

// bootNumber is the boot of that name.
func bootNumber(name string) int {
	n, err := strconv.Atoi(strings.TrimPrefix(name, "boot-"))
	if err != nil {
		return -1
	}
	return n
}

// kubelet is the step of a kubelet that tells its boot some time after that began.
func kubelet() map[string]func(*scene) {
	return map[string]func(*scene){
		"the kubelet reports its boot": func(s *scene) { s.n.Status.NodeInfo.BootID = bootName(s.boot) },
	}
}

// parameter are the steps of the born-held policy's parameter, which the leader takes away and a person puts back.
func parameter(born func(int) *corev1.Node) map[string]func(*scene) {
	return map[string]func(*scene){
		"the parameter is taken away": func(s *scene) { s.unborn = true },
		"the parameter is put back":   func(s *scene) { s.unborn = false },
		"the Node is made anew": func(s *scene) {
			if s.unborn {
				s.anew(node(booted(bootName(s.boot))))
				return
			}
			s.anew(born(s.boot))
		},
	}
}

// reporting is a Node whose kubelet has told its boot as it registered.
func reporting(born func(int) *corev1.Node) func(int) *corev1.Node {
	return func(boot int) *corev1.Node {
		n := born(boot)
		booted(bootName(boot))(n)
		return n
	}
}
