package agent

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/internal/shared/nodepatch"
	"github.com/holdfast-dev/holdfast/pkg/autoscaler"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/presence"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
	"github.com/holdfast-dev/holdfast/pkg/spc"
)

// TestDecide checks that all decisions go into one write.
func TestDecide(t *testing.T) {
	in := withMachine("running")
	in.evidence = &evidence.Scan{Found: []evidence.FoundServer{foundMember(812)}}
	d, _ := mustDecide(t, in)
	require.NotNil(t, d.all.Unschedulable)
	require.False(t, *d.all.Unschedulable)
	require.Contains(t, d.all.Annotations, readiness.HoldAnnotation)
	require.Contains(t, d.all.Labels, observation.EtcdMemberLabel)
	require.Equal(t, "born", *d.all.Labels[spc.InstanceIDLabel])
	require.Equal(t, corev1.ConditionTrue, decided(d, observation.EtcdMemberCondition).Status)
	require.Equal(t, corev1.ConditionFalse, decided(d, readiness.NetworkHeld).Status)

	require.Contains(t, d.urgent.Annotations, readiness.HoldAnnotation)
	require.Empty(t, d.urgent.Labels, "the urgent part is the hold only")
	require.NotContains(t, d.urgent.Annotations, presence.BecauseAnnotation)

	in.evidence, in.inventory = nil, nil
	d, _ = mustDecide(t, in)
	require.Empty(t, d.all.Labels, "without a scan and without an inventory, nothing follows about etcd and the machine")
	require.Empty(t, decided(d, observation.EtcdMemberCondition))
}

// decided returns a condition of the decision.
func decided(d nodeDecision, of corev1.NodeConditionType) corev1.NodeCondition {
	return condition(&corev1.Node{Status: corev1.NodeStatus{Conditions: d.all.Conditions}}, of)
}

func TestMemberEvents(t *testing.T) {
	const yes, no, unknown = corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown
	node := func(label string, status corev1.ConditionStatus) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{}}}
		if label != "" {
			n.Labels[observation.EtcdMemberLabel] = label
		}
		if status != "" {
			n.Status.Conditions = []corev1.NodeCondition{{Type: observation.EtcdMemberCondition, Status: status}}
		}
		return n
	}
	for name, c := range map[string]struct {
		before, after *corev1.Node
		want          string
	}{
		"found":                         {before: node("", ""), after: node("true", yes), want: "EtcdMemberFound"},
		"found, condition not written":  {before: node("", ""), after: node("true", ""), want: "EtcdMemberFound"},
		"found after proof of absence":  {before: node("", no), after: node("true", yes), want: "EtcdMemberFound"},
		"unchanged":                     {before: node("true", yes), after: node("true", yes)},
		"label restored":                {before: node("", yes), after: node("true", yes)},
		"now unknown":                   {before: node("true", yes), after: node("true", unknown)},
		"known again":                   {before: node("true", unknown), after: node("true", yes)},
		"gone":                          {before: node("true", yes), after: node("", no), want: "EtcdMemberGone"},
		"gone after it was unknown":     {before: node("true", unknown), after: node("", no), want: "EtcdMemberGone"},
		"absence proven for first time": {before: node("", ""), after: node("", no)},
	} {
		t.Run(name, func(t *testing.T) {
			d := nodeDecision{protection: &presence.Protection{
				Message:  "why", // with the problems of a server that has not been probed yet
				Announce: []evidence.MemberRef{{Cluster: "cd", Member: "3a"}},
			}}
			got := d.events(c.before, c.after)
			if c.want == "" {
				require.Empty(t, got)
				return
			}
			message := "why"
			if c.want == "EtcdMemberFound" {
				message = "this node is protected: it has etcd member 3a of cluster cd"
			}
			require.Equal(t, []readiness.Event{{Type: corev1.EventTypeNormal, Reason: c.want, Message: message}}, got)
		})
	}
}

// TestHoldEvent checks that a hold or release is reported only if it was written. A policy of the
// cluster may refuse it, and everything else is written alone.
func TestHoldEvent(t *testing.T) {
	for name, c := range map[string]struct {
		facts  readiness.Facts
		reason string
	}{
		"released": {openNetwork(), readiness.EventReleased},
		"held":     {readiness.Facts{BootID: openNetwork().BootID, GoingDown: true}, readiness.EventHeld},
	} {
		t.Run(name, func(t *testing.T) {
			in := withMachine("running")
			if c.reason == readiness.EventHeld {
				_, in.node = mustDecide(t, in)
			}
			in.facts = c.facts
			d, after := mustDecide(t, in)
			reasons := func(after *corev1.Node) (found []string) {
				for _, e := range d.events(in.node, after) {
					found = append(found, e.Reason)
				}
				return found
			}
			require.Contains(t, reasons(after), c.reason)
			require.NotContains(t, reasons(written(in.node, d.rest)), c.reason)
		})
	}
}

