package manifests_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/internal/testenv"
)

func testBornHeld(t *testing.T, server *testenv.APIServer) {
	t.Run("at no instant schedulable", func(t *testing.T) { testNoInstant(t, server) })
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
		require.JSONEq(t, `{"state":"held","reason":"NewNode"}`, node.Annotations["holdfast.dev/hold"])
	})
	t.Run("a boot ID that is none cannot forge the record", func(t *testing.T) {
		node, _, err := server.AddNode(t.Context(), testenv.NodeSpec{Name: "born", BootID: `","state":"released","x":"`})
		require.NoError(t, err)
		defer remove(t, server, "born")
		record := holdRecord(t, node)
		require.Equal(t, "held", record["state"])
		require.NotContains(t, record, "bootID")
		require.NotContains(t, record, "x")
	})
}

// testNoInstant watches from before the creation: what a watcher is told is all that ever was.
func testNoInstant(t *testing.T, server *testenv.APIServer) {
	nodes := server.Client().CoreV1().Nodes()
	list, err := nodes.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	seen, err := nodes.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion, FieldSelector: "metadata.name=watched"})
	require.NoError(t, err)
	defer seen.Stop()

	created, kubelet, err := server.AddNode(t.Context(), testenv.NodeSpec{Name: "watched", Ready: true})
	require.NoError(t, err)
	defer remove(t, server, "watched")
	require.NoError(t, testenv.Heartbeat(t.Context(), kubelet, "watched", true))
	end := []byte(`{"metadata":{"annotations":{"example.org/end":"true"}}}`)
	_, err = nodes.Patch(t.Context(), "watched", types.MergePatchType, end, metav1.PatchOptions{})
	require.NoError(t, err)

	for first := true; ; first = false {
		select {
		case event := <-seen.ResultChan():
			node, ok := event.Object.(*corev1.Node)
			require.True(t, ok, "%v", event.Object)
			require.Equal(t, first, event.Type == watch.Added)
			requireBornHeld(t, node)
			require.Equal(t, created.Status.NodeInfo.BootID, holdRecord(t, node)["bootID"])
			if node.Annotations["example.org/end"] != "" {
				return
			}
		case <-time.After(soon):
			require.Fail(t, "the watch is silent")
		}
	}
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
	record := holdRecord(t, node)
	require.Equal(t, "held", record["state"])
	require.Equal(t, "NewNode", record["reason"])
	require.Equal(t, node.Status.NodeInfo.BootID, record["bootID"])
	since, err := time.Parse(time.RFC3339, record["since"])
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), since, time.Minute)
}

func holdRecord(t *testing.T, node *corev1.Node) map[string]string {
	t.Helper()
	record := map[string]string{}
	require.NoError(t, json.Unmarshal([]byte(node.Annotations["holdfast.dev/hold"]), &record))
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
