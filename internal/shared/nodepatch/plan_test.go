package nodepatch

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

const noSchedule, noExecute = corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute

func noon() time.Time    { return time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC) }
func morning() time.Time { return noon().Add(-4 * time.Hour) }

// testNode returns a Node that a kubelet and some other tools have written.
func testNode() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "n1", UID: "u1", ResourceVersion: "7",
			Labels:      map[string]string{"kubernetes.io/os": "linux", "role": "etcd"},
			Annotations: map[string]string{"flannel.alpha.coreos.com/backend-type": "vxlan", "holdfast.dev/hold": "old"},
		},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{
			newTaint("dedicated", "etcd", noSchedule), newTaint("wait", "", noSchedule), newTaint("wait", "", noExecute),
		}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			oldCondition(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady", "kubelet is ready"),
			oldCondition("NetworkHeld", corev1.ConditionTrue, "WaitingForCNI", "waiting"),
		}},
	}
}

// oldCondition returns a condition that was written in the morning.
func oldCondition(
	kind corev1.NodeConditionType, status corev1.ConditionStatus, reason, message string,
) corev1.NodeCondition {
	c := newCondition(kind, status, reason, message)
	c.LastHeartbeatTime, c.LastTransitionTime = metav1.NewTime(morning()), metav1.NewTime(morning())
	return c
}

func newCondition(
	kind corev1.NodeConditionType, status corev1.ConditionStatus, reason, message string,
) corev1.NodeCondition {
	return corev1.NodeCondition{Type: kind, Status: status, Reason: reason, Message: message}
}

func newTaint(key, value string, effect corev1.TaintEffect) corev1.Taint {
	return corev1.Taint{Key: key, Value: value, Effect: effect}
}

func TestPlan(t *testing.T) {
	const (
		dedicated = `{"key":"dedicated","value":"etcd","effect":"NoSchedule"}`
		wait      = `{"key":"wait","effect":"NoSchedule"}`
		waitToo   = `{"key":"wait","effect":"NoExecute"}`
		at        = `"lastHeartbeatTime":"2026-08-01T12:00:00Z","lastTransitionTime":`
	)
	object := func(metadata, spec string) Patch {
		body := `{"metadata":{` + metadata + `"resourceVersion":"7"}` + spec + `}`
		return Patch{Type: types.MergePatchType, Body: []byte(body)}
	}
	taints := func(list string) []Patch { return []Patch{object("", `,"spec":{"taints":[`+list+`]}`)} }
	status := func(condition string) Patch {
		body := `{"metadata":{"uid":"u1"},"status":{"conditions":[` + condition + `]}}`
		return Patch{Subresource: "status", Type: types.StrategicMergePatchType, Body: []byte(body)}
	}
	guarded := func(p Patch) Patch {
		p.Body = bytes.Replace(p.Body, []byte(`"u1"`), []byte(`"u1","resourceVersion":"7"`), 1)
		return p
	}
	record := object(`"annotations":{"holdfast.dev/hold":"r"},`, "")
	waiting := newCondition("NetworkHeld", corev1.ConditionTrue, "WaitingForCNI", "waiting")
	notHeld := newCondition("NetworkHeld", corev1.ConditionFalse, "NotHeld", "released")
	writeNotHeld := status(`{"type":"NetworkHeld","status":"False",` + at +
		`"2026-08-01T12:00:00Z","reason":"NotHeld","message":"released"}`)
	for name, c := range map[string]struct {
		desired Desired
		want    []Patch
	}{
		"nothing desired": {Desired{}, nil},
		"already as desired": {Desired{
			Labels:        map[string]*string{"role": new("etcd"), "gone": nil},
			Annotations:   map[string]*string{"holdfast.dev/hold": new("old")},
			Unschedulable: new(false),
			AddTaints:     []corev1.Taint{newTaint("wait", "", noSchedule)},
			RemoveTaints: []corev1.Taint{
				newTaint("wait", "", corev1.TaintEffectPreferNoSchedule), newTaint("other", "", noSchedule),
			},
			Conditions: []corev1.NodeCondition{waiting},
		}, nil},
		"cordon and record in one write": {
			Desired{Unschedulable: new(true), Annotations: map[string]*string{"holdfast.dev/hold": new("r")}},
			[]Patch{object(`"annotations":{"holdfast.dev/hold":"r"},`, `,"spec":{"unschedulable":true}`)},
		},
		"keys added and removed": {
			Desired{
				Labels:      map[string]*string{"role": nil, "zone": new("a")},
				Annotations: map[string]*string{"holdfast.dev/hold": nil},
			},
			[]Patch{object(`"annotations":{"holdfast.dev/hold":null},"labels":{"role":null,"zone":"a"},`, "")},
		},
		"empty value": {
			Desired{Annotations: map[string]*string{"holdfast.dev/new": new("")}},
			[]Patch{object(`"annotations":{"holdfast.dev/new":""},`, "")},
		},
		"taint added at the end": {
			Desired{AddTaints: []corev1.Taint{newTaint("more", "", noSchedule)}},
			taints(dedicated + `,` + wait + `,` + waitToo + `,{"key":"more","effect":"NoSchedule"}`),
		},
		"taint changed in its place": {
			Desired{AddTaints: []corev1.Taint{newTaint("dedicated", "all", noSchedule)}},
			taints(`{"key":"dedicated","value":"all","effect":"NoSchedule"},` + wait + `,` + waitToo),
		},
		"taint removed by key and effect": {
			Desired{RemoveTaints: []corev1.Taint{newTaint("wait", "whatever", noSchedule)}},
			taints(dedicated + `,` + waitToo),
		},
		"taint added and removed": {Desired{
			AddTaints:    []corev1.Taint{newTaint("wait", "", noSchedule)},
			RemoveTaints: []corev1.Taint{newTaint("wait", "", noSchedule)},
		}, nil},
		"all taints removed": {Desired{RemoveTaints: testNode().Spec.Taints}, taints("")},
		"release: cordon before condition": {
			Desired{
				Annotations: map[string]*string{"holdfast.dev/hold": new("r")},
				Conditions:  []corev1.NodeCondition{notHeld},
			},
			[]Patch{record, writeNotHeld},
		},
		"hold: condition before cordon": {
			Desired{
				StatusFirst: true,
				Annotations: map[string]*string{"holdfast.dev/hold": new("r")},
				Conditions:  []corev1.NodeCondition{notHeld},
			},
			[]Patch{writeNotHeld, record},
		},
		"new message without a transition": {
			Desired{Conditions: []corev1.NodeCondition{
				newCondition("NetworkHeld", corev1.ConditionTrue, "WaitingForCNI", "waiting still"),
			}},
			[]Patch{status(`{"type":"NetworkHeld","status":"True",` + at +
				`"2026-08-01T08:00:00Z","reason":"WaitingForCNI","message":"waiting still"}`)},
		},
		"new condition beside an unchanged one": {
			Desired{Conditions: []corev1.NodeCondition{
				waiting, newCondition("NetworkUnavailable", corev1.ConditionTrue, "HeldByHoldfast", "held"),
			}},
			[]Patch{guarded(status(`{"type":"NetworkUnavailable","status":"True",` + at +
				`"2026-08-01T12:00:00Z","reason":"HeldByHoldfast","message":"held"}`))},
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := testNode()
			got, err := Plan(n, c.desired, noon())
			require.NoError(t, err)
			require.Equal(t, patchTexts(c.want), patchTexts(got))
			require.Equal(t, testNode(), n, "Plan does not change the Node")
		})
	}
}

