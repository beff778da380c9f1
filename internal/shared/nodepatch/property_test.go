package nodepatch

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// applyLocally returns the Node after a patch. It uses the libraries that the API server uses.
func applyLocally(t *testing.T, n *corev1.Node, p Patch) *corev1.Node {
	t.Helper()
	before, err := json.Marshal(n)
	require.NoError(t, err)
	var after []byte
	if p.Type == types.MergePatchType {
		require.Empty(t, p.Subresource)
		after, err = jsonpatch.MergePatch(before, p.Body)
	} else {
		require.Equal(t, "status", p.Subresource)
		after, err = strategicpatch.StrategicMergePatch(before, p.Body, corev1.Node{})
	}
	require.NoError(t, err)
	var result corev1.Node
	require.NoError(t, json.Unmarshal(after, &result))
	return &result
}

// TestPlanOnRandomNodes checks that a plan makes the Node as desired, that no second plan is
// needed, and that everything else stays unchanged.
func TestPlanOnRandomNodes(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 1000 {
		n, d := randomNode(random), randomDesired(random)
		patches, err := Plan(n, d, noon())
		require.NoError(t, err)
		require.LessOrEqual(t, len(patches), 2)
		after := n
		for _, p := range patches {
			after = applyLocally(t, after, p)
		}
		name := fmt.Sprintf("round %d: %+v on %+v", round, d, n)
		requireDesired(t, d, after, name)
		again, err := Plan(after, d, noon().Add(1))
		require.NoError(t, err)
		require.Empty(t, again, name)
		require.Equal(t, undesiredParts(t, n, d), undesiredParts(t, after, d), name)
	}
}

func requireDesired(t *testing.T, d Desired, n *corev1.Node, name string) {
	t.Helper()
	for _, keys := range []struct{ wanted, have any }{{d.Labels, n.Labels}, {d.Annotations, n.Annotations}} {
		have := keys.have.(map[string]string)
		for key, value := range keys.wanted.(map[string]*string) {
			got, found := have[key]
			require.Equal(t, value != nil, found, name)
			require.True(t, value == nil || *value == got, name)
		}
	}
	require.True(t, d.Unschedulable == nil || *d.Unschedulable == n.Spec.Unschedulable, name)
	for _, want := range d.AddTaints {
		require.Contains(t, n.Spec.Taints, want, name)
	}
	for _, gone := range d.RemoveTaints {
		require.Equal(t, containsTaint(d.AddTaints, gone), containsTaint(n.Spec.Taints, gone), name)
	}
	for _, want := range d.Conditions {
		i := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == want.Type })
		require.GreaterOrEqual(t, i, 0, name)
		got := n.Status.Conditions[i]
		require.Equal(t, newCondition(want.Type, want.Status, want.Reason, want.Message),
			newCondition(got.Type, got.Status, got.Reason, got.Message), name)
		require.False(t, got.LastTransitionTime.IsZero(), name)
	}
}

// containsTaint reports whether the list has a taint with the same key and effect.
func containsTaint(taints []corev1.Taint, t corev1.Taint) bool {
	return slices.ContainsFunc(taints, func(a corev1.Taint) bool { return a.Key == t.Key && a.Effect == t.Effect })
}

// undesiredParts returns the Node as text, without the parts that Desired names.
func undesiredParts(t *testing.T, n *corev1.Node, d Desired) string {
	t.Helper()
	n = n.DeepCopy()
	for key := range d.Labels {
		delete(n.Labels, key)
	}
	for key := range d.Annotations {
		delete(n.Annotations, key)
	}
	if d.Unschedulable != nil {
		n.Spec.Unschedulable = false
	}
	n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(a corev1.Taint) bool {
		return containsTaint(d.AddTaints, a) || containsTaint(d.RemoveTaints, a)
	})
	n.Status.Conditions = slices.DeleteFunc(n.Status.Conditions, func(a corev1.NodeCondition) bool {
		return slices.ContainsFunc(d.Conditions, func(b corev1.NodeCondition) bool { return a.Type == b.Type })
	})
	// A strategic merge puts new conditions before the others. Their order has no meaning.
	slices.SortFunc(n.Status.Conditions, func(a, b corev1.NodeCondition) int { return len(a.Type) - len(b.Type) })
	text, err := json.Marshal(n)
	require.NoError(t, err)
	return string(text)
}

func randomNode(r *rand.Rand) *corev1.Node {
	n := testNode()
	n.Labels, n.Annotations = map[string]string{"foreign": "l"}, map[string]string{"foreign": "a"}
	for _, key := range []string{"a", "b", "c"} {
		if r.IntN(2) == 0 {
			n.Labels[key] = pick(r, "", "x", "y")
		}
		if r.IntN(2) == 0 {
			n.Annotations[key] = pick(r, "", "x", "y")
		}
	}
	n.Spec.Unschedulable = r.IntN(2) == 0
	n.Spec.Taints = randomTaints(r)
	n.Status.Conditions = nil
	for _, kind := range []corev1.NodeConditionType{"A", "BB", "CCC"} {
		if r.IntN(2) == 0 {
			n.Status.Conditions = append(n.Status.Conditions, oldCondition(kind, randomStatus(r), pick(r, "R", "S"), "m"))
		}
	}
	return n
}

func randomDesired(r *rand.Rand) Desired {
	d := Desired{AddTaints: randomTaints(r), RemoveTaints: randomTaints(r), StatusFirst: r.IntN(2) == 0}
	d.Labels, d.Annotations = map[string]*string{}, map[string]*string{}
	for _, key := range []string{"a", "b", "c"} {
		if r.IntN(2) == 0 {
			d.Labels[key] = pick(r, nil, new(""), new("x"), new("y"))
		}
		if r.IntN(2) == 0 {
			d.Annotations[key] = pick(r, nil, new(""), new("x"), new("y"))
		}
	}
	d.Unschedulable = pick(r, nil, new(true), new(false))
	for _, kind := range []corev1.NodeConditionType{"A", "BB", "CCC", "DDDD"} {
		if r.IntN(2) == 0 {
			d.Conditions = append(d.Conditions, newCondition(kind, randomStatus(r), pick(r, "R", "S"), "m"))
		}
	}
	return d
}

func randomStatus(r *rand.Rand) corev1.ConditionStatus {
	return pick(r, corev1.ConditionTrue, corev1.ConditionFalse)
}

func randomTaints(r *rand.Rand) (taints []corev1.Taint) {
	for _, key := range []string{"t", "u", "v"} {
		for _, effect := range []corev1.TaintEffect{noSchedule, noExecute} {
			if r.IntN(3) == 0 {
				taints = append(taints, newTaint(key, pick(r, "", "x"), effect))
			}
		}
	}
	r.Shuffle(len(taints), func(i, j int) { taints[i], taints[j] = taints[j], taints[i] })
	return taints
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }
