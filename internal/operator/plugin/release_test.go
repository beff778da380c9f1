package plugin

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/holdfast-dev/holdfast/internal/operator/cli"
	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

func testHoldAndRelease(t *testing.T, f *changeFixture) {
	// The policy holds this node.
	_, kubelet, err := f.AddNode(t.Context(), apiserver.NodeSpec{Name: "born-1", Ready: true})
	require.NoError(t, err)
	require.NoError(t, apiserver.Heartbeat(t.Context(), kubelet, "born-1", true))
	f.addOpenNode(t, "open-1")
	f.addOpenNode(t, "tainted-1", `{"metadata":{"annotations":{"holdfast.dev/hold":
		"{\"state\":\"held\",\"reason\":\"NewNode\",\"taint\":\"readiness.k8s.io/network\"}"}},
		"spec":{"taints":[{"key":"readiness.k8s.io/network","effect":"NoSchedule"},{"key":"mine","effect":"NoSchedule"}]}}`)
	f.addOpenNode(t, "broken-1", `{"metadata":{"annotations":{"holdfast.dev/hold":"{"}}}`)

	t.Run("foreign cordon, kept by hand", func(t *testing.T) { testForeignCordon(t, f) })
	t.Run("kept by hand, reboot", func(t *testing.T) { testReleaseAfterReboot(t, f) })
	t.Run("unreadable record", func(t *testing.T) {
		code, out := f.run(t, operator, "", "release", "broken-1", "--yes")
		require.Equal(t, cli.ExitFailure, code)
		require.Contains(t, out, "kubectl annotate node broken-1 holdfast.dev/hold-")
	})
	t.Run("kept by hand", func(t *testing.T) {
		apiserver.RequireBornHeld(t, f.Server)
		f.golden(t, "hold-held", "hold", "born-1", "--reason=it's a test")
		f.golden(t, "hold-again", "hold", "born-1", "--yes")
		f.golden(t, "hold-open", "hold", "open-1")
		node := f.node(t, "open-1")
		require.True(t, node.Spec.Unschedulable)
		require.Equal(t, "true", node.Annotations[readiness.KeepCordonedAnnotation])
		f.golden(t, "release-kept", "release", "open-1")
		node = f.node(t, "open-1")
		require.False(t, node.Spec.Unschedulable)
		require.NotContains(t, node.Annotations, readiness.KeepCordonedAnnotation)
	})
	t.Run("born held", func(t *testing.T) {
		apiserver.RequireBornHeld(t, f.Server)
		require.True(t, f.node(t, "born-1").Spec.Unschedulable)
		f.golden(t, "release-born-held", "release", "born-1")
		node := f.node(t, "born-1")
		require.False(t, node.Spec.Unschedulable)
		c := readiness.FindCondition(node, corev1.NodeNetworkUnavailable)
		require.NotNil(t, c)
		require.Equal(t, readiness.ReleasedByHand, c.Reason)
		// The agent records the override.
		d := readiness.Decide(node, readiness.Facts{BootID: node.Status.NodeInfo.BootID}, readiness.Policy{}, time.Now())
		require.Equal(t, readiness.Overridden, d.Record.State)
		require.Equal(t, readiness.EndedByHand, d.Record.Reason)
		require.False(t, d.Held)
	})
	t.Run("taint", func(t *testing.T) {
		f.golden(t, "release-taint", "release", "tainted-1")
		left := []corev1.Taint{{Key: "mine", Effect: corev1.TaintEffectNoSchedule}}
		require.Equal(t, left, f.node(t, "tainted-1").Spec.Taints)
	})
	t.Run("taint, kept by hand, hold has ended", func(t *testing.T) { testKeptTaint(t, f) })
}

// testReleaseAfterReboot releases a node that came up from a reboot without its network while it
// was kept closed. The agent then holds it, and a second release opens it.
func testReleaseAfterReboot(t *testing.T, f *changeFixture) {
	f.addOpenNode(t, "rebooted-1", `{"metadata":{"annotations":{"holdfast.dev/hold":
		"{\"state\":\"released\",\"bootID\":\"before\",\"reason\":\"NetworkReady\"}"}}}`)
	decide := func() readiness.Decision {
		d := readiness.Decide(f.node(t, "rebooted-1"), readiness.Facts{
			BootID: "after", Conflist: readiness.Conflist{Directory: "/etc/cni/net.d", Presence: readiness.Absent},
		}, readiness.Policy{}, time.Now())
		f.patchConditions(t, "rebooted-1", d.Conditions)
		return d
	}
	code, out := f.run(t, operator, "", "hold", "rebooted-1", "--yes")
	require.Equal(t, cli.ExitSuccess, code, out)
	require.Equal(t, readiness.CordonedByOthers, decide().Reason)

	f.golden(t, "release-rebooted", "release", "rebooted-1")
	held := decide()
	require.Equal(t, readiness.Rebooted, held.Record.Reason)
	require.True(t, held.Held)
	f.patch(t, "rebooted-1", fmt.Sprintf(`{"metadata":{"annotations":{"holdfast.dev/hold":%q}},
		"spec":{"unschedulable":true}}`, held.Record.Format()))
	code, out = f.run(t, operator, "", "release", "rebooted-1", "--yes")
	require.Equal(t, cli.ExitSuccess, code, out)
	ended := decide()
	require.Equal(t, readiness.EndedByHand, ended.Record.Reason)
	require.False(t, ended.Held)
}

// testForeignCordon cordons nodes as another client does that drains them, and sets the annotation
// by hand. release leaves such a cordon.
func testForeignCordon(t *testing.T, f *changeFixture) {
	const keep = `{"metadata":{"annotations":{"holdfast.dev/keep-cordoned":"x"}}}`
	const held = `{"metadata":{"annotations":{"holdfast.dev/hold":"{\"state\":\"held\",\"reason\":\"NewNode\"%s}"}}`
	for name, test := range map[string]struct {
		patch string
		code  int
		want  string
	}{
		"foreign-1": {keep, cli.ExitFailure, "Holdfast does not hold node foreign-1, and kubectl has cordoned it; " +
			"if it may take pods: kubectl uncordon foreign-1; kubectl annotate node foreign-1 holdfast.dev/keep-cordoned-"},
		"foreign-2": {
			fmt.Sprintf(held, "") + "}", cli.ExitFailure,
			"node foreign-2: kubectl has cordoned it since Holdfast did; that cordon stays",
		},
		"foreign-3": {
			fmt.Sprintf(held, `,\"taint\":\"readiness.k8s.io/network\"`) +
				`,"spec":{"taints":[{"key":"readiness.k8s.io/network","effect":"NoSchedule"}]}}`, cli.ExitSuccess,
			"The node stays cordoned: kubectl has cordoned it. It takes pods only after: kubectl uncordon foreign-3",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f.addOpenNode(t, name, test.patch)
			_, err := f.Kubectl(t.Context(), "cordon", name)
			require.NoError(t, err)
			code, held := f.run(t, operator, "", "hold", name, "--yes")
			require.Equal(t, cli.ExitSuccess, code, held)
			code, out := f.run(t, operator, "", "release", name, "--yes")
			require.True(t, f.node(t, name).Spec.Unschedulable, out)
			require.Contains(t, held, "kubectl has cordoned it. The owner of that cordon may remove it, and release does")
			require.Equal(t, test.code, code, out)
			require.Contains(t, out, test.want)
		})
	}
}

// testKeptTaint releases a node whose hold by taint has ended and has left the taint, without an
// agent that removes it later. Another client has cordoned it.
func testKeptTaint(t *testing.T, f *changeFixture) {
	f.addOpenNode(t, "kept-3", `{"metadata":{"annotations":{"holdfast.dev/keep-cordoned":"x","holdfast.dev/hold":
		"{\"state\":\"released\",\"reason\":\"KeptCordoned\",\"taint\":\"readiness.k8s.io/network\"}"}},
		"spec":{"taints":[{"key":"readiness.k8s.io/network","effect":"NoSchedule"}]}}`)
	_, err := f.Kubectl(t.Context(), "cordon", "kept-3")
	require.NoError(t, err)
	f.golden(t, "release-kept-taint", "release", "kept-3")
	node := f.node(t, "kept-3")
	require.True(t, node.Spec.Unschedulable)
	require.Empty(t, node.Spec.Taints)
}

// TestDrainDuringQuestion: a drain is allowed while the command waits for a yes. The command does
// not open the node before it has named the drain.
func TestDrainDuringQuestion(t *testing.T) {
	begun := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{
			readiness.HoldAnnotation: `{"state":"held","reason":"Rebooted"}`,
		}},
		Spec: corev1.NodeSpec{Unschedulable: true},
	}
	c := fake.NewClientBuilder().WithObjects(begun).Build()
	shown, err := planRelease(begun)
	require.NoError(t, err)
	drained, err := readiness.WithDrain(begun, time.Now())
	require.NoError(t, err)
	body := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, readiness.HoldAnnotation, drained)
	require.NoError(t, c.Patch(t.Context(), begun.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(body))))
	require.ErrorContains(t, writeNode(t.Context(), c, begun, shown, planRelease), "n1 has changed meanwhile")

	node, err := getNode(t.Context(), c, "n1")
	require.NoError(t, err)
	require.True(t, node.Spec.Unschedulable)
	shown, err = planRelease(node)
	require.NoError(t, err)
	require.Contains(t, strings.Join(shown.effects, "\n"), "(a drain of the node was allowed at ")
	require.NoError(t, writeNode(t.Context(), c, node, shown, planRelease))
	node, err = getNode(t.Context(), c, "n1")
	require.NoError(t, err)
	require.False(t, node.Spec.Unschedulable)
}
