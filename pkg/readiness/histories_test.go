package readiness

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// bornByCordon is a Node as the born-held policy makes it, bornByTaint one of the overlay taint-mode.
func bornByCordon(boot int) *corev1.Node {
	return node(cordoned, conditioned(corev1.NodeNetworkUnavailable, corev1.ConditionTrue, HeldByHoldfast), annotated(karpenterAnnotation, "true"),
		holding(Record{State: Held, BootID: bootName(boot), Reason: NewNode, Marks: []string{karpenterAnnotation}}))
}

func bornByTaint(boot int) *corev1.Node {
	return node(tainted(holdTaint), annotated(karpenterAnnotation, "true"),
		holding(Record{State: Held, BootID: bootName(boot), Reason: NewNode, Taint: holdTaint, Marks: []string{karpenterAnnotation}}))
}

func bootName(boot int) string { return fmt.Sprintf("boot-%d", boot) }

func set(n *corev1.Node, status corev1.ConditionStatus, reason string, at time.Time) {
	c := corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: status, Reason: reason, LastHeartbeatTime: metav1.NewTime(at)}
	if before := condition(n, c.Type); before != nil {
		*before = c
		return
	}
	n.Status.Conditions = append(n.Status.Conditions, c)
}

// host are the steps of the machine, up to the last boot, and of its network plugin, which says what it has to say once the
// kubelet has told its boot.
func host(last int) map[string]func(*scene) {
	steps := machine(last)
	steps["the plugin clears NetworkUnavailable"] = func(s *scene) {
		s.up = true
		if s.n.Status.NodeInfo.BootID != "" {
			s.n.Status.NodeInfo.BootID = bootName(s.boot)
		}
		set(s.n, corev1.ConditionFalse, "FlannelIsUp", noon().Add(time.Duration(s.boot)*time.Hour))
	}
	return steps
}

// machine are the steps of the machine alone.
func machine(last int) map[string]func(*scene) {
	return map[string]func(*scene){
		"gates open":  func(s *scene) { s.open = true },
		"gates close": func(s *scene) { s.open = false },
		"reboot": func(s *scene) {
			if s.boot < last {
				s.boot, s.open, s.up, s.going = s.boot+1, false, false, false
			}
		},
	}
}

// shutdown are the steps of logind.
func shutdown() map[string]func(*scene) {
	return map[string]func(*scene){
		"host goes down":        func(s *scene) { s.going = true },
		"shutdown is cancelled": func(s *scene) { s.going = false },
	}
}

// people are the steps of those who cordon, uncordon and delete.
func people(born func(int) *corev1.Node) map[string]func(*scene) {
	steps := cordons()
	steps["the Node is made anew"] = func(s *scene) { s.anew(born(s.boot)) }
	return steps
}

// anew puts another Node in the place of this one.
func (s *scene) anew(n *corev1.Node) {
	s.n, s.cordon, s.ended, s.up = n, "", 0, false
	if s.n.Spec.Unschedulable {
		s.cordon = us
	}
}

// cordons are the steps of those who cordon and uncordon.
func cordons() map[string]func(*scene) {
	return map[string]func(*scene){
		"kubectl cordon": func(s *scene) {
			if !s.n.Spec.Unschedulable { // otherwise kubectl writes nothing
				s.n.Spec.Unschedulable, s.n.ManagedFields, s.cordon = true, nil, other
				owns("kubectl", "", `{"f:spec":{"f:unschedulable":{}}}`)(s.n)
			}
		},
		"kubectl uncordon": func(s *scene) { s.n.Spec.Unschedulable, s.n.ManagedFields, s.cordon = false, nil, "" },
	}
}

// drains are the steps of those who drain, and of those who write NetworkUnavailable.
func drains() map[string]func(*scene) {
	return map[string]func(*scene){
		"a drain begins": func(s *scene) {
			if !hasTaint(s.n, "medik8s.io/drain") {
				tainted("medik8s.io/drain")(s.n)
			}
		},
		"a drain ends": func(s *scene) {
			s.n.Spec.Taints = slices.DeleteFunc(s.n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == "medik8s.io/drain" })
		},
		"status by hand":     func(s *scene) { set(s.n, corev1.ConditionFalse, "ByHand", time.Time{}) },
		"the plugin is down": func(s *scene) { s.up = false; set(s.n, corev1.ConditionTrue, "CalicoIsDown", time.Time{}) },
	}
}