func patchTexts(patches []Patch) (all []string) {
	for _, p := range patches {
		all = append(all, string(p.Type)+" "+p.Subresource+" "+string(p.Body))
	}
	return all
}

func TestPlanNeedsVersion(t *testing.T) {
	n := testNode()
	n.ResourceVersion = ""
	_, err := Plan(n, Desired{Unschedulable: new(true)}, noon())
	require.ErrorContains(t, err, `node "n1": the Node has no resourceVersion`)
}

func TestOfHold(t *testing.T) {
	record := readiness.Record{State: readiness.Released, BootID: "b1", Reason: readiness.NetworkReady}
	d := readiness.Decision{
		Record: &record, Annotations: map[string]*string{"mark": nil}, Unschedulable: new(false),
		AddTaints: []corev1.Taint{newTaint("a", "", noSchedule)}, RemoveTaints: []corev1.Taint{newTaint("b", "", noSchedule)},
		Conditions:  []corev1.NodeCondition{newCondition("NetworkHeld", "False", "NotHeld", "released")},
		StatusFirst: true,
	}
	got := OfHold(d)
	require.Equal(t, Desired{
		Labels:        map[string]*string{},
		Annotations:   map[string]*string{"mark": nil, readiness.HoldAnnotation: new(record.Format())},
		Unschedulable: d.Unschedulable, AddTaints: d.AddTaints, RemoveTaints: d.RemoveTaints,
		Conditions: d.Conditions, StatusFirst: true,
	}, got)

	got.Annotations["more"], got.Conditions[0].Message = new("x"), "another"
	require.NotContains(t, d.Annotations, "more")
	require.Equal(t, "released", d.Conditions[0].Message, "the decision shares no memory with the result")

	patches, err := Plan(testNode(), OfHold(readiness.Decision{}), noon())
	require.NoError(t, err)
	require.Empty(t, patches, "an empty decision writes nothing")
}
