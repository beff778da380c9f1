package readiness

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

const holdTaint = "readiness.k8s.io/holdfast"

// world is one case of the enumeration: a Node and all that Decide looks at beside it. What the test needs to know of the
// case is kept as it was put in, and not worked out again by the code under test.
type world struct {
	name       string
	node       *corev1.Node
	facts      Facts
	policy     Policy
	record     *Record // nil if there is none or it cannot be read
	unreadable bool
	open       bool // every gate is open
	unknown    bool // a gate is unknown
	marked     bool
	exempt     bool
	keep       bool
}

// option is one value of one dimension.
type option struct {
	name string
	set  func(*world)
}

func onNode(name string, change func(*corev1.Node)) option {
	return option{name, func(w *world) { change(w.node) }}
}

func records() []option {
	options := []option{
		{"no record", func(*world) {}},
		onNode("no record, Ready", conditioned(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady")),
		{"unreadable record", func(w *world) { w.node.Annotations[HoldAnnotation] = `{"state":"hel`; w.unreadable = true }},
	}
	for _, r := range []Record{
		{State: Held, Reason: NewNode},
		{State: Held, Reason: NewNode, Marks: []string{karpenterAnnotation}},
		{State: Held, Reason: Rebooted},
		{State: Held, Reason: NewNode, Taint: holdTaint},
		{State: Released, Reason: NetworkReady},
		{State: Released, Reason: GatesDoNotFit},
		{State: Overridden, Reason: EndedByHand},
		{State: Overridden, Reason: EndedByLabel},
	} {
		for _, boot := range []string{thisBoot, otherBoot, ""} {
			if boot == "" && (r.State == Overridden || r.Reason == Rebooted || r.Reason == GatesDoNotFit) {
				continue // only the agent enters these states, and never without a boot ID
			}
			r.BootID = boot
			options = append(options, option{r.Format(), func(w *world) {
				record := r
				w.node.Annotations[HoldAnnotation], w.record = r.Format(), &record
				for _, key := range r.Marks {
					w.node.Annotations[key] = scaleDownMarks()[key]
				}
			}})
		}
	}
	return options
}

func dimensions() [][]option {
	none := option{"", func(*world) {}}
	unavailable := corev1.NodeNetworkUnavailable
	return [][]option{
		records(),
		{none, {"host's boot unknown", func(w *world) { w.facts.BootID = "" }}},
		{none, onNode("cordoned", cordoned)},
		{none, onNode("hold taint", tainted(holdTaint))},
		{
			none, onNode("unavailable by us", conditioned(unavailable, corev1.ConditionTrue, HeldByHoldfast)),
			onNode("unavailable by another", conditioned(unavailable, corev1.ConditionTrue, "CalicoIsDown")),
			onNode("FlannelIsUp", conditioned(unavailable, corev1.ConditionFalse, "FlannelIsUp")),
			onNode("CiliumIsUp", conditioned(unavailable, corev1.ConditionFalse, CiliumIsUp)),
		},
		{
			{"gates open", func(w *world) { w.open = true }},
			{"gate closed", func(w *world) { w.facts.Subnet.Presence = Absent }},
			{"gate unknown", func(w *world) { w.facts.Conflist.Plugins[0].Executable, w.unknown = Unknown, true }},
		},
		{
			none,
			{"deleting", func(w *world) { deleting(w.node); w.marked = true }},
			{"drained", func(w *world) { tainted("medik8s.io/drain")(w.node); w.marked = true }},
		},
		{none, {"exempt", func(w *world) { exempt(w.node); w.exempt = true }}},
		{none, {"keep-cordoned", func(w *world) { w.node.Annotations[KeepCordonedAnnotation] = "yes"; w.keep = true }}},
		{
			none,
			{"by taint", func(w *world) { w.policy.TaintKey = holdTaint }},
			{"hold unrecorded", func(w *world) { w.policy.HoldUnrecorded = true }},
			{"by taint, hold unrecorded", func(w *world) { w.policy = Policy{TaintKey: holdTaint, HoldUnrecorded: true} }},
		},
	}
}

// repeats says that a combination decides nothing that another does not: an agent that does not know its boot decides
// nothing that a wish or a mark could change, and of nodes with a record none is a matter of HoldUnrecorded.
func repeats(options []string) bool {
	bootless, wished := options[1] != "", options[6]+options[7]+options[8] != ""
	unrecorded := strings.Contains(options[9], "hold unrecorded")
	return bootless && wished || unrecorded && strings.HasPrefix(options[0], "{")
}

// worlds yields every combination of the dimensions. The Nodes have the taints that their bit and conditions call for.
func worlds() iter.Seq[*world] {
	return func(yield func(*world) bool) {
		all := dimensions()
		choice, names := make([]int, len(all)), make([]string, len(all))
		for {
			for i, options := range all {
				names[i] = options[choice[i]].name
			}
			if !repeats(names) {
				w := &world{node: node(tainted("dedicated"), annotated(clusterAutoscalerAnnotation, "true")), facts: ready(), name: strings.Join(names, "|")}
				for i, options := range all {
					options[choice[i]].set(w)
				}
				lifecycle(w.node)
				if !yield(w) {
					return
				}
			}
			i := 0
			for ; i < len(all); i++ {
				if choice[i]++; choice[i] < len(all[i]) {
					break
				}
				choice[i] = 0
			}
			if i == len(all) {
				return
			}
		}
	}
}

// registered says whether the Node came with the policy's taint: a hold that has no record yet.
func (w *world) registered() bool {
	return w.record == nil && !w.unreadable && w.policy.TaintKey != "" && hasTaint(w.node, holdTaint)
}

// byTaint says whether a hold of this world is by taint: the record says so, or there is none yet.
func (w *world) byTaint() bool {
	return w.registered() || w.record != nil && w.record.Taint != ""
}

// held says whether the world begins with a hold of ours that nobody has ended.
func (w *world) held() bool {
	return w.registered() || w.record != nil && w.record.State == Held && w.shut(w.node)
}

// misfit says whether the Node works without what its closed gates wait for: it is recorded, or is seen now.
func (w *world) misfit() bool {
	if w.record != nil {
		return w.record.Reason == GatesDoNotFit
	}
	return condition(w.node, corev1.NodeReady) != nil
}

// unheld says whether the world begins after a hold of ours, or without one that ever was.
func (w *world) unheld() bool {
	return w.record != nil && (w.record.State == Released || w.record.State == Overridden)
}

// opened says whether somebody has ended a hold of ours by hand.
func (w *world) opened() bool {
	return w.record != nil && w.record.State == Held && !w.shut(w.node) && w.facts.BootID != ""
}

// shut says whether a Node of this world is closed by that which its hold is by.
func (w *world) shut(n *corev1.Node) bool {
	if w.byTaint() {
		return hasTaint(n, holdTaint)
	}
	return n.Spec.Unschedulable
}

// mayOpen says whether a hold of ours may end in this world by opening the node.
func (w *world) mayOpen() bool {
	return w.held() && w.facts.BootID != "" && (w.open || w.exempt) && !w.marked && !w.keep
}

// lifecycle does what the node lifecycle controller does: it makes the taints follow the bit and the condition.
func lifecycle(n *corev1.Node) {
	c := condition(n, corev1.NodeNetworkUnavailable)
	for key, wanted := range map[string]bool{
		corev1.TaintNodeUnschedulable:      n.Spec.Unschedulable,
		corev1.TaintNodeNetworkUnavailable: c != nil && c.Status == corev1.ConditionTrue,
	} {
		own := func(t corev1.Taint) bool { return t.Key == key }
		switch {
		case !wanted:
			n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, own)
		case !slices.ContainsFunc(n.Spec.Taints, own):
			tainted(key)(n)
		}
	}
}

// write applies a decision as two writes and returns the Node after each.
func write(n *corev1.Node, d Decision, between func(*corev1.Node)) (half, whole *corev1.Node) {
	main := func(n *corev1.Node) {
		if d.Record != nil {
			n.Annotations[HoldAnnotation] = d.Record.Format()
		}
		for key, value := range d.Annotations {
			if value == nil {
				delete(n.Annotations, key)
			} else {
				n.Annotations[key] = *value
			}
		}
		if d.Unschedulable != nil {
			n.Spec.Unschedulable = *d.Unschedulable
		}
		for _, gone := range d.RemoveTaints {
			n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&gone) })
		}
		for _, added := range d.AddTaints {
			if !hasTaint(n, added.Key) {
				n.Spec.Taints = append(n.Spec.Taints, added)
			}
		}
	}
	status := func(n *corev1.Node) {
		for _, c := range d.Conditions {
			if before := condition(n, c.Type); before != nil {
				*before = c
			} else {
				n.Status.Conditions = append(n.Status.Conditions, c)
			}
		}
	}
	first, second := main, status
	if d.StatusFirst {
		first, second = status, main
	}
	half = clone(n)
	first(half)
	between(half)
	whole = clone(half)
	second(whole)
	return half, whole
}

// clone copies what write and lifecycle change. A deep copy would take most of the time of the enumeration.
func clone(n *corev1.Node) *corev1.Node {
	c := *n
	c.Annotations = maps.Clone(n.Annotations)
	c.Spec.Taints = slices.Clone(n.Spec.Taints)
	c.Status.Conditions = slices.Clone(n.Status.Conditions)
	return &c
}

// settle applies decisions until nothing changes any more.
func settle(w *world, n *corev1.Node, between func(*corev1.Node)) (*corev1.Node, error) {
	var d Decision
	for range 4 {
		d = Decide(n, w.facts, w.policy, noon())
		_, next := write(n, d, between)
		if d.Record == nil && d.Event == nil && same(n, next) {
			return n, nil
		}
		n = next
	}
	return n, fmt.Errorf("no rest after three decisions; the last was %+v", d)
}

func same(a, b *corev1.Node) bool {
	return maps.Equal(a.Annotations, b.Annotations) && a.Spec.Unschedulable == b.Spec.Unschedulable &&
		slices.Equal(a.Spec.Taints, b.Spec.Taints) && slices.Equal(a.Status.Conditions, b.Status.Conditions)
}
