package manifests_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/pkg/autoscaler"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

func testBornHeld(t *testing.T, server *apiserver.Server) {
	apiserver.RequireBornHeld(t, server)
	t.Run("never schedulable", func(t *testing.T) { testNeverSchedulable(t, server) })
	t.Run("marks", func(t *testing.T) { testBornMarks(t, server) })
	t.Run("starved flannel", func(t *testing.T) { testStarvedFlannel(t, server) })
	kubelets := rest.ImpersonationConfig{UserName: "system:node", Groups: []string{"system:nodes", "system:masters"}}
	systemMasters := []string{"system:masters"}
	for name, test := range map[string]struct {
		spec apiserver.NodeSpec
		as   *rest.ImpersonationConfig
		held bool
	}{
		"worker":                {held: true},
		"Ready at once":         {spec: apiserver.NodeSpec{Ready: true}, held: true},
		"taints of its own":     {spec: apiserver.NodeSpec{Taints: []corev1.Taint{gpu()}}, held: true},
		"shared kubelet name":   {as: &kubelets, held: true},
		"unknown opt-out":       {spec: labelled("holdfast.dev/hold", "sometimes"), held: true},
		"other node type":       {spec: labelled("type", "bare-metal"), held: true},
		"opted out":             {spec: labelled("holdfast.dev/hold", "never")},
		"Windows":               {spec: apiserver.NodeSpec{OS: "windows"}},
		"virtual kubelet":       {spec: labelled("type", "virtual-kubelet")},
		"Fargate":               {spec: labelled("eks.amazonaws.com/compute-type", "fargate")},
		"cloud controller":      {as: &rest.ImpersonationConfig{UserName: "cloud-controller", Groups: systemMasters}},
		"kubelet without group": {as: &rest.ImpersonationConfig{UserName: "system:node:x", Groups: systemMasters}},
	} {
		t.Run(name, func(t *testing.T) {
			test.spec.Name = "born"
			config, err := server.Kubelet(test.spec.Name)
			require.NoError(t, err)
			if test.as != nil {
				config = server.Admin()
				config.Impersonate = *test.as
			}
			node, err := apiserver.RegisterNode(t.Context(), config, test.spec)
			require.NoError(t, err)
			t.Cleanup(func() { remove(t, server, node.Name) })
			if !test.held {
				require.False(t, node.Spec.Unschedulable)
				require.NotContains(t, node.Annotations, "holdfast.dev/hold")
				require.Nil(t, readiness.FindCondition(node, corev1.NodeNetworkUnavailable))
				return
			}
			requireBornHeld(t, node)
			for _, taint := range test.spec.Taints {
				require.Contains(t, node.Spec.Taints, taint)
			}
		})
	}
	t.Run("existing cordon", func(t *testing.T) {
		client := as(t, server, kubelets)
		node, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "born", Labels: map[string]string{"kubernetes.io/os": "linux"}},
			Spec:       corev1.NodeSpec{Unschedulable: true},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		defer remove(t, server, "born")
		require.NotContains(t, node.Annotations, "holdfast.dev/hold")
	})
	t.Run("empty status", func(t *testing.T) {
		client := as(t, server, kubelets)
		node, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "born", Labels: map[string]string{"kubernetes.io/os": "linux"}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		defer remove(t, server, "born")
		require.True(t, node.Spec.Unschedulable)
		record := parsedRecord(t, node)
		record.Marks = nil
		require.Equal(t, readiness.Record{State: readiness.Held, Reason: readiness.NewNode}, record)
	})
	t.Run("forged boot ID", func(t *testing.T) {
		spec := apiserver.NodeSpec{Name: "born", BootID: `","state":"released","x":"`}
		node, _, err := server.AddNode(t.Context(), spec)
		require.NoError(t, err)
		defer remove(t, server, "born")
		require.Equal(t, readiness.Held, parsedRecord(t, node).State)
		require.Empty(t, parsedRecord(t, node).BootID)
		require.NotContains(t, node.Annotations["holdfast.dev/hold"], `"x"`)
	})
}

