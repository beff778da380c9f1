package manifests_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

func testBornHeld(t *testing.T, server *testenv.APIServer) {
	t.Run("at no instant schedulable", func(t *testing.T) { testNoInstant(t, server) })
	t.Run("marks for autoscalers", func(t *testing.T) { testBornMarks(t, server) })
	kubelets := rest.ImpersonationConfig{UserName: "system:node", Groups: []string{"system:nodes", "system:masters"}}
	for name, test := range map[string]struct {
		spec testenv.NodeSpec
		as   *rest.ImpersonationConfig
		held bool
	}{
		"a worker":                        {held: true},
		"ready as it registers":           {spec: testenv.NodeSpec{Ready: true}, held: true},
		"with taints of its own":          {spec: testenv.NodeSpec{Taints: []corev1.Taint{{Key: "example.org/gpu", Effect: "NoSchedule"}}}, held: true},
		"kubelets that share one name":    {as: &kubelets, held: true},
		"a value that opts out of none":   {spec: labelled("holdfast.dev/hold", "sometimes"), held: true},
		"another type of node":            {spec: labelled("type", "bare-metal"), held: true},
		"opted out":                       {spec: labelled("holdfast.dev/hold", "never")},
		"Windows":                         {spec: testenv.NodeSpec{OS: "windows"}},
		"a virtual kubelet":               {spec: labelled("type", "virtual-kubelet")},
		"Fargate":                         {spec: labelled("eks.amazonaws.com/compute-type", "fargate")},
		"created by who is no kubelet":    {as: &rest.ImpersonationConfig{UserName: "cloud-controller", Groups: []string{"system:masters"}}},
		"a kubelet's name, not its group": {as: &rest.ImpersonationConfig{UserName: "system:node:x", Groups: []string{"system:masters"}}},
	} {
		t.Run(name, func(t *testing.T) {
			test.spec.Name = "born"
			config, err := server.Kubelet(test.spec.Name)
			require.NoError(t, err)
			if test.as != nil {
				config = server.Admin()
				config.Impersonate = *test.as
			}
			node, err := testenv.RegisterNode(t.Context(), config, test.spec)
			require.NoError(t, err)
			t.Cleanup(func() { remove(t, server, node.Name) })
			if !test.held {
				require.False(t, node.Spec.Unschedulable)
				require.NotContains(t, node.Annotations, "holdfast.dev/hold")
				require.Nil(t, condition(node, corev1.NodeNetworkUnavailable))
				return
			}
			requireBornHeld(t, node)
			for _, taint := range test.spec.Taints {
				require.Contains(t, node.Spec.Taints, taint)
			}
		})
	}
	t.Run("somebody's cordon is not taken over", func(t *testing.T) {
		client := as(t, server, kubelets)
		node, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "born", Labels: map[string]string{"kubernetes.io/os": "linux"}},
			Spec:       corev1.NodeSpec{Unschedulable: true},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		defer remove(t, server, "born")
		require.NotContains(t, node.Annotations, "holdfast.dev/hold")
	})
	t.Run("a kubelet that reports nothing", func(t *testing.T) {
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
	t.Run("a boot ID that is none cannot forge the record", func(t *testing.T) {
		node, _, err := server.AddNode(t.Context(), testenv.NodeSpec{Name: "born", BootID: `","state":"released","x":"`})
		require.NoError(t, err)
		defer remove(t, server, "born")
		require.Equal(t, readiness.Held, parsedRecord(t, node).State)
		require.Empty(t, parsedRecord(t, node).BootID)
		require.NotContains(t, node.Annotations["holdfast.dev/hold"], `"x"`)
	})
}

// testBornMarks: a node that nobody uses yet must not be taken for one that is not needed, and what somebody has set on it
// is neither changed nor taken for ours.
func testBornMarks(t *testing.T, server *testenv.APIServer) {
	const autoscaler, karpenter, escalator, cast = "cluster-autoscaler.kubernetes.io/scale-down-disabled", "karpenter.sh/do-not-disrupt",
		"atlassian.com/no-delete", "autoscaling.cast.ai/removal-disabled"
	free, _, err := server.AddNode(t.Context(), testenv.NodeSpec{Name: "born"})
	require.NoError(t, err)
	remove(t, server, "born")
	require.ElementsMatch(t, []string{autoscaler, karpenter, escalator, cast}, parsedRecord(t, free).Marks)
	open := readiness.Decide(free, ready(free), readiness.Policy{}, time.Now())
	for _, key := range []string{autoscaler, karpenter, escalator, cast} {
		require.NotEmpty(t, free.Annotations[key])
		require.Contains(t, open.Annotations, key)
		require.Nil(t, open.Annotations[key], "the agent takes off what the policy has set")
	}

	taken, _, err := server.AddNode(t.Context(), testenv.NodeSpec{Name: "born", Annotations: map[string]string{autoscaler: "false", escalator: "mine"}})
	require.NoError(t, err)
	remove(t, server, "born")
	require.Equal(t, "false", taken.Annotations[autoscaler])
	require.Equal(t, "mine", taken.Annotations[escalator])
	require.ElementsMatch(t, []string{karpenter, cast}, parsedRecord(t, taken).Marks)
}

// ready is a host on which the network of a Node works, and no etcd.
func ready(node *corev1.Node) readiness.Facts {
	return readiness.Facts{
		BootID: node.Status.NodeInfo.BootID, Etcd: readiness.Absent,
		Conflist: readiness.Conflist{
			Presence: readiness.Present, Path: "/etc/cni/net.d/10-x.conflist", Plugins: []readiness.Plugin{{Type: "x", Executable: readiness.Present}},
		},
	}
}

// testNoInstant watches from before the creation: what a watcher is told is all that ever was. Many nodes join at once, each
// with its own kubelet, Ready from the first moment.
func testNoInstant(t *testing.T, server *testenv.APIServer) {
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
			_, kubelet, err := server.AddNode(ctx, testenv.NodeSpec{Name: name, Ready: true})
			if err != nil {
				return err
			}
			if err := testenv.Heartbeat(ctx, kubelet, name, true); err != nil {
				return err
			}
			_, err = nodes.Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+end+`":"true"}}}`), metav1.PatchOptions{})
			return err
		})
	}
	known, ended := map[string]bool{}, map[string]bool{}
	for len(ended) < many {
		event, open := <-seen.ResultChan()
		require.True(t, open, "the watch has ended; %d of %d nodes were seen to their end", len(ended), many)
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
	unavailable := condition(node, corev1.NodeNetworkUnavailable)
	require.NotNil(t, unavailable)
	require.Equal(t, corev1.ConditionTrue, unavailable.Status)
	require.Equal(t, "HeldByHoldfast", unavailable.Reason)
	require.Contains(t, unavailable.Message, "spec.nodeName="+node.Name)
	require.WithinDuration(t, time.Now(), unavailable.LastTransitionTime.Time, time.Minute)
	require.NotNil(t, condition(node, corev1.NodeReady), "the kubelet's conditions stay")
	record := parsedRecord(t, node)
	require.Equal(t, readiness.Held, record.State)
	require.Equal(t, readiness.NewNode, record.Reason)
	require.Empty(t, record.Taint)
	require.Equal(t, node.Status.NodeInfo.BootID, record.BootID)
	require.WithinDuration(t, time.Now(), record.Since, time.Minute)
}

// parsedRecord reads the record as the agent does.
func parsedRecord(t *testing.T, node *corev1.Node) readiness.Record {
	t.Helper()
	record, err := readiness.ParseRecord(node.Annotations[readiness.HoldAnnotation])
	require.NoError(t, err)
	return record
}

func labelled(key, value string) testenv.NodeSpec {
	return testenv.NodeSpec{Labels: map[string]string{key: value}}
}

func remove(t *testing.T, server *testenv.APIServer, node string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context()) // cleanups run after the end of the test's own context
	require.NoError(t, server.Client().CoreV1().Nodes().Delete(ctx, node, metav1.DeleteOptions{}))
}
