package readiness

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func noon() time.Time { return time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC) }

// node builds a Node out of what matters to a test.
func node(changes ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{}, Annotations: map[string]string{}}}
	for _, change := range changes {
		change(n)
	}
	return n
}

func recorded(state State, boot, reason string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Annotations[HoldAnnotation] = Record{State: state, BootID: boot, Reason: reason}.Format()
	}
}

func cordoned(n *corev1.Node) { n.Spec.Unschedulable = true }

func tainted(key string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
	}
}

func annotated(key, value string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Annotations[key] = value }
}

func exempt(n *corev1.Node) { n.Labels[HoldLabel] = HoldNever }

func conditioned(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: kind, Status: status, Reason: reason})
	}
}

func deleting(n *corev1.Node) { n.DeletionTimestamp = &metav1.Time{Time: noon()} }

func closed() Facts { return with(func(f *Facts) { f.Subnet.Presence = Absent }) }

// outcome is the part of a decision that the table compares.
type outcome struct {
	record      string // state and reason; empty if the record is left
	cordon      string // "on", "off"; empty if it is left
	unavailable corev1.ConditionStatus
	held        bool
	reason      string
	event       string
}

func outcomeOf(t *testing.T, d Decision) outcome {
	t.Helper()
	o := outcome{held: d.Held, reason: d.Reason}
	if d.Record != nil {
		o.record = string(d.Record.State) + " " + d.Record.Reason
		if d.Record.NetworkUp == "" { // Otherwise it is the record as it was, and a note.
			require.Equal(t, noon(), d.Record.Since)
		}
	}
	if d.Unschedulable != nil {
		o.cordon = map[bool]string{true: "on", false: "off"}[*d.Unschedulable]
	}
	if d.Event != nil {
		o.event = d.Event.Reason
	}
	require.EqualValues(t, NetworkHeld, d.Conditions[0].Type)
	require.Equal(t, d.Reason, d.Conditions[0].Reason)
	require.Equal(t, d.Message, d.Conditions[0].Message)
	require.NotEmpty(t, d.Message)
	for _, c := range d.Conditions[1:] {
		require.Equal(t, corev1.NodeNetworkUnavailable, c.Type)
		o.unavailable = c.Status
	}
	return o
}

