package readiness

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

func TestDecideByTaint(t *testing.T) {
	const key = "readiness.k8s.io/holdfast"
	policy := Policy{TaintKey: key}
	own := corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule}
	heldByTaint := annotated(HoldAnnotation, Record{State: Held, BootID: thisBoot, Reason: NewNode, Taint: key}.Format())

	d := Decide(node(recorded(Released, otherBoot, NetworkReady), cordoned), closed(), policy, noon())
	require.Equal(t, []corev1.Taint{own}, d.AddTaints, "somebody's cordon does not stand in for our taint")
	require.Equal(t, key, d.Record.Taint)
	require.Nil(t, d.Unschedulable)

	d = Decide(node(heldByTaint, tainted(key), conditioned(corev1.NodeNetworkUnavailable, corev1.ConditionFalse, CiliumIsUp)), closed(), policy, noon())
	require.Len(t, d.Conditions, 1, "NetworkUnavailable is no part of a hold by taint")
	require.True(t, d.Held)

	held := node(heldByTaint, cordoned, tainted(corev1.TaintNodeUnschedulable), tainted(key), tainted("dedicated"))
	for name, p := range map[string]Policy{"same policy": policy, "policy has become cordon": {}} {
		d = Decide(held, ready(), p, noon())
		require.Equal(t, []corev1.Taint{own}, d.RemoveTaints, name)
		require.Nil(t, d.Unschedulable, "%s: the cordon is somebody else's", name)
		require.Equal(t, Released, d.Record.State, name)
		require.Empty(t, d.Record.Taint, name)
	}

	byCordon := recorded(Held, thisBoot, NewNode)
	d = Decide(node(byCordon, tainted(key), cordoned, tainted("dedicated")), ready(), policy, noon())
	require.False(t, *d.Unschedulable, "a record without a taint is a hold by cordon, whatever taint the kubelet registered with")
	require.Equal(t, []corev1.Taint{own}, d.RemoveTaints, "and the policy's taint is nobody else's")

	d = Decide(node(byCordon, cordoned), ready(), policy, noon())
	require.False(t, *d.Unschedulable, "held by cordon before the policy became taint")
	require.Empty(t, d.RemoveTaints)

	d = Decide(node(byCordon, tainted(key)), closed(), policy, noon())
	require.Equal(t, Overridden, d.Record.State, "somebody uncordoned it")
	require.Equal(t, []corev1.Taint{own}, d.RemoveTaints, "and would see no pod come")

	d = Decide(node(heldByTaint), closed(), policy, noon())
	require.Equal(t, Overridden, d.Record.State)
}

// TestNodeThatRegisteredWithTheTaint follows the recipe of manifests/overlays/without-born-held.
func TestNodeThatRegisteredWithTheTaint(t *testing.T) {
	const key = "holdfast.dev/held"
	policy := Policy{TaintKey: key, HoldUnrecorded: true}
	idle := func(*corev1.Node) {}
	for name, status := range map[string]corev1.ConditionStatus{"not Ready": corev1.ConditionFalse, "Ready": corev1.ConditionTrue} {
		t.Run(name, func(t *testing.T) {
			n := node(tainted(key), tainted("dedicated"), conditioned(corev1.NodeReady, status, "Kubelet"))
			waiting, err := settle(&world{facts: closed(), policy: policy}, n, idle)
			require.NoError(t, err)
			marks := slices.Sorted(maps.Keys(scaleDownMarks()))
			require.Equal(t, Record{State: Held, BootID: thisBoot, Since: noon(), Reason: NewNode, Taint: key, Marks: marks}.Format(), waiting.Annotations[HoldAnnotation])
			require.True(t, hasTaint(waiting, key))
			require.False(t, waiting.Spec.Unschedulable)
			require.Equal(t, corev1.ConditionTrue, condition(waiting, NetworkHeld).Status)
			for how, begin := range map[string]*corev1.Node{"held first": waiting, "open at first sight": n} {
				end, err := settle(&world{facts: ready(), policy: policy}, begin, idle)
				require.NoError(t, err, how)
				require.False(t, hasTaint(end, key), how)
				require.True(t, hasTaint(end, "dedicated"), how)
				require.Equal(t, Record{State: Released, BootID: thisBoot, Since: noon(), Reason: NetworkReady}.Format(), end.Annotations[HoldAnnotation], how)
			}
		})
	}
	d := Decide(node(tainted(key)), closed(), Policy{}, noon())
	require.Equal(t, FirstSeen, d.Record.Reason, "without the key in the policy the taint is somebody else's")
	require.Empty(t, d.RemoveTaints)
}

// TestTaintThatIsPutBackIsTakenOff: Karpenter restores the startup taints of a NodePool when it registers a Node, also one
// that was released before (karpenter#1772).
func TestTaintThatIsPutBackIsTakenOff(t *testing.T) {
	const key = "readiness.k8s.io/holdfast"
	policy := Policy{TaintKey: key}
	own := []corev1.Taint{{Key: key, Effect: corev1.TaintEffectNoSchedule}}
	for name, c := range map[string]struct {
		node  *corev1.Node
		facts Facts
	}{
		"after the release":                 {node(recorded(Released, thisBoot, NetworkReady), tainted(key)), ready()},
		"after the release, gates closed":   {node(recorded(Released, thisBoot, NetworkReady), tainted(key)), closed()},
		"after an override":                 {node(recorded(Overridden, thisBoot, EndedByHand), tainted(key)), closed()},
		"where the gates do not fit":        {node(recorded(Released, thisBoot, GatesDoNotFit), tainted(key)), closed()},
		"in another boot, gates open":       {node(recorded(Released, otherBoot, NetworkReady), tainted(key)), ready()},
		"on a node that is to be left open": {node(recorded(Released, otherBoot, NetworkReady), tainted(key), exempt), closed()},
	} {
		t.Run(name, func(t *testing.T) {
			d := Decide(c.node, c.facts, policy, noon())
			require.Equal(t, own, d.RemoveTaints)
			require.False(t, d.Held)
			require.Nil(t, d.Unschedulable)
		})
	}

	d := Decide(node(recorded(Released, otherBoot, NetworkReady), tainted(key)), closed(), policy, noon())
	require.Equal(t, Held, d.Record.State, "in another boot with gates closed it is the hold that is called for")
	require.Equal(t, key, d.Record.Taint)
	require.Empty(t, d.RemoveTaints)

	d = Decide(node(recorded(Released, thisBoot, NetworkReady), tainted(key)), ready(), Policy{}, noon())
	require.Empty(t, d.RemoveTaints, "without the key in the policy the taint is somebody else's")
}
