package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/internal/testenv/process"
	"github.com/holdfast-dev/holdfast/pkg/machine"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// TestMachines deletes Machines and NodeClaims with the components installed, and plays the part
// of Cluster API's controller.
func TestMachines(t *testing.T) {
	f := newFixture(t, []string{"--cluster-api", "--karpenter", "--observer-wait=200ms"})
	apiserver.InstallMachines(t, f.Server)
	f.installMachineComponents(t)
	etcd := f.addMachineNode(t, "etcd-1", etcdLabel())
	f.addMachineNode(t, "worker-1", nil)
	for _, name := range []string{"etcd-1", "worker-1"} {
		f.apply(t, fmt.Sprintf(`{"apiVersion":"cluster.x-k8s.io/v1beta1","kind":"Machine","metadata":{"namespace":"default",
			"name":%q,"finalizers":["machine.cluster.x-k8s.io"]},"spec":{"providerID":"cloud:///%s"}}`, name, name))
		f.apply(t, fmt.Sprintf(`{"apiVersion":"karpenter.sh/v1","kind":"NodeClaim","metadata":{"name":%q}}`, name))
		f.patchStatus(t, "nodeclaims/"+name, fmt.Sprintf(`{"status":{"providerID":"cloud:///%s"}}`, name))
	}
	object := func(group, version, kind, name string) *unstructured.Unstructured {
		o := &unstructured.Unstructured{}
		o.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: version, Kind: kind})
		o.SetName(name)
		return o
	}
	ofMachine := func(name string) *unstructured.Unstructured {
		m := object(machine.ClusterAPIGroup, "v1beta1", machine.KindMachine, name)
		m.SetNamespace(metav1.NamespaceDefault)
		return m
	}
	hooks := func(name string) map[string]string {
		m := ofMachine(name)
		require.NoError(t, f.api.Get(t.Context(), client.ObjectKeyFromObject(m), m))
		return m.GetAnnotations()
	}
	isHooked := func() bool { return hooks("etcd-1")[machine.HookAnnotation] != "" }
	require.Eventually(t, isHooked, soon, poll)

	// The certificate authority is in the entries that were added while the webhook ran.
	for _, o := range []*unstructured.Unstructured{
		ofMachine("etcd-1"), object(machine.KarpenterGroup, "v1", machine.KindNodeClaim, "etcd-1"),
	} {
		require.Eventually(t, func() bool {
			err := f.api.Delete(t.Context(), o, client.DryRunAll)
			return err != nil && strings.Contains(err.Error(), "denied the request") &&
				strings.Contains(err.Error(), " stands for node etcd-1: both have the provider ID cloud:///etcd-1.")
		}, soon, 200*time.Millisecond, o.GetKind())
		require.ErrorContains(t, f.api.Delete(t.Context(), o), "denied the request")
	}
	for _, name := range []string{"machines/worker-1", "nodeclaims/worker-1"} {
		out, err := f.Kubectl(t.Context(), "delete", "--wait=false", name)
		require.NoError(t, err)
		require.NotContains(t, out, "Warning")
	}
	require.NotContains(t, hooks("worker-1"), machine.HookAnnotation)

	// The Machine is deleted while no webhook answers. Its hook keeps the machine.
	require.NoError(t, f.service.Close())
	require.NoError(t, f.api.Delete(t.Context(), ofMachine("etcd-1")), "fails open")
	f.patchStatus(t, "machines/etcd-1",
		`{"status":{"deletion":{"waitForPreTerminateHookStartTime":"2026-11-22T00:00:00Z"}}}`)
	isRefused := func() bool { return strings.Contains(f.machineEvents(t), "the machine may not end: ") }
	require.Eventually(t, isRefused, soon, poll)
	require.True(t, isHooked())

	// With break-glass on the Node it goes.
	glass := fmt.Sprintf(`{"uid":"%s","until":"%s","reason":"the machine is gone"}`,
		etcd.UID, time.Now().Add(10*time.Minute).UTC().Format(time.RFC3339))
	_, err := f.Kubectl(t.Context(), "annotate", "node", "etcd-1", quorum.BreakGlassAnnotation+"="+glass)
	require.NoError(t, err)
	// A refused Machine is reviewed again after a minute.
	require.Eventually(t, func() bool { return !isHooked() }, time.Minute+soon, poll)
	require.Eventually(t, func() bool { return strings.Contains(f.machineEvents(t), "the machine may end: ") }, soon, poll)
}

const poll = 50 * time.Millisecond

// installMachineComponents applies the manifests with both components, as a user does later.
func (f *fixture) installMachineComponents(t *testing.T) {
	t.Helper()
	root, err := process.RepositoryRoot()
	require.NoError(t, err)
	dir := t.TempDir()
	here, err := filepath.Rel(dir, filepath.Join(root, "manifests"))
	require.NoError(t, err)
	text := fmt.Sprintf("resources: [%[1]s]\n"+
		"components: [%[1]s/components/cluster-api, %[1]s/components/karpenter-nodeclaims]\n", here)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600))
	require.NoError(t, f.Apply(t.Context(), dir))
}

// addMachineNode registers a Node with a provider ID.
func (f *fixture) addMachineNode(t *testing.T, name string, labels map[string]string) *corev1.Node {
	t.Helper()
	node, err := apiserver.RegisterNode(t.Context(), f.Admin(), apiserver.NodeSpec{
		Name: name, Labels: labels, Ready: true, ProviderID: "cloud:///" + name,
	})
	require.NoError(t, err)
	return node
}

func (f *fixture) apply(t *testing.T, object string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "object.json")
	require.NoError(t, os.WriteFile(file, []byte(object), 0o600))
	_, err := f.Kubectl(t.Context(), "create", "-f", file)
	require.NoError(t, err)
}

func (f *fixture) patchStatus(t *testing.T, resource, patch string) {
	t.Helper()
	_, err := f.Kubectl(t.Context(), "patch", resource, "--subresource=status", "--type=merge", "-p", patch)
	require.NoError(t, err)
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
