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

	"github.com/holdfast-dev/holdfast/internal/nodepatch"
	"github.com/holdfast-dev/holdfast/pkg/protect"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
	"github.com/holdfast-dev/holdfast/pkg/spc"
)

func TestDecidePutsEverythingIntoOneWrite(t *testing.T) {
	host := &protect.HostEvidence{Found: []protect.Found{local(812)}}
	machines := spc.NewIndex(&spc.Inventory{Organization: 7, Records: []spc.Record{{PK: 1, Cluster: 2, InstanceID: "born", State: "running"}}})
	s := situation{node: bornHeld("born"), facts: open(), evidence: host, spc: true, inventory: machines, now: time.Now()}
	s.node.UID = "uid-1"

	o, err := decide(s)
	require.NoError(t, err)
	require.NotNil(t, o.all.Unschedulable)
	require.False(t, *o.all.Unschedulable)
	require.Contains(t, o.all.Annotations, readiness.HoldAnnotation)
	require.Contains(t, o.all.Labels, protect.EtcdMemberLabel)
	require.Equal(t, "born", *o.all.Labels[spc.InstanceIDLabel])
	require.Equal(t, corev1.ConditionTrue, conditionOf(o, protect.EtcdMemberCondition).Status)
	require.Equal(t, corev1.ConditionFalse, conditionOf(o, readiness.NetworkHeld).Status)

	require.Contains(t, o.urgent.Annotations, readiness.HoldAnnotation)
	require.Empty(t, o.urgent.Labels, "what is urgent is the hold and nothing else")
	require.NotContains(t, o.urgent.Annotations, protect.BecauseAnnotation)

	s.evidence, s.inventory = nil, nil
	o, err = decide(s)
	require.NoError(t, err)
	require.Empty(t, o.all.Labels, "nothing is said of what was not looked at")
	require.Empty(t, conditionOf(o, protect.EtcdMemberCondition))
}

func conditionOf(o outcome, of corev1.NodeConditionType) corev1.NodeCondition {
	return condition(&corev1.Node{Status: corev1.NodeStatus{Conditions: o.all.Conditions}}, of)
}

func TestNews(t *testing.T) {
	node := func(label string, status corev1.ConditionStatus) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{}}}
		if label != "" {
			n.Labels[protect.EtcdMemberLabel] = label
		}
		if status != "" {
			n.Status.Conditions = []corev1.NodeCondition{{Type: protect.EtcdMemberCondition, Status: status}}
		}
		return n
	}
	tests := []struct {
		name          string
		before, after *corev1.Node
		want          string
	}{
		{name: "found", before: node("", ""), after: node("true", corev1.ConditionTrue), want: "EtcdMemberFound"},
		{name: "found, the condition is still to be written", before: node("", ""), after: node("true", ""), want: "EtcdMemberFound"},
		{name: "found where there was provably none", before: node("", corev1.ConditionFalse), after: node("true", corev1.ConditionTrue), want: "EtcdMemberFound"},
		{name: "nothing new", before: node("true", corev1.ConditionTrue), after: node("true", corev1.ConditionTrue)},
		{name: "the label is put back", before: node("", corev1.ConditionTrue), after: node("true", corev1.ConditionTrue)},
		{name: "not seen for a while", before: node("true", corev1.ConditionTrue), after: node("true", corev1.ConditionUnknown)},
		{name: "seen again", before: node("true", corev1.ConditionUnknown), after: node("true", corev1.ConditionTrue)},
		{name: "gone", before: node("true", corev1.ConditionTrue), after: node("", corev1.ConditionFalse), want: "EtcdMemberGone"},
		{name: "gone after it was not seen for a while", before: node("true", corev1.ConditionUnknown), after: node("", corev1.ConditionFalse), want: "EtcdMemberGone"},
		{name: "never there", before: node("", ""), after: node("", corev1.ConditionFalse)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			o := outcome{protection: &protect.Protection{Message: "why"}}
			got := o.news(test.before, test.after)
			if test.want == "" {
				require.Empty(t, got)
				return
			}
			require.Equal(t, []event{{corev1.EventTypeNormal, test.want, "why"}}, got)
		})
	}
}

func TestABrokenGlassKeepsTheLabelOff(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	const valid = `{"uid":"uid-1","until":"2026-11-20T12:30:00Z","reason":"the webhook is gone"}`
	for name, c := range map[string]struct {
		glass string
		label string
		want  bool // the label is put there
	}{
		"whole":            {want: true},
		"broken":           {glass: valid},
		"broken, labelled": {glass: valid, label: "true"},
		"expired":          {glass: `{"uid":"uid-1","until":"2026-11-20T11:59:59Z","reason":"x"}`, want: true},
		"of another node":  {glass: `{"uid":"uid-2","until":"2026-11-20T12:30:00Z","reason":"x"}`, want: true},
		"without a reason": {glass: `{"uid":"uid-1","until":"2026-11-20T12:30:00Z"}`, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			n := bornHeld("n1")
			n.UID, n.Labels = "uid-1", map[string]string{}
			if c.glass != "" {
				n.Annotations[protect.BreakGlassAnnotation] = c.glass
			}
			if c.label != "" {
				n.Labels[protect.EtcdMemberLabel] = c.label
			}
			o, err := decide(situation{node: n, facts: open(), evidence: &protect.HostEvidence{Found: []protect.Found{local(812)}}, now: now})
			require.NoError(t, err)
			_, put := o.all.Labels[protect.EtcdMemberLabel]
			require.Equal(t, c.want, put)
			require.Contains(t, o.all.Annotations, protect.BecauseAnnotation, "only the label stays off")
			message := conditionOf(o, protect.EtcdMemberCondition).Message
			require.Equal(t, name == "broken", strings.Contains(message, "is left off until 2026-11-20T12:30:00Z, by annotation holdfast.dev/break-glass: the webhook is gone"), message)
		})
	}
}

func TestAHostThatCannotBeLookedAtChangesNoMark(t *testing.T) {
	n := bornMarked()
	n.Labels = map[string]string{protect.EtcdMemberLabel: "true"}
	s := situation{node: n, facts: open(), evidence: &protect.HostEvidence{}, blind: "it hangs", known: protect.Known{ClustersKnown: true, Protected: true}, now: time.Now()}
	o, err := decide(s)
	require.NoError(t, err)
	require.Equal(t, []string{readiness.HoldAnnotation}, slices.Collect(maps.Keys(o.all.Annotations)), "nor does the end of the hold take any off")
	require.Empty(t, o.rest.Labels, "the last look, which proved that there is no member, is too old to go by")
	require.Empty(t, o.rest.Annotations)
	condition := conditionOf(o, protect.EtcdMemberCondition)
	require.Equal(t, corev1.ConditionUnknown, condition.Status)
	require.Equal(t, "it hangs; the node stays protected", condition.Message)
	require.NotNil(t, o.all.Unschedulable, "the hold goes its own way")
}

// bornMarked is a node that was born held with the marks for autoscalers that the policy sets.
func bornMarked() *corev1.Node {
	n := bornHeld("n1")
	record := readiness.Record{State: readiness.Held, BootID: testBoot, Reason: readiness.NewNode}
	for key, value := range map[string]string{
		protect.ClusterAutoscalerAnnotation: "true", protect.KarpenterAnnotation: "true", protect.CastAIAnnotation: "true",
		protect.EscalatorAnnotation: "held by Holdfast until its network works",
	} {
		n.Annotations[key] = value
		record.Marks = append(record.Marks, key)
	}
	n.Annotations[readiness.HoldAnnotation] = record.Format()
	return n
}

// TestMarksOutliveTheHoldForAMember follows the marks of a hold through its end, by whom and whenever it comes.
func TestMarksOutliveTheHoldForAMember(t *testing.T) {
	marks := []string{protect.EscalatorAnnotation, protect.CastAIAnnotation, protect.ClusterAutoscalerAnnotation, protect.KarpenterAnnotation}
	etcd, none := &protect.HostEvidence{Found: []protect.Found{local(812)}}, &protect.HostEvidence{}
	known := protect.Known{ClustersKnown: true}
	apply := func(n *corev1.Node, s situation) *corev1.Node {
		s.node, s.known, s.now = n, known, time.Now()
		o, err := decide(s)
		require.NoError(t, err)
		return written(n, o.all)
	}
	given := func(n *corev1.Node) *corev1.Node {
		d := readiness.Attend(n, time.Hour, readiness.Patience{Release: true}, time.Now()).Decision
		require.NotNil(t, d.Unschedulable)
		return written(n, nodepatch.OfHold(d))
	}
	for name, c := range map[string]struct {
		ends func(*corev1.Node) *corev1.Node
		// lent says that the record has them still when the hold has ended.
		lent bool
	}{
		"the agent's first pass, before its first look": {ends: func(n *corev1.Node) *corev1.Node { return apply(n, situation{facts: open()}) }, lent: true},
		"an agent that is blind": {ends: func(n *corev1.Node) *corev1.Node {
			return apply(n, situation{facts: open(), evidence: none, blind: "it hangs"})
		}, lent: true},
		"the leader, without an agent": {ends: given, lent: true},
		"the leader, after the agent has found etcd": {ends: func(n *corev1.Node) *corev1.Node {
			return given(apply(n, situation{facts: closed(), evidence: etcd}))
		}},
		"the agent, and etcd is there": {ends: func(n *corev1.Node) *corev1.Node {
			return apply(n, situation{facts: open(), evidence: etcd})
		}, lent: true},
		"the agent, after it has found etcd": {ends: func(n *corev1.Node) *corev1.Node {
			return apply(apply(n, situation{facts: closed(), evidence: etcd}), situation{facts: open(), evidence: etcd})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			ended := c.ends(bornMarked())
			require.False(t, ended.Spec.Unschedulable)
			for _, key := range marks {
				require.Contains(t, ended.Annotations, key)
			}
			record, err := readiness.ParseRecord(ended.Annotations[readiness.HoldAnnotation])
			require.NoError(t, err)
			require.Equal(t, c.lent, len(record.Marks) > 0)

			member := ended
			for range 2 {
				member = apply(member, situation{facts: open(), evidence: etcd})
			}
			require.Equal(t, strings.Join(marks, ","), member.Annotations[protect.MarksAnnotation])
			require.NotContains(t, member.Annotations[readiness.HoldAnnotation], "marks")
			for name, n := range map[string]*corev1.Node{"no member after all": ended, "no member any more": member} {
				for range 2 {
					n = apply(n, situation{facts: open(), evidence: none})
				}
				require.Equal(t, []string{readiness.HoldAnnotation}, slices.Collect(maps.Keys(n.Annotations)), name)
				require.NotContains(t, n.Annotations[readiness.HoldAnnotation], "marks", name)
			}
		})
	}

	// A member that goes while the node is held leaves it the hold's marks.
	n := apply(apply(bornMarked(), situation{facts: closed(), evidence: etcd}), situation{facts: closed(), evidence: none})
	require.Equal(t, []string{protect.CastAIAnnotation, protect.ClusterAutoscalerAnnotation, readiness.HoldAnnotation, protect.KarpenterAnnotation}, slices.Sorted(maps.Keys(n.Annotations)))
	n = apply(n, situation{facts: open(), evidence: none})
	require.Equal(t, []string{readiness.HoldAnnotation}, slices.Collect(maps.Keys(n.Annotations)))
}

// written is the Node with the cordon, the annotations, the labels and the conditions that are asked for.
func written(n *corev1.Node, d nodepatch.Desired) *corev1.Node {
	n = n.DeepCopy()
	n.Annotations, n.Labels = changed(n.Annotations, d.Annotations), changed(n.Labels, d.Labels)
	if d.Unschedulable != nil {
		n.Spec.Unschedulable = *d.Unschedulable
	}
	for _, c := range d.Conditions {
		n.Status.Conditions = slices.DeleteFunc(n.Status.Conditions, func(is corev1.NodeCondition) bool { return is.Type == c.Type })
		n.Status.Conditions = append(n.Status.Conditions, c)
	}
	return n
}

func TestWhatIsNoTextIsWrittenOnce(t *testing.T) {
	found := local(812)
	found.Where, found.Problems = "unit \xff", []string{strings.Repeat("\u00e4", 3000)}
	facts := closed()
	facts.Conflist.Directory = "/etc/cni/\xfe"
	n := bornHeld("n1")
	n.UID, n.ResourceVersion, n.Annotations["x"] = "uid-1", "1", "y"
	o, err := decide(situation{node: n, facts: facts, evidence: &protect.HostEvidence{Found: []protect.Found{found}, Unknown: []string{"a\xff" + strings.Repeat("b", 9000)}}, now: time.Now()})
	require.NoError(t, err)
	patches, err := nodepatch.Plan(n, o.all, time.Now())
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
	again, err := nodepatch.Plan(stored, o.all, time.Now())
	require.NoError(t, err)
	require.Empty(t, again)
	require.LessOrEqual(t, len(conditionOf(o, protect.EtcdMemberCondition).Message), longestMessage+len("…"))
}
