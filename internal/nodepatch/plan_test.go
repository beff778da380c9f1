package nodepatch

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func noon() time.Time    { return time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC) }
func morning() time.Time { return noon().Add(-4 * time.Hour) }

// node returns a Node on which a kubelet and some other tools have left their marks.
func node() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "n1", UID: "u1", ResourceVersion: "7",
			Labels:      map[string]string{"kubernetes.io/os": "linux", "role": "etcd"},
			Annotations: map[string]string{"flannel.alpha.coreos.com/backend-type": "vxlan", "holdfast.dev/hold": "old"},
		},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{
			{Key: "dedicated", Value: "etcd", Effect: corev1.TaintEffectNoSchedule},
			{Key: "wait", Effect: corev1.TaintEffectNoSchedule},
			{Key: "wait", Effect: corev1.TaintEffectNoExecute},
		}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			stamped(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady", "kubelet is ready"),
			stamped("NetworkHeld", corev1.ConditionTrue, "WaitingForCNI", "waiting"),
		}},
	}
}

func stamped(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason, message string) corev1.NodeCondition {
	c := said(kind, status, reason, message)
	c.LastHeartbeatTime, c.LastTransitionTime = metav1.NewTime(morning()), metav1.NewTime(morning())
	return c
}

func said(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason, message string) corev1.NodeCondition {
	return corev1.NodeCondition{Type: kind, Status: status, Reason: reason, Message: message}
}

func taint(key, value string, effect corev1.TaintEffect) corev1.Taint {
	return corev1.Taint{Key: key, Value: value, Effect: effect}
}

