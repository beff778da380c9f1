package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/pkg/machine"
)

// testMachines deletes Machines and NodeClaims, and plays the part of Cluster API's controller.
func testMachines(t *testing.T, f *fixture) {
	f.startReady(t, []string{"--cluster-api", "--karpenter", "--observer-wait=200ms"})
	machines, claims := map[string]*unstructured.Unstructured{}, map[string]*unstructured.Unstructured{}
	nodes := map[string]*corev1.Node{}
	for name, labels := range map[string]map[string]string{"machine-etcd": etcdLabel(), "machine-worker": nil} {
		providerID := "cloud:///" + name
		var err error
		nodes[name], err = apiserver.RegisterNode(t.Context(), f.Admin(), apiserver.NodeSpec{
			Name: name, Labels: labels, Ready: true, ProviderID: providerID,
		})
		require.NoError(t, err)
		m := newObject(machine.ClusterAPIGroup+"/v1beta1", machine.KindMachine, name)
		m.SetNamespace(metav1.NamespaceDefault)
		m.SetFinalizers([]string{"machine.cluster.x-k8s.io"})
		m.Object["spec"] = map[string]any{"providerID": providerID}
		require.NoError(t, f.api.Create(t.Context(), m))
		claim := newObject(machine.KarpenterGroup+"/v1", machine.KindNodeClaim, name)
		require.NoError(t, f.api.Create(t.Context(), claim))
		f.patchStatus(t, claim, `{"status":{"providerID":"`+providerID+`"}}`)
		machines[name], claims[name] = m, claim
	}
	isHooked := func(name string) bool {
		require.NoError(t, f.api.Get(t.Context(), client.ObjectKeyFromObject(machines[name]), machines[name]))
		return machines[name].GetAnnotations()[machine.HookAnnotation] != ""
	}
	require.Eventually(t, func() bool { return isHooked("machine-etcd") }, soon, poll)

	for _, o := range []client.Object{machines["machine-etcd"], claims["machine-etcd"]} {
		require.Eventually(t, func() bool {
			err := f.api.Delete(t.Context(), o, client.DryRunAll)
			return err != nil && strings.Contains(err.Error(), "denied the request") &&
				strings.Contains(err.Error(), " stands for node machine-etcd: both have the provider ID cloud:///machine-etcd.")
		}, soon, 200*time.Millisecond, o.GetName())
		require.ErrorContains(t, f.api.Delete(t.Context(), o), "denied the request")
	}
	out, err := f.Kubectl(t.Context(), "delete", "--wait=false", "machine/machine-worker", "nodeclaim/machine-worker")
	require.NoError(t, err)
	require.NotContains(t, out, "Warning")
	require.False(t, isHooked("machine-worker"))

	// The Machine is deleted while no webhook answers. Its hook keeps the machine.
	require.NoError(t, f.service.Close())
	require.NoError(t, f.api.Delete(t.Context(), machines["machine-etcd"]), "fails open")
	f.patchStatus(t, machines["machine-etcd"],
		`{"status":{"deletion":{"waitForPreTerminateHookStartTime":"2026-11-22T00:00:00Z"}}}`)
	isReported := func(message string) func() bool {
		return func() bool { return strings.Contains(f.machineEvents(t), message) }
	}
	require.Eventually(t, isReported("the machine may not end: "), soon, poll)
	require.True(t, isHooked("machine-etcd"))

	// With break-glass on the Node it goes.
	f.breakGlass(t, nodes["machine-etcd"])
	require.Eventually(t, func() bool { return !isHooked("machine-etcd") }, soon, poll)
	require.Eventually(t, isReported("the machine may end: "), soon, poll)
}

const poll = 50 * time.Millisecond

func newObject(apiVersion, kind, name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{}}
	o.SetAPIVersion(apiVersion)
	o.SetKind(kind)
	o.SetName(name)
	return o
}

func (f *fixture) patchStatus(t *testing.T, o client.Object, patch string) {
	t.Helper()
	require.NoError(t, f.api.Status().Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(patch))))
}

// machineEvents returns the messages of the events on Machines.
func (f *fixture) machineEvents(t *testing.T) string {
	t.Helper()
	events, err := f.Client().CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	var messages []string
	for _, e := range events.Items {
		if e.InvolvedObject.Kind == machine.KindMachine {
			messages = append(messages, e.Message)
		}
	}
	return strings.Join(messages, "\n")
}