// TestBreakGlass checks that a valid break-glass override keeps the label off the Node.
func TestBreakGlass(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	const valid = `{"uid":"uid-1","until":"2026-11-20T12:30:00Z","reason":"the webhook is gone"}`
	for name, c := range map[string]struct {
		override string
		label    string
		want     bool // the label is set
		explains bool // the condition explains the override
	}{
		"none":           {want: true},
		"valid":          {override: valid, explains: true},
		"valid, labeled": {override: valid, label: "true"},
		"expired":        {override: `{"uid":"uid-1","until":"2026-11-20T11:59:59Z","reason":"x"}`, want: true},
		"other node":     {override: `{"uid":"uid-2","until":"2026-11-20T12:30:00Z","reason":"x"}`, want: true},
		"no reason":      {override: `{"uid":"uid-1","until":"2026-11-20T12:30:00Z"}`, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			n := bornHeld("n1")
			n.UID, n.Labels = "uid-1", map[string]string{}
			if c.override != "" {
				n.Annotations[quorum.BreakGlassAnnotation] = c.override
			}
			if c.label != "" {
				n.Labels[observation.EtcdMemberLabel] = c.label
			}
			d, _ := mustDecide(t, nodeInputs{
				node: n, facts: openNetwork(), evidence: &evidence.Scan{Found: []evidence.FoundServer{foundMember(812)}}, now: now,
			})
			_, labeled := d.all.Labels[observation.EtcdMemberLabel]
			require.Equal(t, c.want, labeled)
			require.Contains(t, d.all.Annotations, presence.BecauseAnnotation, "the other marks are set")
			message := decided(d, observation.EtcdMemberCondition).Message
			require.Equal(t, c.explains, strings.Contains(message,
				"break-glass override in effect until 2026-11-20T12:30:00Z: the Node has no label "+observation.EtcdMemberLabel+
					" (annotation holdfast.dev/break-glass: the webhook is gone)"), message)
		})
	}
}

// TestHangingHost checks that a scan that hangs changes no mark.
func TestHangingHost(t *testing.T) {
	n := bornMarked()
	n.Labels = map[string]string{observation.EtcdMemberLabel: "true"}
	d, _ := mustDecide(t, nodeInputs{
		node: n, facts: openNetwork(), evidence: &evidence.Scan{Unknown: []string{"it hangs"}},
		known: presence.Inputs{ClustersKnown: true, Protected: true}, now: time.Now(),
	})
	require.Equal(t, []string{readiness.HoldAnnotation}, slices.Collect(maps.Keys(d.all.Annotations)),
		"the end of the hold removes no mark")
	require.Empty(t, d.rest.Labels, "a scan that hangs proves no absence")
	require.Empty(t, d.rest.Annotations)
	condition := decided(d, observation.EtcdMemberCondition)
	require.Equal(t, corev1.ConditionUnknown, condition.Status)
	require.Contains(t, condition.Message, "so the node stays protected: it hangs")
	require.NotNil(t, d.all.Unschedulable, "the hold does not depend on the evidence")
}

// bornMarked returns a Node that was born held, with the marks for autoscalers that the policy
// sets.
func bornMarked() *corev1.Node {
	n := bornHeld("n1")
	record := readiness.Record{State: readiness.Held, BootID: testBoot, Reason: readiness.NewNode}
	for key, value := range map[string]string{
		autoscaler.ClusterAutoscaler: "true", autoscaler.Karpenter: "true", autoscaler.CastAI: "true",
		autoscaler.Escalator: "held by Holdfast until its network works",
	} {
		n.Annotations[key] = value
		record.Marks = append(record.Marks, key)
	}
	n.Annotations[readiness.HoldAnnotation] = record.Format()
	return n
}

