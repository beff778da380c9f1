package readiness

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// owns enters a field manager as the API server does.
func owns(manager, subresource, fields string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.ManagedFields = append(n.ManagedFields, metav1.ManagedFieldsEntry{
			Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, Subresource: subresource,
			FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields),
		})
	}
}

// TestACordonThatHasBecomeSomebodyElsesStays: a person opens a held node and closes it again while no agent looks. The bit
// is as it was and the record too; whose it is now only the API server's book-keeping says.
func TestACordonThatHasBecomeSomebodyElsesStays(t *testing.T) {
	const bit = `{"f:spec":{"f:unschedulable":{}}}`
	for name, c := range map[string]struct {
		owner func(*corev1.Node)
		by    string
	}{
		"nobody's, as the policy leaves it":    {func(*corev1.Node) {}, ""},
		"the agent's":                          {owns(FieldManager, "", bit), ""},
		"a person's":                           {owns("kubectl", "", bit), "kubectl"},
		"who wrote the record with it":         {owns("policy", "", `{"f:metadata":{"f:annotations":{"f:holdfast.dev/hold":{}}},"f:spec":{"f:unschedulable":{}}}`), ""},
		"other fields are a person's":          {owns("kubectl", "", `{"f:metadata":{"f:annotations":{"f:x/f:unschedulable":{}}},"f:spec":{"f:taints":{}}}`), ""},
		"a status of that name":                {owns("kubelet", "status", bit), ""},
		"book-keeping that cannot be read":     {owns("kubectl", "", `{"f:spec":["f:unschedulable"`), ""},
		"book-keeping that has been taken off": {func(n *corev1.Node) { n.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}} }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			ours := conditioned(corev1.NodeNetworkUnavailable, corev1.ConditionTrue, HeldByHoldfast)
			n := node(recorded(Held, thisBoot, NewNode), cordoned, ours, c.owner)
			for _, facts := range []Facts{ready(), closed()} {
				d := Decide(n, facts, Policy{}, noon())
				if c.by == "" {
					require.NotEqual(t, EventOverridden, d.Reason)
					require.False(t, d.Record != nil && d.Record.State == Overridden)
					continue
				}
				require.Nil(t, d.Unschedulable, "it is not ours to lift")
				require.Equal(t, Overridden, d.Record.State)
				require.Equal(t, corev1.ConditionFalse, d.Conditions[1].Status)
				require.Contains(t, d.Event.Message, "the cordon that stands is not Holdfast's, kubectl set it")
			}
		})
	}
	d := Decide(node(recorded(Held, thisBoot, NewNode), owns("kubectl", "", bit)), closed(), Policy{}, noon())
	require.NotContains(t, d.Event.Message, "cordon that stands")
}

func TestMarksForAutoscalersComeAndGoWithTheHold(t *testing.T) {
	all := slices.Sorted(maps.Keys(scaleDownMarks()))
	policy := Policy{HoldUnrecorded: true}
	d := Decide(node(annotated(escalatorAnnotation, "mine")), closed(), policy, noon())
	require.Equal(t, slices.DeleteFunc(slices.Clone(all), func(k string) bool { return k == escalatorAnnotation }), d.Record.Marks)
	require.NotContains(t, d.Annotations, escalatorAnnotation, "somebody has set it")
	require.Equal(t, "true", *d.Annotations[clusterAutoscalerAnnotation])
	require.Equal(t, "true", *d.Annotations[karpenterAnnotation])

	held := node(cordoned, holding(*d.Record), annotated(escalatorAnnotation, "mine"), annotated(clusterAutoscalerAnnotation, "true"), annotated(karpenterAnnotation, "false"))
	require.Empty(t, Decide(held, closed(), policy, noon()).Annotations, "one that somebody takes off stays off")
	for name, c := range map[string]struct {
		n     *corev1.Node
		facts Facts
	}{
		"release":  {held, ready()},
		"override": {func() *corev1.Node { n := clone(held); n.Spec.Unschedulable = false; return n }(), closed()},
	} {
		d := Decide(c.n, c.facts, policy, noon())
		require.Equal(t, map[string]*string{clusterAutoscalerAnnotation: nil}, d.Annotations, "%s: one that somebody has changed is theirs", name)
		require.Empty(t, d.Record.Marks, name)
	}
	d = Decide(node(cordoned, holding(Record{State: Held, BootID: thisBoot, Marks: []string{"dedicated", HoldAnnotation}}), annotated("dedicated", "true")), ready(), policy, noon())
	require.Empty(t, d.Annotations, "what else stands in the record is no leave to touch anything")

	d = Decide(node(cordoned, holding(Record{State: Held, BootID: thisBoot, Marks: all}), annotated(clusterAutoscalerAnnotation, "true"), tainted("medik8s.io/drain")), ready(), policy, noon())
	require.Empty(t, d.Annotations, "while the hold stands for somebody, they stand too")
}

// TestNoClockDecides: the time is written down and nothing else.
func TestNoClockDecides(t *testing.T) {
	for w := range worlds() {
		if w.keep || w.exempt || w.marked {
			continue
		}
		a := Decide(w.node, w.facts, w.policy, noon())
		b := Decide(w.node, w.facts, w.policy, noon().AddDate(-50, 0, 0))
		if b.Record != nil {
			b.Record.Since = noon()
		}
		require.Equal(t, a, b, w.name)
	}
}
