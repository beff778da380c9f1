package readiness

import (
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/pkg/autoscaler"
)

// modelSteps are steps of the model by name.
type modelSteps = map[string]func(*modelState)

// bornByCordon returns a Node as the born-held policy creates it. bornByTaint returns a Node
// of the overlay taint-mode.
func bornByCordon(boot int) *corev1.Node {
	return bornHeldNode(boot, "", cordoned, unavailable(HeldByHoldfast))
}

func bornByTaint(boot int) *corev1.Node { return bornHeldNode(boot, holdTaint, tainted(holdTaint)) }

func bornHeldNode(boot int, taint string, options ...nodeOption) *corev1.Node {
	r := Record{State: Held, BootID: bootName(boot), Reason: NewNode, Taint: taint, Marks: []string{autoscaler.Karpenter}}
	return node(append(options, annotated(autoscaler.Karpenter, "true"), recordedAs(r))...)
}

// reporting returns Nodes whose kubelet has reported its boot at the registration.
func reporting(newNode func(int) *corev1.Node) func(int) *corev1.Node {
	return func(boot int) *corev1.Node {
		n := newNode(boot)
		booted(bootName(boot))(n)
		return n
	}
}

func setUnavailable(n *corev1.Node, status corev1.ConditionStatus, reason string, at time.Time) {
	c := corev1.NodeCondition{
		Type: corev1.NodeNetworkUnavailable, Status: status, Reason: reason, LastHeartbeatTime: metav1.NewTime(at),
	}
	if before := FindCondition(n, c.Type); before != nil {
		*before = c
		return
	}
	n.Status.Conditions = append(n.Status.Conditions, c)
}

// hostSteps are the steps of the machine and of its network plugin. The plugin reports after
// the kubelet has reported its boot.
func hostSteps(lastBoot int) modelSteps {
	steps := machineSteps(lastBoot)
	steps["the plugin clears NetworkUnavailable"] = func(s *modelState) {
		s.up = true
		if s.n.Status.NodeInfo.BootID != "" {
			s.n.Status.NodeInfo.BootID = bootName(s.boot)
		}
		setUnavailable(s.n, corev1.ConditionFalse, "FlannelIsUp", noon().Add(time.Duration(s.boot)*time.Hour))
	}
	return steps
}

// machineSteps are the steps of the machine alone, up to its last boot.
func machineSteps(lastBoot int) modelSteps {
	return modelSteps{
		"gates open":  func(s *modelState) { s.open = true },
		"gates close": func(s *modelState) { s.open = false },
		"reboot": func(s *modelState) {
			if s.boot < lastBoot {
				s.boot, s.open, s.up, s.going = s.boot+1, false, false, false
			}
		},
	}
}

// logindSteps are the signals of logind.
func logindSteps() modelSteps {
	return modelSteps{
		"shutdown":              func(s *modelState) { s.going = true },
		"shutdown is cancelled": func(s *modelState) { s.going = false },
	}
}

// kubeletSteps has the kubelet report its boot some time after the boot began.
func kubeletSteps() modelSteps {
	return modelSteps{
		"the kubelet reports its boot": func(s *modelState) { s.n.Status.NodeInfo.BootID = bootName(s.boot) },
	}
}

// peopleSteps are cordons, uncordons, and the replacement of the Node.
func peopleSteps(newNode func(int) *corev1.Node) modelSteps {
	steps := cordonSteps()
	steps["the Node is recreated"] = func(s *modelState) { s.recreate(newNode(s.boot)) }
	return steps
}

// recreate replaces the Node with another one.
func (s *modelState) recreate(n *corev1.Node) {
	s.n, s.cordon, s.ended, s.written, s.up = n, "", "", "", false
	if s.n.Spec.Unschedulable {
		s.cordon = byHoldfast
	}
}

func cordonSteps() modelSteps {
	return modelSteps{
		"kubectl cordon": func(s *modelState) {
			if !s.n.Spec.Unschedulable { // otherwise kubectl writes nothing
				s.n.Spec.Unschedulable, s.n.ManagedFields, s.cordon = true, nil, byOther
				owned("kubectl", "", `{"f:spec":{"f:unschedulable":{}}}`)(s.n)
			}
		},
		"kubectl uncordon": func(s *modelState) { s.n.Spec.Unschedulable, s.n.ManagedFields, s.cordon = false, nil, "" },
	}
}

// drainSteps are drains, and writes of NetworkUnavailable by other components.
func drainSteps() modelSteps {
	return modelSteps{
		"a drain begins": func(s *modelState) {
			if !hasTaint(s.n, "medik8s.io/drain") {
				tainted("medik8s.io/drain")(s.n)
			}
		},
		"a drain ends": func(s *modelState) {
			isDrain := func(t corev1.Taint) bool { return t.Key == "medik8s.io/drain" }
			s.n.Spec.Taints = slices.DeleteFunc(s.n.Spec.Taints, isDrain)
		},
		"status by hand": func(s *modelState) { setUnavailable(s.n, corev1.ConditionFalse, "ByHand", time.Time{}) },
		"the plugin is down": func(s *modelState) {
			s.up = false
			setUnavailable(s.n, corev1.ConditionTrue, "CalicoIsDown", time.Time{})
		},
	}
}