// TestMarksAfterHold follows the marks of a hold until after its end. The cases differ in what
// ends the hold, and when.
func TestMarksAfterHold(t *testing.T) {
	marks := []string{
		autoscaler.Escalator, autoscaler.CastAI,
		autoscaler.ClusterAutoscaler, autoscaler.Karpenter,
	}
	etcd, none := &evidence.Scan{Found: []evidence.FoundServer{foundMember(812)}}, &evidence.Scan{}
	hangs := &evidence.Scan{Unknown: []string{"it hangs"}}
	apply := func(n *corev1.Node, facts readiness.Facts, evidence *evidence.Scan) *corev1.Node {
		_, n = mustDecide(t, nodeInputs{
			node: n, facts: facts, evidence: evidence,
			known: presence.Inputs{ClustersKnown: true}, now: time.Now(),
		})
		return n
	}
	leaderReleases := func(n *corev1.Node) *corev1.Node {
		overdue, release := readiness.HoldHistory{Age: time.Hour}, readiness.HoldLimits{Release: true}
		d := readiness.CheckHold(n, overdue, release, time.Now()).Decision
		require.NotNil(t, d.Unschedulable)
		return written(n, nodepatch.OfHold(d))
	}
	for name, c := range map[string]struct {
		end func(*corev1.Node) *corev1.Node
		// owned reports whether the record still has the marks after the end of the hold.
		owned bool
	}{
		"agent before its first scan": {
			end: func(n *corev1.Node) *corev1.Node { return apply(n, openNetwork(), nil) }, owned: true,
		},
		"agent whose scan hangs": {
			end: func(n *corev1.Node) *corev1.Node { return apply(n, openNetwork(), hangs) }, owned: true,
		},
		"leader without an agent": {end: leaderReleases, owned: true},
		"leader after the agent found etcd": {
			end: func(n *corev1.Node) *corev1.Node { return leaderReleases(apply(n, closedNetwork(), etcd)) },
		},
		"agent that finds etcd": {
			end: func(n *corev1.Node) *corev1.Node { return apply(n, openNetwork(), etcd) }, owned: true,
		},
		"agent after it found etcd": {
			end: func(n *corev1.Node) *corev1.Node {
				return apply(apply(n, closedNetwork(), etcd), openNetwork(), etcd)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			ended := c.end(bornMarked())
			require.False(t, ended.Spec.Unschedulable)
			for _, key := range marks {
				require.Contains(t, ended.Annotations, key)
			}
			record, err := readiness.ParseRecord(ended.Annotations[readiness.HoldAnnotation])
			require.NoError(t, err)
			require.Equal(t, c.owned, len(record.Marks) > 0)

			member := ended
			for range 2 {
				member = apply(member, openNetwork(), etcd)
			}
			require.Equal(t, strings.Join(marks, ","), member.Annotations[presence.MarksAnnotation])
			require.NotContains(t, member.Annotations[readiness.HoldAnnotation], "marks")
			for name, n := range map[string]*corev1.Node{"never a member": ended, "no longer a member": member} {
				for range 2 {
					n = apply(n, openNetwork(), none)
				}
				require.Equal(t, []string{readiness.HoldAnnotation}, slices.Collect(maps.Keys(n.Annotations)), name)
				require.NotContains(t, n.Annotations[readiness.HoldAnnotation], "marks", name)
			}
		})
	}

	// If a member goes while the node is held, the marks of the hold stay.
	n := apply(apply(bornMarked(), closedNetwork(), etcd), closedNetwork(), none)
	require.ElementsMatch(t, append(marks, readiness.HoldAnnotation), slices.Collect(maps.Keys(n.Annotations)))
	n = apply(n, openNetwork(), none)
	require.Equal(t, []string{readiness.HoldAnnotation}, slices.Collect(maps.Keys(n.Annotations)))
}

// written returns the Node after a write.
func written(n *corev1.Node, d nodepatch.Desired) *corev1.Node {
	n = n.DeepCopy()
	n.Annotations, n.Labels = withChanges(n.Annotations, d.Annotations), withChanges(n.Labels, d.Labels)
	if d.Unschedulable != nil {
		n.Spec.Unschedulable = *d.Unschedulable
	}
	for _, c := range d.Conditions {
		isOld := func(old corev1.NodeCondition) bool { return old.Type == c.Type }
		n.Status.Conditions = append(slices.DeleteFunc(n.Status.Conditions, isOld), c)
	}
	return n
}