func TestPlan(t *testing.T) {
	const (
		noSchedule = corev1.TaintEffectNoSchedule
		dedicated  = `{"key":"dedicated","value":"etcd","effect":"NoSchedule"}`
		wait       = `{"key":"wait","effect":"NoSchedule"}`
		waitToo    = `{"key":"wait","effect":"NoExecute"}`
	)
	main := func(body string) Patch { return Patch{Type: types.MergePatchType, Body: []byte(body)} }
	status := func(body string) Patch {
		return Patch{Subresource: "status", Type: types.StrategicMergePatchType, Body: []byte(body)}
	}
	held := `{"metadata":{"uid":"u1"},"status":{"conditions":[{"type":"NetworkHeld","status":"False",` +
		`"lastHeartbeatTime":"2026-08-01T12:00:00Z","lastTransitionTime":"2026-08-01T12:00:00Z","reason":"NotHeld","message":"released"}]}}`
	for name, c := range map[string]struct {
		desired Desired
		want    []Patch
	}{
		"nothing is desired": {Desired{}, nil},
		"all is so already": {Desired{
			Labels:        map[string]*string{"role": new("etcd"), "gone": nil},
			Annotations:   map[string]*string{"holdfast.dev/hold": new("old")},
			Unschedulable: new(false),
			AddTaints:     []corev1.Taint{taint("wait", "", noSchedule)},
			RemoveTaints:  []corev1.Taint{taint("wait", "", corev1.TaintEffectPreferNoSchedule), taint("other", "", noSchedule)},
			Conditions:    []corev1.NodeCondition{said("NetworkHeld", corev1.ConditionTrue, "WaitingForCNI", "waiting")},
		}, nil},
		"the bit and its record in one write": {
			Desired{Unschedulable: new(true), Annotations: map[string]*string{"holdfast.dev/hold": new("new")}},
			[]Patch{main(`{"metadata":{"annotations":{"holdfast.dev/hold":"new"},"resourceVersion":"7"},"spec":{"unschedulable":true}}`)},
		},
		"keys come and go": {
			Desired{Labels: map[string]*string{"role": nil, "zone": new("a")}, Annotations: map[string]*string{"holdfast.dev/hold": nil}},
			[]Patch{main(`{"metadata":{"annotations":{"holdfast.dev/hold":null},"labels":{"role":null,"zone":"a"},"resourceVersion":"7"}}`)},
		},
		"an empty value is a value": {
			Desired{Annotations: map[string]*string{"holdfast.dev/new": new("")}},
			[]Patch{main(`{"metadata":{"annotations":{"holdfast.dev/new":""},"resourceVersion":"7"}}`)},
		},
		"a taint is added behind the others": {
			Desired{AddTaints: []corev1.Taint{taint("more", "", noSchedule)}},
			[]Patch{main(`{"metadata":{"resourceVersion":"7"},"spec":{"taints":[` + dedicated + `,` + wait + `,` + waitToo + `,{"key":"more","effect":"NoSchedule"}]}}`)},
		},
		"a taint gets another value in its place": {
			Desired{AddTaints: []corev1.Taint{taint("dedicated", "all", noSchedule)}},
			[]Patch{main(`{"metadata":{"resourceVersion":"7"},"spec":{"taints":[{"key":"dedicated","value":"all","effect":"NoSchedule"},` + wait + `,` + waitToo + `]}}`)},
		},
		"a taint is taken off by key and effect": {
			Desired{RemoveTaints: []corev1.Taint{taint("wait", "whatever", noSchedule)}},
			[]Patch{main(`{"metadata":{"resourceVersion":"7"},"spec":{"taints":[` + dedicated + `,` + waitToo + `]}}`)},
		},
		"added and removed is added": {
			Desired{AddTaints: []corev1.Taint{taint("wait", "", noSchedule)}, RemoveTaints: []corev1.Taint{taint("wait", "", noSchedule)}}, nil,
		},
		"the last taints go": {
			Desired{RemoveTaints: []corev1.Taint{taint("dedicated", "", noSchedule), taint("wait", "", noSchedule), taint("wait", "", corev1.TaintEffectNoExecute)}},
			[]Patch{main(`{"metadata":{"resourceVersion":"7"},"spec":{"taints":[]}}`)},
		},
		"release: the bit before the condition": {
			Desired{Annotations: map[string]*string{"holdfast.dev/hold": new("r")}, Conditions: []corev1.NodeCondition{said("NetworkHeld", corev1.ConditionFalse, "NotHeld", "released")}},
			[]Patch{main(`{"metadata":{"annotations":{"holdfast.dev/hold":"r"},"resourceVersion":"7"}}`), status(held)},
		},
		"hold: the condition before the bit": {
			Desired{StatusFirst: true, Annotations: map[string]*string{"holdfast.dev/hold": new("r")}, Conditions: []corev1.NodeCondition{said("NetworkHeld", corev1.ConditionFalse, "NotHeld", "released")}},
			[]Patch{status(held), main(`{"metadata":{"annotations":{"holdfast.dev/hold":"r"},"resourceVersion":"7"}}`)},
		},
		"another message is no transition": {
			Desired{Conditions: []corev1.NodeCondition{said("NetworkHeld", corev1.ConditionTrue, "WaitingForCNI", "waiting still")}},
			[]Patch{status(`{"metadata":{"uid":"u1"},"status":{"conditions":[{"type":"NetworkHeld","status":"True","lastHeartbeatTime":"2026-08-01T12:00:00Z",` +
				`"lastTransitionTime":"2026-08-01T08:00:00Z","reason":"WaitingForCNI","message":"waiting still"}]}}`)},
		},
		"a new condition, and one that stands": {
			Desired{Conditions: []corev1.NodeCondition{
				said("NetworkHeld", corev1.ConditionTrue, "WaitingForCNI", "waiting"), said("NetworkUnavailable", corev1.ConditionTrue, "HeldByHoldfast", "held"),
			}},
			[]Patch{status(`{"metadata":{"uid":"u1"},"status":{"conditions":[{"type":"NetworkUnavailable","status":"True","lastHeartbeatTime":"2026-08-01T12:00:00Z",` +
				`"lastTransitionTime":"2026-08-01T12:00:00Z","reason":"HeldByHoldfast","message":"held"}]}}`)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := node()
			got, err := Plan(n, c.desired, noon())
			require.NoError(t, err)
			require.Equal(t, texts(c.want), texts(got))
			require.Equal(t, node(), n, "the Node is only read")
		})
	}
}

func texts(patches []Patch) (all []string) {
	for _, p := range patches {
		all = append(all, string(p.Type)+" "+p.Subresource+" "+string(p.Body))
	}
	return all
}

func TestPlanNeedsAVersion(t *testing.T) {
	n := node()
	n.ResourceVersion = ""
	_, err := Plan(n, Desired{Unschedulable: new(true)}, noon())
	require.ErrorContains(t, err, `node "n1": it has no resourceVersion`)
}