// testBornMarks checks that a new node gets the marks that keep autoscalers from removing it
// as unneeded: those that an agent sets. The policy does not change annotations that the Node has
// already, and does not list them in the record.
func testBornMarks(t *testing.T, server *apiserver.Server) {
	free, _, err := server.AddNode(t.Context(), apiserver.NodeSpec{Name: "born"})
	require.NoError(t, err)
	remove(t, server, "born")
	require.ElementsMatch(t, autoscaler.Keys(), parsedRecord(t, free).Marks)
	open := readiness.Decide(free, ready(free), readiness.Policy{}, time.Now())
	for key, value := range autoscaler.Annotations("held by Holdfast until its network works") {
		require.Equal(t, value, free.Annotations[key], key)
		require.Contains(t, open.Annotations, key)
		require.Nil(t, open.Annotations[key], "the agent removes the marks that the policy has set")
	}

	existing := map[string]string{autoscaler.ClusterAutoscaler: "false", autoscaler.Escalator: "mine"}
	taken, _, err := server.AddNode(t.Context(), apiserver.NodeSpec{Name: "born", Annotations: existing})
	require.NoError(t, err)
	remove(t, server, "born")
	require.Subset(t, taken.Annotations, existing)
	require.ElementsMatch(t, []string{autoscaler.Karpenter, autoscaler.CastAI}, parsedRecord(t, taken).Marks)
}

// ready returns the facts of a host with a working network and without etcd.
func ready(node *corev1.Node) readiness.Facts {
	return readiness.Facts{
		BootID: node.Status.NodeInfo.BootID, Etcd: readiness.Absent,
		Conflist: readiness.Conflist{
			Presence: readiness.Present, Path: "/etc/cni/net.d/10-x.conflist",
			Plugins: []readiness.Plugin{{Type: "x", Executable: readiness.Present}},
		},
	}
}

// testNeverSchedulable watches Nodes from before their creation. A watch delivers every state
// of an object. Many nodes join in parallel, each Ready at once and with its own kubelet.
func testNeverSchedulable(t *testing.T, server *apiserver.Server) {
	const many, atOnce, end = 64, 8, "example.org/end"
	nodes := server.Client().CoreV1().Nodes()
	list, err := nodes.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 3*soon)
	defer cancel()
	seen, err := nodes.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	require.NoError(t, err)
	defer seen.Stop()

	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce + 1)
	for i := range many {
		name := fmt.Sprintf("watched-%d", i)
		defer remove(t, server, name)
		group.Go(func() error {
			_, kubelet, err := server.AddNode(ctx, apiserver.NodeSpec{Name: name, Ready: true})
			if err != nil {
				return err
			}
			if err := apiserver.Heartbeat(ctx, kubelet, name, true); err != nil {
				return err
			}
			last := []byte(annotations(`{"` + end + `":"true"}`))
			_, err = nodes.Patch(ctx, name, types.MergePatchType, last, metav1.PatchOptions{})
			return err
		})
	}
	known, ended := map[string]bool{}, map[string]bool{}
	for len(ended) < many {
		event, open := <-seen.ResultChan()
		require.True(t, open, "the watch has ended after %d of %d nodes", len(ended), many)
		node, ok := event.Object.(*corev1.Node)
		require.True(t, ok, "%v", event.Object)
		require.Equal(t, !known[node.Name], event.Type == watch.Added)
		known[node.Name] = true
		requireBornHeld(t, node)
		if node.Annotations[end] != "" {
			ended[node.Name] = true
		}
	}
	require.NoError(t, group.Wait())
}

func requireBornHeld(t *testing.T, node *corev1.Node) {
	t.Helper()
	require.True(t, node.Spec.Unschedulable)
	unavailable := readiness.FindCondition(node, corev1.NodeNetworkUnavailable)
	require.NotNil(t, unavailable)
	require.Equal(t, corev1.ConditionTrue, unavailable.Status)
	require.Equal(t, "HeldByHoldfast", unavailable.Reason)
	require.Contains(t, unavailable.Message, "spec.nodeName="+node.Name)
	require.WithinDuration(t, time.Now(), unavailable.LastTransitionTime.Time, time.Minute)
	require.NotNil(t, readiness.FindCondition(node, corev1.NodeReady), "the kubelet's conditions stay")
	record := parsedRecord(t, node)
	require.Equal(t, readiness.Held, record.State)
	require.Equal(t, readiness.NewNode, record.Reason)
	require.Empty(t, record.Taint)
	require.Equal(t, node.Status.NodeInfo.BootID, record.BootID)
	require.WithinDuration(t, time.Now(), record.Since, time.Minute)
}

// parsedRecord parses the record with the agent's parser.
func parsedRecord(t *testing.T, node *corev1.Node) readiness.Record {
	t.Helper()
	record, err := readiness.ParseRecord(node.Annotations[readiness.HoldAnnotation])
	require.NoError(t, err)
	return record
}

func labelled(key, value string) apiserver.NodeSpec {
	return apiserver.NodeSpec{Labels: map[string]string{key: value}}
}

func gpu() corev1.Taint {
	return corev1.Taint{Key: "example.org/gpu", Effect: corev1.TaintEffectNoSchedule}
}

// testTaintMode tests each overlay that holds by a taint: the write of the policy, and that
// the agent may remove the taint.
func testTaintMode(t *testing.T, server *apiserver.Server) {
	apiserver.RequireBornHeld(t, server)
	for _, overlay := range overlays(t) {
		if key := taintKeys()[overlay]; key != "" {
			require.NoError(t, server.Apply(t.Context(), withComponent(t, overlay, bornHeld)))
			t.Run(overlay, func(t *testing.T) { testTaintKey(t, server, key) })
		}
	}
}

func testTaintKey(t *testing.T, server *apiserver.Server, key string) {
	own := corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule}
	evicting := corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute}
	for name, c := range map[string]struct{ with, want []corev1.Taint }{
		"no taints":      {nil, []corev1.Taint{own}},
		"other taint":    {[]corev1.Taint{gpu()}, []corev1.Taint{gpu(), own}},
		"set by kubelet": {[]corev1.Taint{own, gpu()}, []corev1.Taint{own, gpu()}},
		"other effect":   {[]corev1.Taint{evicting}, []corev1.Taint{evicting, own}},
	} {
		t.Run(name, func(t *testing.T) {
			node, _, err := server.AddNode(t.Context(), apiserver.NodeSpec{Name: "born", Ready: true, Taints: c.with})
			require.NoError(t, err)
			defer remove(t, server, "born")
			// Plugins of the API server add taints such as not-ready.
			foreign := func(t corev1.Taint) bool { return strings.HasPrefix(t.Key, "node.kubernetes.io/") }
			require.Equal(t, c.want, slices.DeleteFunc(slices.Clone(node.Spec.Taints), foreign))
			require.False(t, node.Spec.Unschedulable, "only people use the cordon")
			require.Nil(t, readiness.FindCondition(node, corev1.NodeNetworkUnavailable))
			record := parsedRecord(t, node)
			require.Equal(t, readiness.Held, record.State)
			require.Equal(t, key, record.Taint)
			require.Equal(t, node.Status.NodeInfo.BootID, record.BootID)
			require.Len(t, record.Marks, 4)

			isOwn := func(t corev1.Taint) bool { return t == own }
			release, err := json.Marshal(map[string]any{
				"metadata": map[string]any{"annotations": map[string]string{"holdfast.dev/hold": `{"state":"released"}`}},
				"spec":     map[string]any{"taints": slices.DeleteFunc(node.Spec.Taints, isOwn)},
			})
			require.NoError(t, err)
			agent := serviceAccount(t, server, "holdfast-agent", "born").CoreV1().Nodes()
			node, err = agent.Patch(t.Context(), "born", types.MergePatchType, release, metav1.PatchOptions{})
			require.NoError(t, err)
			require.NotContains(t, node.Spec.Taints, own)
		})
	}
}