// TestSanitized checks that a text that the API server would change is written once only.
func TestSanitized(t *testing.T) {
	found := foundMember(812)
	found.Where, found.Problems = "unit \xff", []string{strings.Repeat("\u00e4", 3000)}
	facts := closedNetwork()
	facts.Conflist.Directory = "/etc/cni/\xfe"
	n := bornHeld("n1")
	n.UID, n.ResourceVersion, n.Annotations["x"] = "uid-1", "1", "y"
	d, _ := mustDecide(t, nodeInputs{node: n, facts: facts, evidence: &evidence.Scan{
		Found: []evidence.FoundServer{found}, Unknown: []string{"a\xff" + strings.Repeat("b", 9000)},
	}, now: time.Now()})
	patches, err := nodepatch.Plan(n, d.all, time.Now())
	require.NoError(t, err)
	require.NotEmpty(t, patches)
	stored := n.DeepCopy()
	stored.Labels = map[string]string{}
	for _, p := range patches { // as the API server merges them
		var body corev1.Node
		require.NoError(t, json.Unmarshal(p.Body, &body))
		maps.Copy(stored.Annotations, body.Annotations)
		maps.Copy(stored.Labels, body.Labels)
		stored.Status.Conditions = append(body.Status.Conditions, stored.Status.Conditions...)
	}
	again, err := nodepatch.Plan(stored, d.all, time.Now())
	require.NoError(t, err)
	require.Empty(t, again)
	require.LessOrEqual(t, len(decided(d, observation.EtcdMemberCondition).Message), maxMessageBytes+len("…"))
}

// TestDecideIgnoresClock compares the decisions by clocks that are hours apart.
func TestDecideIgnoresClock(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	etcd := &evidence.Scan{Found: []evidence.FoundServer{foundMember(812)}}
	for name, in := range map[string]nodeInputs{
		"closed": {node: bornMarked(), facts: closedNetwork(), evidence: &evidence.Scan{}},
		"open":   {node: bornMarked(), facts: openNetwork(), evidence: &evidence.Scan{}},
		"etcd":   {node: bornMarked(), facts: openNetwork(), evidence: etcd},
	} {
		t.Run(name, func(t *testing.T) {
			var all []nodeDecision
			for _, off := range []time.Duration{0, -9 * time.Hour, 9 * time.Hour} {
				in.now = now.Add(off)
				d, err := decide(in)
				require.NoError(t, err)
				if d.hold.Record != nil {
					require.Equal(t, in.now, d.hold.Record.Since, "the record contains the time")
					d.hold.Record.Since = time.Time{}
				}
				delete(d.urgent.Annotations, readiness.HoldAnnotation)
				delete(d.all.Annotations, readiness.HoldAnnotation)
				all = append(all, d)
			}
			require.Equal(t, all[0], all[1])
			require.Equal(t, all[0], all[2])
		})
	}
}

// TestProviderIDEvent checks that the event about an ID that an autoscaler cannot use is recorded
// with the condition that reports it, and once.
func TestProviderIDEvent(t *testing.T) {
	n := bornMarked()
	n.Labels = map[string]string{"karpenter.sh/nodepool": "etcd"}
	decideOn := func(n *corev1.Node) (nodeDecision, *corev1.Node) {
		scan := evidence.Scan{Found: []evidence.FoundServer{foundMember(812)}}
		known, err := gatherKnown(n, scan, newClusterStores(discardLog(), func() {}), true)
		require.NoError(t, err)
		known.ClustersKnown = true
		return mustDecide(t, nodeInputs{node: n, facts: openNetwork(), evidence: &scan, known: known, now: time.Now()})
	}
	count := func(events []readiness.Event) (found int) {
		for _, e := range events {
			if e.Reason == "ProviderIDUnusable" {
				require.Equal(t, corev1.EventTypeWarning, e.Type)
				require.Contains(t, e.Message, "spec.providerID is empty on a node with the label karpenter.sh/nodepool")
				found++
			}
		}
		return found
	}
	d, after := decideOn(n)
	require.Contains(t, condition(after, observation.EtcdMemberCondition).Message, "spec.providerID is empty")
	require.Equal(t, 1, count(d.events(n, after)))
	again, then := decideOn(after)
	require.Zero(t, count(again.events(after, then)), "a restart repeats no event")

	then.Spec.ProviderID = "kwok://n1"
	fixed, last := decideOn(then)
	require.NotContains(t, condition(last, observation.EtcdMemberCondition).Message, "providerID")
	require.Zero(t, count(fixed.events(then, last)))
}
