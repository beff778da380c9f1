package docs

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

const boot, earlierBoot = "4a7d0c1e-boot", "9f01b3c2-boot"

// holdConditions returns the messages of the conditions that the pages in docs/holds show, by
// reason. Each page has the reason as its title.
func holdConditions() map[string]string {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	found := map[string]string{}
	for name, c := range holdCases() {
		found[name] = messageOf(readiness.Decide(c.node, c.facts, c.policy, now))
	}
	limits := readiness.HoldLimits{Agent: 2 * time.Minute, Hold: 10 * time.Minute, Namespace: "holdfast-system"}
	for name, age := range map[string]time.Duration{"AgentMissing": limits.Agent, "Overdue": limits.Hold} {
		check := readiness.CheckHold(heldNode(), readiness.HoldHistory{Age: age}, limits, now)
		found[name] = messageOf(check.Decision)
	}
	return found
}

type holdCase struct {
	node   *corev1.Node
	facts  readiness.Facts
	policy readiness.Policy
}

func holdCases() map[string]holdCase {
	force := func(gate string) readiness.Policy { return readiness.Policy{Force: []string{gate}} }
	noPlugins, noSubnet, failedUnit, down, noBoot := openFacts(), openFacts(), openFacts(), openFacts(), openFacts()
	noPlugins.Conflist.Plugins = []readiness.Plugin{
		{Type: "flannel", Executable: readiness.Present}, {Type: "bridge", NeededBy: "flannel", Executable: readiness.Absent},
	}
	noSubnet.Subnet = readiness.SubnetFile{Path: "/run/flannel/subnet.env", Presence: readiness.Absent}
	failedUnit.Units = []readiness.Unit{
		{Name: "nftables.service", Presence: readiness.Present, ActiveState: "failed", Result: "exit-code"},
	}
	down.GoingDown = true
	unready := openFacts()
	unready.Probes = []readiness.Probe{{
		Gate: "http:127.0.0.1:9879/healthz", Answer: readiness.Absent, Problem: "it answers 503 Service Unavailable",
		Since: time.Date(2026, 5, 1, 11, 58, 20, 0, time.UTC),
	}}
	noBoot.BootID = ""
	marked, rebooted, unrecorded, unreadable := heldNode(), heldNode(), heldNode(), heldNode()
	marked.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}}
	released := readiness.Record{State: readiness.Released, BootID: earlierBoot, Reason: readiness.NetworkReady}
	rebooted.Annotations[readiness.HoldAnnotation] = released.Format()
	unrecorded.Annotations, unrecorded.Spec.Unschedulable = nil, false
	unrecorded.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	unreadable.Annotations[readiness.HoldAnnotation] = `{"state":`
	return map[string]holdCase{
		"WaitingForCNI":           {heldNode(), noPlugins, readiness.Policy{}},
		"WaitingForFlannel":       {heldNode(), noSubnet, readiness.Policy{}},
		"WaitingForNetworkPlugin": {heldNode(), openFacts(), force("network-plugin")},
		"WaitingForUnit":          {heldNode(), failedUnit, force("unit:nftables.service")},
		"WaitingForCondition":     {heldNode(), openFacts(), force("condition:NetworkUnavailable")},
		"WaitingForLabel":         {heldNode(), openFacts(), force("label:example.org/built-by=kubespray")},
		"WaitingForProbe":         {heldNode(), unready, force("http:127.0.0.1:9879/healthz")},
		"WaitingForOthers":        {marked, openFacts(), readiness.Policy{}},
		"GoingDown":               {heldNode(), down, readiness.Policy{}},
		"NotHeld":                 {heldNode(), openFacts(), readiness.Policy{}},
		"CordonedByOthers":        {rebooted, noSubnet, readiness.Policy{}},
		"GatesDoNotFit":           {unrecorded, noSubnet, readiness.Policy{}},
		"RecordUnreadable":        {unreadable, openFacts(), readiness.Policy{}},
		"BootUnknown":             {heldNode(), noBoot, readiness.Policy{}},
	}
}

// heldNode returns a Node that was born held by cordon in this boot.
func heldNode() *corev1.Node {
	record := readiness.Record{State: readiness.Held, BootID: boot, Reason: readiness.NewNode}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "worker-2", Annotations: map[string]string{readiness.HoldAnnotation: record.Format()},
		},
		Spec: corev1.NodeSpec{Unschedulable: true, PodCIDRs: []string{"10.244.1.0/24"}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue, Reason: readiness.HeldByHoldfast},
		}},
	}
}

// openFacts returns the facts of a host with flannel on which everything is there but the
// marker.
func openFacts() readiness.Facts {
	return readiness.Facts{
		BootID: boot,
		Conflist: readiness.Conflist{
			Directory: "/etc/cni/net.d", Path: "/etc/cni/net.d/10-flannel.conflist", Presence: readiness.Present, Name: "cbr0",
			Plugins: []readiness.Plugin{{Type: "flannel", Executable: readiness.Present}},
		},
		Subnet: readiness.SubnetFile{
			Path: "/run/flannel/subnet.env", Presence: readiness.Present, Volatile: readiness.Present,
			Network: "10.244.0.0/16", Subnet: "10.244.1.1/24", MTU: "1450",
		},
		Marker: readiness.Marker{Path: "/run/holdfast/network_plugin.done", Presence: readiness.Absent},
	}
}

// messageOf returns the message of the first condition of a decision, without the commands at its
// end, and with long lines folded.
func messageOf(d readiness.Decision) string {
	message, _, _ := strings.Cut(d.Conditions[0].Message, ". To ")
	return strings.ReplaceAll(wrapped(message+"\n"), "\n    ", "\n")
}
