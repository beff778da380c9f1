package readiness

import (
	"iter"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/autoscaler"
)

// decisionCase is one case of the enumeration: a Node and the other arguments of Decide. What
// the test has to know about the case is stored here, and not derived by the code under test.
type decisionCase struct {
	name       string
	node       *corev1.Node
	facts      Facts
	policy     Policy
	record     *Record // nil if there is none or it cannot be read
	unreadable bool
	open       bool // every gate is open
	unknown    bool // a gate could not be checked
	marked     bool // another component is deleting or draining the node
	exempt     bool
	keep       bool
}

// dimensionValue is one value of one dimension of the enumeration.
type dimensionValue struct {
	name string
	set  func(*decisionCase)
}

func nodeValue(name string, change nodeOption) dimensionValue {
	return dimensionValue{name, func(c *decisionCase) { change(c.node) }}
}

func recordValues() []dimensionValue {
	values := []dimensionValue{
		{"no record", func(*decisionCase) {}},
		nodeValue("no record, Ready", conditioned(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady")),
		{"unreadable record", func(c *decisionCase) {
			c.node.Annotations[HoldAnnotation], c.unreadable = `{"state":"hel`, true
		}},
	}
	for _, r := range []Record{
		{State: Held, Reason: NewNode},
		{State: Held, Reason: NewNode, Marks: []string{autoscaler.Karpenter}},
		{State: Held, Reason: Rebooted},
		{State: Held, Reason: NewNode, Taint: holdTaint},
		{State: Released, Reason: NetworkReady},
		{State: Released, Reason: GatesMismatch},
		{State: Overridden, Reason: EndedByHand},
		{State: Overridden, Reason: EndedByLabel},
	} {
		for _, boot := range []string{thisBoot, otherBoot, ""} {
			if boot == "" && (r.State == Overridden || r.Reason == Rebooted || r.Reason == GatesMismatch) {
				continue // only the agent enters these states, and never without a boot ID
			}
			r.BootID = boot
			values = append(values, dimensionValue{r.Format(), func(c *decisionCase) {
				record := r
				c.node.Annotations[HoldAnnotation], c.record = r.Format(), &record
				for _, key := range r.Marks {
					c.node.Annotations[key] = autoscalerAnnotations()[key]
				}
			}})
		}
	}
	return values
}

func dimensions() [][]dimensionValue {
	none := dimensionValue{"", func(*decisionCase) {}}
	return [][]dimensionValue{
		recordValues(),
		{none, {"host's boot unknown", func(c *decisionCase) { c.facts.BootID = "" }}},
		{none, nodeValue("cordoned", cordoned)},
		{none, nodeValue("hold taint", tainted(holdTaint))},
		{
			none, nodeValue("unavailable by Holdfast", unavailable(HeldByHoldfast)),
			nodeValue("unavailable by another", unavailable("CalicoIsDown")),
			nodeValue("FlannelIsUp", available("FlannelIsUp")), nodeValue("CiliumIsUp", available(CiliumIsUp)),
		},
		{
			{"gates open", func(c *decisionCase) { c.open = true }},
			{"gate closed", func(c *decisionCase) { c.facts.Subnet.Presence = Absent }},
			{"gate unknown", func(c *decisionCase) { c.facts.Conflist.Plugins[0].Executable, c.unknown = Unknown, true }},
		},
		{
			none,
			{"deleting", func(c *decisionCase) { deleting(c.node); c.marked = true }},
			{"drained", func(c *decisionCase) { tainted("medik8s.io/drain")(c.node); c.marked = true }},
		},
		{none, {"exempt", func(c *decisionCase) { exempt(c.node); c.exempt = true }}},
		{none, {"keep-cordoned", func(c *decisionCase) {
			c.node.Annotations[KeepCordonedAnnotation], c.keep = "yes", true
		}}},
		{
			none,
			{"by taint", func(c *decisionCase) { c.policy.TaintKey = holdTaint }},
			{"hold unrecorded", func(c *decisionCase) { c.policy.HoldUnrecorded = true }},
			{"by taint, hold unrecorded", func(c *decisionCase) {
				c.policy = Policy{TaintKey: holdTaint, HoldUnrecorded: true}
			}},
		},
	}
}

// isRedundant reports whether a combination has the same result as another one: without a boot
// ID, labels and marks have no effect, and with a record, HoldUnrecorded has none.
func isRedundant(values []string) bool {
	bootless, labelled := values[1] != "", values[6]+values[7]+values[8] != ""
	unrecorded := strings.Contains(values[9], "hold unrecorded")
	return bootless && labelled || unrecorded && strings.HasPrefix(values[0], "{")
}

// decisionCases yields every combination of the dimensions. The Nodes have the taints that
// follow from their cordon and conditions.
func decisionCases() iter.Seq[*decisionCase] {
	return func(yield func(*decisionCase) bool) {
		all := dimensions()
		choice, names := make([]int, len(all)), make([]string, len(all))
		for {
			for i, values := range all {
				names[i] = values[choice[i]].name
			}
			if !isRedundant(names) {
				n := node(tainted("dedicated"), annotated(autoscaler.ClusterAutoscaler, "true"))
				c := &decisionCase{node: n, facts: readyFacts(), name: strings.Join(names, "|")}
				for i, values := range all {
					values[choice[i]].set(c)
				}
				updateTaints(c.node)
				if !yield(c) {
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

// isRegistered reports whether the Node registered with the policy's taint: a hold without a
// record.
func (c *decisionCase) isRegistered() bool {
	return c.record == nil && !c.unreadable && c.policy.TaintKey != "" && hasTaint(c.node, holdTaint)
}

// isByTaint reports whether a hold in this case is by taint.
func (c *decisionCase) isByTaint() bool {
	return c.isRegistered() || c.record != nil && c.record.Taint != ""
}

// isHeld reports whether the case begins with a hold by Holdfast that has not been ended.
func (c *decisionCase) isHeld() bool {
	return c.isRegistered() || c.record != nil && c.record.State == Held && c.isClosed(c.node)
}

// isMismatch reports whether the Node works without what its closed gates require: it has such
// a record, or is Ready without a record.
func (c *decisionCase) isMismatch() bool {
	if c.record != nil {
		return c.record.Reason == GatesMismatch
	}
	return FindCondition(c.node, corev1.NodeReady) != nil
}

// hasEnded reports whether the node is not held according to its record.
func (c *decisionCase) hasEnded() bool {
	return c.record != nil && (c.record.State == Released || c.record.State == Overridden)
}

// isOverridden reports whether another client has ended the hold.
func (c *decisionCase) isOverridden() bool {
	return c.record != nil && c.record.State == Held && !c.isClosed(c.node) && c.facts.BootID != ""
}

// isClosed reports whether a Node has the cordon or taint of a hold in this case.
func (c *decisionCase) isClosed(n *corev1.Node) bool {
	if c.isByTaint() {
		return hasTaint(n, holdTaint)
	}
	return n.Spec.Unschedulable
}

// canOpen reports whether a decision may end a hold in this case and open the node.
func (c *decisionCase) canOpen() bool {
	return c.isHeld() && c.facts.BootID != "" && (c.open || c.exempt) && !c.marked && !c.keep
}
