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

// applied returns the Node after a patch, worked out by the libraries that the API server uses.
func applied(t *testing.T, n *corev1.Node, p Patch) *corev1.Node {
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

// TestPlanOnRandomNodes checks that the plan makes what is desired, makes it once, and leaves everything else alone.
func TestPlanOnRandomNodes(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 1000 {
		n, d := randomNode(random), randomDesired(random)
		patches, err := Plan(n, d, noon())
		require.NoError(t, err)
		require.LessOrEqual(t, len(patches), 2)
		after := n
		for _, p := range patches {
			after = applied(t, after, p)
		}
		name := fmt.Sprintf("round %d: %+v on %+v", round, d, n)
		requireDesired(t, d, after, name)
		again, err := Plan(after, d, noon().Add(1))
		require.NoError(t, err)
		require.Empty(t, again, name)
		require.Equal(t, foreign(t, n, d), foreign(t, after, d), name)
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
		kept := slices.ContainsFunc(d.AddTaints, func(a corev1.Taint) bool { return a.Key == gone.Key && a.Effect == gone.Effect })
		found := slices.ContainsFunc(n.Spec.Taints, func(a corev1.Taint) bool { return a.Key == gone.Key && a.Effect == gone.Effect })
		require.Equal(t, kept, found, name)
	}
	for _, want := range d.Conditions {
		i := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == want.Type })
		require.GreaterOrEqual(t, i, 0, name)
		got := n.Status.Conditions[i]
		require.Equal(t, said(want.Type, want.Status, want.Reason, want.Message), said(got.Type, got.Status, got.Reason, got.Message), name)
		require.False(t, got.LastTransitionTime.IsZero(), name)
	}
}

// foreign returns the Node as text without what the desire names.
func foreign(t *testing.T, n *corev1.Node, d Desired) string {
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
		return slices.ContainsFunc(slices.Concat(d.AddTaints, d.RemoveTaints), func(b corev1.Taint) bool { return a.Key == b.Key && a.Effect == b.Effect })
	})
	n.Status.Conditions = slices.DeleteFunc(n.Status.Conditions, func(a corev1.NodeCondition) bool {
		return slices.ContainsFunc(d.Conditions, func(b corev1.NodeCondition) bool { return a.Type == b.Type })
	})
	// Strategic merge puts conditions that are new before those that stand; their order says nothing.
	slices.SortFunc(n.Status.Conditions, func(a, b corev1.NodeCondition) int { return len(a.Type) - len(b.Type) })
	text, err := json.Marshal(n)
	require.NoError(t, err)
	return string(text)
}

func randomNode(r *rand.Rand) *corev1.Node {
	n := node()
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
			n.Status.Conditions = append(n.Status.Conditions, stamped(kind, pick(r, corev1.ConditionTrue, corev1.ConditionFalse), pick(r, "R", "S"), "m"))
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
			d.Conditions = append(d.Conditions, said(kind, pick(r, corev1.ConditionTrue, corev1.ConditionFalse), pick(r, "R", "S"), "m"))
		}
	}
	return d
}

func randomTaints(r *rand.Rand) (taints []corev1.Taint) {
	for _, key := range []string{"t", "u", "v"} {
		for _, effect := range []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute} {
			if r.IntN(3) == 0 {
				taints = append(taints, taint(key, pick(r, "", "x"), effect))
			}
		}
	}
	r.Shuffle(len(taints), func(i, j int) { taints[i], taints[j] = taints[j], taints[i] })
	return taints
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }
