package manifests_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// TestTaintMode holds each overlay that holds by taint against a real API server: what the policy writes, and that the agent
// may undo it.
func TestTaintMode(t *testing.T) {
	server := testenv.NewAPIServer(t)
	for _, overlay := range overlays(t) {
		if key := promises()[overlay].taintKey; key != "" {
			require.NoError(t, server.Apply(t.Context(), overlay))
			t.Run(overlay, func(t *testing.T) { testTaintMode(t, server, key) })
		}
	}
}

func testTaintMode(t *testing.T, server *testenv.APIServer, key string) {
	own := corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule}
	gpu := corev1.Taint{Key: "example.org/gpu", Effect: corev1.TaintEffectNoSchedule}
	evicting := corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute}
	for name, c := range map[string]struct{ with, want []corev1.Taint }{
		"no taints":               {nil, []corev1.Taint{own}},
		"others":                  {[]corev1.Taint{gpu}, []corev1.Taint{gpu, own}},
		"the kubelet sets it too": {[]corev1.Taint{own, gpu}, []corev1.Taint{own, gpu}},
		"another effect":          {[]corev1.Taint{evicting}, []corev1.Taint{evicting, own}},
	} {
		t.Run(name, func(t *testing.T) {
			node, _, err := server.AddNode(t.Context(), testenv.NodeSpec{Name: "born", Ready: true, Taints: c.with})
			require.NoError(t, err)
			defer remove(t, server, "born")
			// NodeRestriction and the like add taints of their own, such as not-ready.
			foreign := func(t corev1.Taint) bool { return strings.HasPrefix(t.Key, "node.kubernetes.io/") }
			require.Equal(t, c.want, slices.DeleteFunc(slices.Clone(node.Spec.Taints), foreign))
			require.False(t, node.Spec.Unschedulable, "the cordon is people's alone")
			require.Nil(t, condition(node, corev1.NodeNetworkUnavailable))
			record := parsedRecord(t, node)
			require.Equal(t, readiness.Held, record.State)
			require.Equal(t, key, record.Taint)
			require.Equal(t, node.Status.NodeInfo.BootID, record.BootID)
			require.Len(t, record.Marks, 4)

			release, err := json.Marshal(map[string]any{
				"metadata": map[string]any{"annotations": map[string]string{"holdfast.dev/hold": `{"state":"released"}`}},
				"spec":     map[string]any{"taints": slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t == own })},
			})
			require.NoError(t, err)
			agent := clientOf(t, serviceAccount(t, server, "holdfast-agent", "born"))
			node, err = agent.CoreV1().Nodes().Patch(t.Context(), "born", types.MergePatchType, release, metav1.PatchOptions{})
			require.NoError(t, err)
			require.NotContains(t, node.Spec.Taints, own)
		})
	}
}
