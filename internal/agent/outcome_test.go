package agent

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/pkg/protect"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
	"github.com/holdfast-dev/holdfast/pkg/spc"
)

func TestDecidePutsEverythingIntoOneWrite(t *testing.T) {
	host := &protect.HostEvidence{Found: []protect.Found{local(812)}}
	machines := &spc.Inventory{Organization: 7, Records: []spc.Record{{PK: 1, Cluster: 2, InstanceID: "born", State: "running"}}}
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