// wishes are what people may write on a Node.
func wishes() map[string]func(*scene) {
	return map[string]func(*scene){
		"hold=never":         func(s *scene) { exempt(s.n) },
		"hold=never goes":    func(s *scene) { delete(s.n.Labels, HoldLabel) },
		"keep-cordoned":      func(s *scene) { s.n.Annotations[KeepCordonedAnnotation] = "" },
		"keep-cordoned goes": func(s *scene) { delete(s.n.Annotations, KeepCordonedAnnotation) },
	}
}

// etcd are the steps of who looks for etcd and guards it, as pkg/protect does: what the hold has lent is taken over.
func etcd() map[string]func(*scene) {
	return map[string]func(*scene){
		"the look hangs": func(s *scene) { s.unseen = true },
		"the look is done": func(s *scene) {
			s.unseen = false
			_, there := s.n.Annotations[karpenterAnnotation]
			switch lent := slices.Contains(Lent(s.n.Annotations), karpenterAnnotation); {
			case s.member && (lent || !there):
				s.n.Annotations[karpenterAnnotation], s.n.Annotations[etcdMarksAnnotation] = "true", karpenterAnnotation
			case !s.member && s.n.Annotations[etcdMarksAnnotation] != "":
				delete(s.n.Annotations, etcdMarksAnnotation)
				if !lent {
					delete(s.n.Annotations, karpenterAnnotation)
				}
			}
		},
		"etcd comes": func(s *scene) { s.member, s.unseen = true, true },
		"etcd goes":  func(s *scene) { s.member, s.unseen = false, true },
	}
}

func (p play) with(all ...map[string]func(*scene)) play {
	p.steps = map[string]func(*scene){}
	for _, some := range all {
		maps.Copy(p.steps, some)
	}
	p.actors = agents()
	return p
}

func (p play) and(more ...actor) play {
	p.actors = slices.Concat(p.actors, more)
	return p
}

// TestEveryHistory walks through every order in which these steps can come, however long.
func TestEveryHistory(t *testing.T) {
	network := []string{GateCondition + string(corev1.NodeNetworkUnavailable)}
	putBack := map[string]func(*scene){"Karpenter puts the taint back": func(s *scene) {
		if !hasTaint(s.n, holdTaint) {
			tainted(holdTaint)(s.n)
		}
	}}
	cordon, taint := play{born: bornByCordon}, play{born: bornByTaint, policy: Policy{TaintKey: holdTaint}}
	word := play{born: bornByCordon, policy: Policy{Force: network}, cleanly: true}
	watched, heard := cordon, word
	watched.born, heard.born = reporting(bornByCordon), reporting(bornByCordon)
	unrecorded := watched
	unrecorded.policy.HoldUnrecorded = true
	for name, p := range map[string]play{
		"cordon, people, shutdown":          cordon.with(host(1), people(bornByCordon), shutdown()),
		"cordon, shutdown, hard of hearing": cordon.with(machine(1), cordons(), shutdown()).and(hardOfHearing()...),
		"cordon, drains":                    cordon.with(host(1), drains()),
		"cordon, wishes":                    cordon.with(host(1), wishes()),
		"taint, people":                     taint.with(host(1), people(bornByTaint), putBack),
		"taint, drains":                     taint.with(host(1), drains()),
		"taint, shutdown":                   taint.with(host(1), shutdown()),
		"taint, wishes":                     taint.with(host(1), wishes(), putBack),
		"cordon, etcd":                      cordon.with(host(1), etcd()),
		"waits for the plugin's word":       word.with(host(2), people(bornByCordon)),

		"the leader, shutdown":                        watched.with(machine(1), kubelet(), shutdown()).and(leaders()...),
		"the leader, people":                          watched.with(machine(1), kubelet(), cordons()).and(leaders()...),
		"the leader, drains":                          cordon.with(machine(1), drains()).and(leaders()...),
		"the leader, wishes":                          cordon.with(machine(1), wishes()).and(leaders()...),
		"the leader, taint, people":                   taint.with(machine(1), cordons(), putBack).and(leaders()...),
		"the leader, the plugin's word":               heard.with(host(1), kubelet()).and(leaders()...),
		"the leader, the parameter":                   watched.with(machine(1), kubelet(), parameter(watched.born)).and(leaders()...),
		"the leader, the parameter, agents that hold": unrecorded.with(machine(1), kubelet(), parameter(watched.born)).and(leaders()...),
	} {
		t.Run(name, func(t *testing.T) {
			states, transitions := explore(t, p)
			t.Logf("%d states, %d transitions", states, transitions)
		})
	}
}