// requestSteps are the label and the annotation by which people control holds.
func requestSteps() modelSteps {
	return modelSteps{
		"hold=never":               func(s *modelState) { exempt(s.n) },
		"hold=never is removed":    func(s *modelState) { delete(s.n.Labels, HoldLabel) },
		"keep-cordoned":            func(s *modelState) { s.n.Annotations[KeepCordonedAnnotation] = "" },
		"keep-cordoned is removed": func(s *modelState) { delete(s.n.Annotations, KeepCordonedAnnotation) },
	}
}

// etcdSteps scan for etcd and guard a member like pkg/protect does: the marks of the hold are
// taken over.
func etcdSteps() modelSteps {
	return modelSteps{
		"the scan hangs": func(s *modelState) { s.unscanned = true },
		"the scan finishes": func(s *modelState) {
			s.unscanned = false
			_, there := s.n.Annotations[autoscaler.Karpenter]
			switch isOwned := slices.Contains(OwnedAutoscalerAnnotations(s.n.Annotations), autoscaler.Karpenter); {
			case s.member && (isOwned || !there):
				s.n.Annotations[autoscaler.Karpenter], s.n.Annotations[etcdMarksAnnotation] = "true", autoscaler.Karpenter
			case !s.member && s.n.Annotations[etcdMarksAnnotation] != "":
				delete(s.n.Annotations, etcdMarksAnnotation)
				if !isOwned {
					delete(s.n.Annotations, autoscaler.Karpenter)
				}
			}
		},
		"etcd appears":    func(s *modelState) { s.member, s.unscanned = true, true },
		"etcd disappears": func(s *modelState) { s.member, s.unscanned = false, true },
	}
}

// parameterSteps delete and restore the parameter of the born-held policy.
func parameterSteps(newNode func(int) *corev1.Node) modelSteps {
	return modelSteps{
		"the parameter is deleted":  func(s *modelState) { s.removed = true },
		"the parameter is restored": func(s *modelState) { s.removed = false },
		"the Node is recreated": func(s *modelState) {
			if s.removed {
				s.recreate(node(booted(bootName(s.boot))))
				return
			}
			s.recreate(newNode(s.boot))
		},
	}
}

func (m holdModel) with(steps ...modelSteps) holdModel {
	m.steps = modelSteps{}
	for _, some := range steps {
		maps.Copy(m.steps, some)
	}
	m.actors = agents()
	return m
}

func (m holdModel) and(more []modelActor) holdModel {
	m.actors = slices.Concat(m.actors, more)
	return m
}

// TestEveryHistory visits every order of these steps, of any length.
func TestEveryHistory(t *testing.T) {
	restored := modelSteps{"Karpenter restores the taint": func(s *modelState) {
		if !hasTaint(s.n, holdTaint) {
			tainted(holdTaint)(s.n)
		}
	}}
	network := Policy{Force: []string{GateCondition + string(corev1.NodeNetworkUnavailable)}}
	cordon := holdModel{newNode: bornByCordon}
	taint := holdModel{newNode: bornByTaint, policy: Policy{TaintKey: holdTaint}}
	plugin := holdModel{newNode: bornByCordon, policy: network, announced: true}
	reported := holdModel{newNode: reporting(bornByCordon)}
	reportedPlugin := holdModel{newNode: reporting(bornByCordon), policy: network, announced: true}
	unrecorded := holdModel{newNode: reporting(bornByCordon), policy: Policy{HoldUnrecorded: true}}
	recreated := parameterSteps(reporting(bornByCordon))
	host, machine, kubelet, cordons, logind := hostSteps(1), machineSteps(1), kubeletSteps(), cordonSteps(), logindSteps()
	drains, requests := drainSteps(), requestSteps()
	otherFlags := agentsWithFlags(map[string]Policy{"cordon": {}, "another taint": {TaintKey: otherTaint}})
	for name, m := range map[string]holdModel{
		"cordon, people, shutdown":     cordon.with(host, peopleSteps(bornByCordon), logind),
		"cordon, shutdown, uninformed": cordon.with(machine, cordons, logind).and(uninformedAgents()),
		"cordon, drains":               cordon.with(host, drains),
		"cordon, requests":             cordon.with(host, requests),
		"taint, people":                taint.with(host, peopleSteps(bornByTaint), restored),
		"taint, drains":                taint.with(host, drains),
		"taint, shutdown":              taint.with(host, logind),
		"taint, requests":              taint.with(host, requests, restored),
		"taint, requests, flags":       taint.with(machine, requests, logind).and(otherFlags),
		"cordon, etcd":                 cordon.with(host, etcdSteps()),
		"plugin's condition":           plugin.with(hostSteps(2), peopleSteps(bornByCordon)),

		"leader, shutdown":              reported.with(machine, kubelet, logind).and(leaders()),
		"leader, people":                reported.with(machine, kubelet, cordons).and(leaders()),
		"leader, drains":                cordon.with(machine, drains).and(leaders()),
		"leader, requests":              cordon.with(machine, requests).and(leaders()),
		"leader, taint, people":         taint.with(machine, cordons, restored).and(leaders()),
		"leader, plugin's condition":    reportedPlugin.with(host, kubelet).and(leaders()),
		"leader, parameter":             reported.with(machine, kubelet, recreated).and(leaders()),
		"leader, parameter, unrecorded": unrecorded.with(machine, kubelet, recreated).and(leaders()),
	} {
		t.Run(name, func(t *testing.T) {
			states, transitions := explore(t, m)
			t.Logf("%d states, %d transitions", states, transitions)
		})
	}
}