func TestDecide(t *testing.T) {
	const yes, no = corev1.ConditionTrue, corev1.ConditionFalse
	unavailable := corev1.NodeNetworkUnavailable
	ours := conditioned(unavailable, yes, HeldByHoldfast)
	bornHeld := recorded(Held, thisBoot, NewNode)
	released := recorded(Released, thisBoot, NetworkReady)
	before := recorded(Released, otherBoot, NetworkReady)
	isReady := conditioned(corev1.NodeReady, yes, "KubeletReady")
	misfit, misfitBefore := recorded(Released, thisBoot, GatesDoNotFit), recorded(Released, otherBoot, GatesDoNotFit)
	for name, c := range map[string]struct {
		node   *corev1.Node
		facts  Facts
		policy Policy
		want   outcome
	}{
		// A node there before Holdfast.
		"old node, serving":                      {node(), ready(), Policy{}, outcome{record: "released FirstSeen", reason: NotHeld}},
		"old node, gates closed":                 {node(), closed(), Policy{}, outcome{record: "released FirstSeen", reason: NotHeld}},
		"old node, cordoned by somebody":         {node(cordoned), ready(), Policy{}, outcome{record: "released FirstSeen", reason: NotHeld}},
		"old node, exempt":                       {node(exempt), closed(), Policy{HoldUnrecorded: true}, outcome{record: "released Exempt", reason: NotHeld}},
		"record taken away, our condition stays": {node(cordoned, ours), closed(), Policy{}, outcome{record: "released FirstSeen", unavailable: no, reason: NotHeld}},
		"unrecorded, not Ready, policy holds": {
			node(conditioned(corev1.NodeReady, no, "KubeletNotReady")), closed(),
			Policy{HoldUnrecorded: true},
			outcome{"held NotReadyYet", "on", yes, true, WaitingForFlannel, EventHeld},
		},
		"unrecorded, Ready, policy holds":      {node(isReady), closed(), Policy{HoldUnrecorded: true}, outcome{record: "released GatesDoNotFit", reason: GatesDoNotFit, event: EventGatesDoNotFit}},
		"unrecorded, gates open, policy holds": {node(), ready(), Policy{HoldUnrecorded: true}, outcome{record: "released FirstSeen", reason: NotHeld}},
		"unrecorded, cordoned, policy holds":   {node(cordoned), closed(), Policy{HoldUnrecorded: true}, outcome{record: "released FirstSeen", reason: NotHeld}},

		// A node that works without what the gates wait for.
		"Ready with closed gates":          {node(isReady), closed(), Policy{}, outcome{record: "released GatesDoNotFit", reason: GatesDoNotFit, event: EventGatesDoNotFit}},
		"Ready with unknown gates":         {node(isReady), Facts{BootID: thisBoot}, Policy{}, outcome{record: "released GatesDoNotFit", reason: GatesDoNotFit, event: EventGatesDoNotFit}},
		"Ready with open gates":            {node(isReady), ready(), Policy{}, outcome{record: "released FirstSeen", reason: NotHeld}},
		"Ready with closed gates, exempt":  {node(isReady, exempt), closed(), Policy{}, outcome{record: "released Exempt", reason: NotHeld}},
		"gates do not fit, next look":      {node(isReady, misfit), closed(), Policy{}, outcome{reason: GatesDoNotFit}},
		"gates do not fit, rebooted":       {node(misfitBefore), closed(), Policy{}, outcome{reason: GatesDoNotFit}},
		"gates did not fit, and fit now":   {node(isReady, misfit), ready(), Policy{}, outcome{record: "released NetworkReady", reason: NotHeld}},
		"gates fit since they were opened": {node(misfitBefore), ready(), Policy{}, outcome{record: "released NetworkReady", reason: NotHeld}},
		"our condition on a misfit":        {node(isReady, ours), closed(), Policy{}, outcome{record: "released GatesDoNotFit", unavailable: no, reason: GatesDoNotFit, event: EventGatesDoNotFit}},

		// Held.
		"born held, first look":                    {node(bornHeld, cordoned, ours), closed(), Policy{}, outcome{held: true, reason: WaitingForFlannel}},
		"held, next look":                          {node(bornHeld, cordoned, ours, conditioned(NetworkHeld, yes, WaitingForFlannel)), closed(), Policy{}, outcome{held: true, reason: WaitingForFlannel}},
		"held, nothing could be looked at":         {node(bornHeld, cordoned, ours), Facts{BootID: thisBoot}, Policy{}, outcome{held: true, reason: WaitingForCNI}},
		"H4: flannel clears the condition early":   {node(bornHeld, cordoned, conditioned(unavailable, no, "FlannelIsUp")), closed(), Policy{}, outcome{record: "held NewNode", unavailable: yes, held: true, reason: WaitingForFlannel}},
		"born held without the condition":          {node(bornHeld, cordoned), closed(), Policy{}, outcome{unavailable: yes, held: true, reason: WaitingForFlannel}},
		"H5: Cilium is not fought":                 {node(bornHeld, cordoned, conditioned(unavailable, no, CiliumIsUp)), closed(), Policy{}, outcome{held: true, reason: WaitingForFlannel}},
		"the condition is true by another":         {node(bornHeld, cordoned, conditioned(unavailable, yes, "NoRouteCreated")), closed(), Policy{}, outcome{held: true, reason: WaitingForFlannel}},
		"held after a reboot leaves the condition": {node(recorded(Held, thisBoot, Rebooted), cordoned), closed(), Policy{}, outcome{held: true, reason: WaitingForFlannel, event: EventHeld}},
		"born held in a boot that is over":         {node(recorded(Held, otherBoot, NewNode), cordoned, ours), closed(), Policy{}, outcome{held: true, reason: WaitingForFlannel}},

		// Released.
		"all open":                            {node(bornHeld, cordoned, ours), ready(), Policy{}, outcome{"released NetworkReady", "off", no, false, NotHeld, EventReleased}},
		"all open, condition never ours":      {node(bornHeld, cordoned), ready(), Policy{}, outcome{"released NetworkReady", "off", "", false, NotHeld, EventReleased}},
		"all open, condition true by another": {node(bornHeld, cordoned, conditioned(unavailable, yes, "CalicoIsDown")), ready(), Policy{}, outcome{"released NetworkReady", "off", "", false, NotHeld, EventReleased}},
		"born held without a boot ID":         {node(recorded(Held, "", NewNode), cordoned), ready(), Policy{}, outcome{"released NetworkReady", "off", "", false, NotHeld, EventReleased}},
		"held before a reboot, open after it": {node(recorded(Held, otherBoot, Rebooted), cordoned), ready(), Policy{}, outcome{"released NetworkReady", "off", "", false, NotHeld, EventReleased}},
		"kubelet is late with the boot ID": {
			node(bornHeld, cordoned, func(n *corev1.Node) { n.Status.NodeInfo.BootID = otherBoot }), ready(),
			Policy{},
			outcome{"released NetworkReady", "off", "", false, NotHeld, EventReleased},
		},
		"exempted while held":                    {node(bornHeld, cordoned, ours, exempt), closed(), Policy{}, outcome{"overridden EndedByLabel", "off", no, false, NotHeld, EventOverridden}},
		"keep-cordoned":                          {node(bornHeld, cordoned, ours, annotated(KeepCordonedAnnotation, "")), ready(), Policy{}, outcome{"released KeptCordoned", "", no, false, NotHeld, EventReleased}},
		"keep-cordoned while closed":             {node(bornHeld, cordoned, ours, annotated(KeepCordonedAnnotation, "")), closed(), Policy{}, outcome{held: true, reason: WaitingForFlannel}},
		"crash between the two writes":           {node(released, ours), ready(), Policy{}, outcome{unavailable: no, reason: NotHeld}},
		"crash, then gates closed":               {node(released, ours), closed(), Policy{}, outcome{unavailable: no, reason: NotHeld}},
		"crash, then somebody cordons":           {node(released, cordoned, ours), ready(), Policy{}, outcome{unavailable: no, reason: NotHeld}},
		"crash, then no boot ID":                 {node(released, ours), Facts{}, Policy{}, outcome{unavailable: no, reason: BootUnknown}},
		"crash of an override, then no boot ID":  {node(recorded(Overridden, thisBoot, EndedByLabel), ours), Facts{}, Policy{}, outcome{unavailable: no, reason: BootUnknown}},
		"crash of an override by label":          {node(recorded(Overridden, thisBoot, EndedByLabel), exempt, ours), closed(), Policy{}, outcome{unavailable: no, reason: NotHeld}},
		"crash, then the host goes down":         {node(released, ours), with(func(f *Facts) { f.GoingDown = true }), Policy{}, outcome{"held GoingDown", "on", no, true, GoingDown, EventHeld}},
		"crash, cordoned, then it goes down":     {node(released, cordoned, ours), with(func(f *Facts) { f.GoingDown = true }), Policy{}, outcome{unavailable: no, reason: NotHeld}},
		"crash, rebooted, gates open":            {node(before, ours), ready(), Policy{}, outcome{record: "released NetworkReady", unavailable: no, reason: NotHeld}},
		"crash, rebooted, gates closed":          {node(before, ours), closed(), Policy{}, outcome{"held Rebooted", "on", no, true, WaitingForFlannel, EventHeld}},
		"crash, rebooted, exempt":                {node(before, ours, exempt), closed(), Policy{}, outcome{record: "released Exempt", unavailable: no, reason: NotHeld}},
		"crash, rebooted under another's cordon": {node(before, ours, cordoned), closed(), Policy{}, outcome{unavailable: no, reason: CordonedByOthers}},
		"crash, rebooted, being deleted":         {node(before, ours, deleting), closed(), Policy{}, outcome{unavailable: no, reason: NotHeld}},
		"crash without a boot in the record":     {node(recorded(Released, "", NetworkReady), ours), closed(), Policy{}, outcome{record: "released FirstSeen", unavailable: no, reason: NotHeld}},
		"crash, and the record is taken away":    {node(ours), closed(), Policy{}, outcome{record: "released FirstSeen", unavailable: no, reason: NotHeld}},
		"crash, and another's word stands":       {node(released, conditioned(unavailable, yes, "CalicoIsDown")), ready(), Policy{}, outcome{reason: NotHeld}},

		// Somebody else's decision.
		"H2: uncordoned while held":              {node(bornHeld, ours), closed(), Policy{}, outcome{record: "overridden EndedByHand", unavailable: no, reason: NotHeld, event: EventOverridden}},
		"uncordoned just before release":         {node(bornHeld, ours), ready(), Policy{}, outcome{record: "overridden EndedByHand", unavailable: no, reason: NotHeld, event: EventOverridden}},
		"overridden, crash before the condition": {node(recorded(Overridden, thisBoot, EndedByHand), ours), closed(), Policy{}, outcome{unavailable: no, reason: NotHeld}},
		"the Node is being deleted":              {node(bornHeld, cordoned, ours, deleting), ready(), Policy{}, outcome{unavailable: no, held: true, reason: WaitingForOthers}},
		"cluster-autoscaler deletes it":          {node(bornHeld, cordoned, tainted("ToBeDeletedByClusterAutoscaler")), ready(), Policy{}, outcome{held: true, reason: WaitingForOthers}},
		"Karpenter deletes it":                   {node(bornHeld, cordoned, tainted("karpenter.sh/disrupted")), ready(), Policy{}, outcome{held: true, reason: WaitingForOthers}},
		"an older Karpenter deletes it":          {node(bornHeld, cordoned, tainted("karpenter.sh/disruption")), ready(), Policy{}, outcome{held: true, reason: WaitingForOthers}},
		"medik8s drains it":                      {node(bornHeld, cordoned, tainted("medik8s.io/drain")), ready(), Policy{}, outcome{held: true, reason: WaitingForOthers}},
		"a cloud pool proxy drains it":           {node(bornHeld, cordoned, tainted("node-about-to-be-drained")), ready(), Policy{}, outcome{held: true, reason: WaitingForOthers}},
		"kured reboots it":                       {node(bornHeld, cordoned, annotated("weave.works/kured-reboot-in-progress", "2026-08-01")), ready(), Policy{}, outcome{held: true, reason: WaitingForOthers}},
		"a mark, and exempted":                   {node(bornHeld, cordoned, exempt, tainted("medik8s.io/drain")), closed(), Policy{}, outcome{held: true, reason: WaitingForOthers}},
		"a mere candidate for deletion":          {node(bornHeld, cordoned, tainted("DeletionCandidateOfClusterAutoscaler")), ready(), Policy{}, outcome{"released NetworkReady", "off", "", false, NotHeld, EventReleased}},

		// Once per boot.
		"agent restarts":                          {node(released), closed(), Policy{}, outcome{reason: NotHeld}},
		"agent restarts on a cordoned node":       {node(released, cordoned), ready(), Policy{}, outcome{reason: NotHeld}},
		"override lasts for the boot":             {node(recorded(Overridden, thisBoot, EndedByHand)), closed(), Policy{}, outcome{reason: NotHeld}},
		"H7: rebooted, gates closed":              {node(before), closed(), Policy{}, outcome{"held Rebooted", "on", "", true, WaitingForFlannel, EventHeld}},
		"rebooted after an override":              {node(recorded(Overridden, otherBoot, EndedByHand)), closed(), Policy{}, outcome{"held Rebooted", "on", "", true, WaitingForFlannel, EventHeld}},
		"rebooted, gates open":                    {node(before), ready(), Policy{}, outcome{record: "released NetworkReady", reason: NotHeld}},
		"rebooted, gates open, cordoned":          {node(before, cordoned), ready(), Policy{}, outcome{record: "released NetworkReady", reason: NotHeld}},
		"H7: rebooted under somebody's cordon":    {node(before, cordoned), closed(), Policy{}, outcome{reason: CordonedByOthers}},
		"rebooted, exempt":                        {node(before, exempt), closed(), Policy{}, outcome{record: "released Exempt", reason: NotHeld}},
		"rebooted, being deleted":                 {node(before, deleting), closed(), Policy{}, outcome{reason: NotHeld}},
		"a record without a boot ID is no reboot": {node(recorded(Released, "", NetworkReady)), closed(), Policy{}, outcome{record: "released FirstSeen", reason: NotHeld}},

		// What could not be read.
		"no boot ID, held":      {node(bornHeld, cordoned, ours), with(func(f *Facts) { f.BootID = "" }), Policy{}, outcome{held: true, reason: BootUnknown}},
		"no boot ID, released":  {node(before), with(func(f *Facts) { f.BootID = "" }), Policy{}, outcome{reason: BootUnknown}},
		"no boot ID, no record": {node(), Facts{}, Policy{HoldUnrecorded: true}, outcome{reason: BootUnknown}},
		"unreadable record":     {node(cordoned, ours, annotated(HoldAnnotation, "held")), ready(), Policy{}, outcome{reason: RecordUnreadable}},
	} {
		t.Run(name, func(t *testing.T) {
			before := c.node.DeepCopy()
			d := Decide(c.node, c.facts, c.policy, noon())
			require.Equal(t, c.want, outcomeOf(t, d), d.Message)
			require.Empty(t, d.AddTaints)
			require.Equal(t, before, c.node, "the Node is only read")
			if d.Record != nil && c.facts.BootID != "" {
				require.Equal(t, c.facts.BootID, d.Record.BootID)
			}
		})
	}
}

