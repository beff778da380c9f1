package nodepatch

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

func TestOfHold(t *testing.T) {
	record := readiness.Record{State: readiness.Released, BootID: "b1", Reason: readiness.NetworkReady}
	d := readiness.Decision{
		Record: &record, Annotations: map[string]*string{"mark": nil}, Unschedulable: new(false),
		AddTaints: []corev1.Taint{taint("a", "", "NoSchedule")}, RemoveTaints: []corev1.Taint{taint("b", "", "NoSchedule")},
		Conditions: []corev1.NodeCondition{said("NetworkHeld", "False", "NotHeld", "released")}, StatusFirst: true,
	}
	got := OfHold(d)
	require.Equal(t, Desired{
		Labels: map[string]*string{}, Annotations: map[string]*string{"mark": nil, readiness.HoldAnnotation: new(record.Format())},
		Unschedulable: d.Unschedulable, AddTaints: d.AddTaints, RemoveTaints: d.RemoveTaints, Conditions: d.Conditions, StatusFirst: true,
	}, got)

	got.Annotations["more"], got.Conditions[0].Message = new("x"), "another"
	require.NotContains(t, d.Annotations, "more")
	require.Equal(t, "released", d.Conditions[0].Message, "the decision is its own")

	patches, err := Plan(node(), OfHold(readiness.Decision{}), noon())
	require.NoError(t, err)
	require.Empty(t, patches, "a decision that asks for nothing writes nothing, neither record nor bit")
}