func TestMisfitSaysWhatToDo(t *testing.T) {
	d := Decide(node(conditioned(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady")), closed(), Policy{}, noon())
	require.Contains(t, d.Message, "/run/flannel/subnet.env")
	require.Contains(t, d.Message, "--cni-conf-dir")
	require.Equal(t, d.Message, d.Event.Message)
	require.Equal(t, corev1.EventTypeWarning, d.Event.Type)
}

func TestMessagesSayWhatToDo(t *testing.T) {
	both := with(func(f *Facts) { f.Conflist.Plugins[2].Executable = Absent; f.Subnet.Presence = Absent })
	d := Decide(node(recorded(Held, thisBoot, NewNode), cordoned), both, Policy{}, noon())
	require.Contains(t, d.Message, "portmap is not there")
	require.Contains(t, d.Message, "/run/flannel/subnet.env")
	require.Equal(t, WaitingForCNI, d.Reason, "the first closed gate")
	require.Len(t, d.Gates, 2)

	d = Decide(node(annotated(HoldAnnotation, "{")), ready(), Policy{}, noon())
	require.Contains(t, d.Message, "kubectl annotate node n1 holdfast.dev/hold-")
	require.Contains(t, d.Message, "kubectl uncordon n1")

	d = Decide(node(recorded(Held, thisBoot, NewNode)), closed(), Policy{}, noon())
	require.Contains(t, d.Event.Message, "/run/flannel/subnet.env")
	require.Equal(t, corev1.EventTypeWarning, d.Event.Type)
}
