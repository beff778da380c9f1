//go:build drainers

package drainers

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/testenv/loopback"
	"github.com/holdfast-dev/holdfast/internal/testenv/pki"
	"github.com/holdfast-dev/holdfast/pkg/machine"
	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
	"github.com/holdfast-dev/holdfast/test/fixture"
)

const (
	// processMachines is the definition of the infrastructure: a ProcessMachine stands for the
	// machine of one member.
	processMachines = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: processmachines.infrastructure.cluster.x-k8s.io
  labels: {cluster.x-k8s.io/v1beta2: v1}
spec:
  group: infrastructure.cluster.x-k8s.io
  scope: Namespaced
  names: {kind: ProcessMachine, listKind: ProcessMachineList, plural: processmachines, singular: processmachine}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`
	processMachine = `
apiVersion: infrastructure.cluster.x-k8s.io/v1
kind: ProcessMachine
metadata: {name: %[1]s, namespace: default, finalizers: [drainers.example.org/process]}
spec: {providerID: "process://%[1]s"}
`
	machineObject = `
apiVersion: cluster.x-k8s.io/v1beta2
kind: Machine
metadata:
  name: %[1]s
  namespace: default
  labels: {cluster.x-k8s.io/cluster-name: rig, cluster.x-k8s.io/control-plane: ""}
spec:
  clusterName: rig
  bootstrap: {dataSecretName: none}
  infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: ProcessMachine, name: %[1]s}
`
	cluster = `
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: rig, namespace: default}
spec: {controlPlaneEndpoint: {host: 127.0.0.1, port: 6443}}
`
	// kubeconfigSecret has the kubeconfig by which Cluster API reaches the Nodes of the cluster.
	kubeconfigSecret = `
apiVersion: v1
kind: Secret
metadata: {name: rig-kubeconfig, namespace: default, labels: {cluster.x-k8s.io/cluster-name: rig}}
type: cluster.x-k8s.io/secret
data: {value: %s}
`
)

// TestClusterAPI deletes the Machine of an etcd node while etcd cannot lose it. The Machine waits
// in its drain, with Holdfast's answer in its condition, and its infrastructure is not touched.
// When the other member is back, the node is drained, and its machine ends.
func TestClusterAPI(t *testing.T) {
	r := newRig(t, "cluster-api")
	machines := r.startMachines()
	require.NoError(t, r.etcd.Member(3).Pause())
	require.NoError(t, r.client.Delete(t.Context(), machines[0]))

	r.wait("the condition of the Machine to have Holdfast's answer", func(ctx context.Context) error {
		return r.waitsForEtcd(ctx, machines[0])
	})
	r.requireCalm(func(ctx context.Context) error {
		return errors.Join(r.waitsForEtcd(ctx, machines[0]), r.hasMachine(ctx, 1), r.hasGuard(ctx, 1))
	})

	require.NoError(t, r.etcd.Member(3).Resume())
	r.requireEnded(machines[0])

	require.NoError(t, r.client.Delete(t.Context(), machines[1]))
	r.wait("the condition of the second Machine to have Holdfast's answer", func(ctx context.Context) error {
		return r.waitsForEtcd(ctx, machines[1])
	})
	require.NoError(t, errors.Join(r.hasMachine(t.Context(), 2), r.hasGuard(t.Context(), 2)))
}

// TestClusterAPIComponent deletes the Machine of an etcd node with the component cluster-api. While
// etcd cannot lose the node, the API server refuses that. When etcd can, the machine ends.
func TestClusterAPIComponent(t *testing.T) {
	r := newRig(t, "cluster-api-component")
	machines := r.startMachines("cluster-api")
	require.NoError(t, r.etcd.Member(3).Pause())
	r.requireRefused(machines[0], 1)

	require.NoError(t, r.etcd.Member(3).Resume())
	r.waitForDeletion(machines[0])
	r.requireEnded(machines[0])
	r.requireRefused(machines[1], 2)
}

// TestClusterAPIHook deletes the Machine of an etcd node while no webhook runs, so that its
// deletion is not reviewed. Its drain does not wait for Holdfast either. The hook keeps its machine
// until etcd can lose the node.
func TestClusterAPIHook(t *testing.T) {
	for name, skipDrain := range map[string]func(*rig, *unstructured.Unstructured){
		"excluded from draining": func(r *rig, m *unstructured.Unstructured) {
			r.patch(m, `{"metadata":{"annotations":{"machine.cluster.x-k8s.io/exclude-node-draining":""}}}`)
		},
		"drained with a timeout": func(r *rig, m *unstructured.Unstructured) {
			r.patch(m, `{"spec":{"deletion":{"nodeDrainTimeoutSeconds":1}}}`)
		},
		"without a guard pod": func(r *rig, m *unstructured.Unstructured) { r.removeGuard(m.GetName()) },
	} {
		t.Run(name, func(t *testing.T) { testClusterAPIHook(t, skipDrain) })
	}
}

func testClusterAPIHook(t *testing.T, skipDrain func(*rig, *unstructured.Unstructured)) {
	r := newRig(t, "cluster-api-hook")
	machines := r.startMachines("cluster-api")
	r.waitForHook(machines[0])
	skipDrain(r, machines[0])
	require.NoError(t, r.etcd.Member(3).Pause())
	r.deleteUnreviewed(machines[0])

	r.wait("the Machine to wait for its hook", func(ctx context.Context) error {
		return errors.Join(r.waitsForHook(ctx, machines[0]), r.hasRefusal(ctx, machines[0]))
	})
	r.requireCalm(func(ctx context.Context) error {
		return errors.Join(r.waitsForHook(ctx, machines[0]), r.hasMachine(ctx, 1))
	})

	require.NoError(t, r.etcd.Member(3).Resume())
	r.requireEnded(machines[0])
}

// startMachines starts an etcd cluster on three nodes, Cluster API with their Machines, and
// Holdfast with components. It returns the Machines.
func (r *rig) startMachines(components ...string) []*unstructured.Unstructured {
	r.t.Helper()
	nodes := []string{"etcd-1", "etcd-2", "etcd-3"}
	r.startEtcd(nodes...)
	for i, n := range nodes {
		_, err := r.RegisterNode(r.t.Context(), n, r.Net.IP(i+1), true)
		require.NoError(r.t, err)
		r.startWorkload(n)
	}
	machines := r.startClusterAPI(nodes)
	r.startHoldfast(components...)
	return machines
}

// startClusterAPI starts Cluster API, with a Machine and its infrastructure for each node.
func (r *rig) startClusterAPI(nodes []string) []*unstructured.Unstructured {
	r.t.Helper()
	r.applyDefinitions("cluster-api", "sigs.k8s.io/cluster-api", "core/config/crd/bases")
	r.create(processMachines)
	kubeconfig, err := os.ReadFile(r.API.Kubeconfig())
	require.NoError(r.t, err)
	r.create(kubeconfigSecret, base64.StdEncoding.EncodeToString(kubeconfig))
	r.create(cluster)
	var machines []*unstructured.Unstructured
	for _, n := range nodes {
		made := r.create(processMachine, n)
		status := made.DeepCopy()
		require.NoError(r.t, unstructured.SetNestedField(status.Object, true, "status", "initialization", "provisioned"))
		require.NoError(r.t, r.client.Status().Update(r.t.Context(), status))
		patch := fmt.Appendf(nil, `{"spec":{"providerID":"process://%s"}}`, n)
		_, err := r.core.CoreV1().Nodes().Patch(r.t.Context(), n, types.MergePatchType, patch, metav1.PatchOptions{})
		require.NoError(r.t, err)
		machines = append(machines, r.create(machineObject, n))
	}
	r.runInfrastructure()
	r.startManager()
	for _, m := range machines {
		r.wait("the Node of Machine "+m.GetName(), func(ctx context.Context) error {
			current, err := r.get(ctx, m)
			if err != nil || current == nil {
				return errors.Join(err, errors.New("no Machine"))
			}
			if name, _, _ := unstructured.NestedString(current.Object, "status", "nodeRef", "name"); name != m.GetName() {
				return fmt.Errorf("its nodeRef is %q", name)
			}
			return nil
		})
	}
	return machines
}

// startManager starts the manager of Cluster API's core. Its webhooks are not installed, but it
// needs a certificate for them.
func (r *rig) startManager() {
	r.t.Helper()
	ca, err := pki.NewCA("cluster-api")
	require.NoError(r.t, err)
	pair, err := ca.Issue(pki.CertOptions{CommonName: "cluster-api", Server: true, Hosts: []string{"127.0.0.1"}})
	require.NoError(r.t, err)
	certs := filepath.Join(r.Dir, "cluster-api")
	require.NoError(r.t, pair.Write(filepath.Join(certs, "tls.crt"), filepath.Join(certs, "tls.key")))
	port, err := loopback.ReservePort()
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, port.Release()) })
	r.startProgram("cluster-api", nil, "--webhook-cert-dir="+certs, fmt.Sprintf("--webhook-port=%d", port.Number),
		"--diagnostics-address=127.0.0.1:0", "--insecure-diagnostics", "--health-addr=127.0.0.1:0",
		"--skip-crd-migration-phases=StorageVersionMigration,CleanupManagedFields")
}

// runInfrastructure is the infrastructure provider: it ends the processes of each ProcessMachine
// that is being deleted, and then lets the object go.
func (r *rig) runInfrastructure() {
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.t.Context()))
	var provider sync.WaitGroup
	provider.Go(func() {
		for fixture.Wait(ctx, kubeletInterval) == nil {
			found := &unstructured.UnstructuredList{}
			found.SetGroupVersionKind(schema.GroupVersionKind{
				Group: "infrastructure.cluster.x-k8s.io", Version: "v1", Kind: "ProcessMachineList",
			})
			if err := r.client.List(ctx, found, client.InNamespace(namespace)); err != nil {
				continue
			}
			for i := range found.Items {
				if found.Items[i].GetDeletionTimestamp() != nil && r.endProcess(found.Items[i].GetName()) == nil {
					patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
					_ = r.client.Patch(ctx, &found.Items[i], patch) // the next round tries again
				}
			}
		}
	})
	r.t.Cleanup(func() { cancel(); provider.Wait() })
}

// endProcess ends the machine of a node.
func (r *rig) endProcess(node string) error {
	for i, m := range r.etcd.Members() {
		if m.Node == node && m.Running() {
			return r.endMachine(i + 1)
		}
	}
	return nil
}

// processMachine returns the key of the infrastructure of a node.
func (r *rig) processMachine(node string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetAPIVersion("infrastructure.cluster.x-k8s.io/v1")
	o.SetKind("ProcessMachine")
	o.SetNamespace(namespace)
	o.SetName(node)
	return o
}

// waitsForEtcd returns an error unless a Machine waits in its drain for the guard pod, with
// Holdfast's answer in its condition.
func (r *rig) waitsForEtcd(ctx context.Context, m *unstructured.Unstructured) error {
	node := m.GetName()
	current, err := r.get(ctx, m)
	if err != nil || current == nil {
		return errors.Join(err, errors.New("the Machine is gone"))
	}
	status, reason, message := condition(current, "Deleting")
	answer := "draining node " + node + " would break quorum of etcd cluster"
	isWaiting := status == "True" && reason == "DrainingNode" && strings.Contains(message, answer)
	if !isWaiting || !strings.Contains(message, guard.Namespace+"/"+guard.Name(node)) {
		return fmt.Errorf("the condition Deleting is %s, %s: %s", status, reason, message)
	}
	return nil
}

// hasGuard returns an error unless the guard pod of a member's node runs.
func (r *rig) hasGuard(ctx context.Context, member int) error {
	pod, err := r.core.CoreV1().Pods(guard.Namespace).Get(ctx, guard.Name(r.nodeOf(member)), metav1.GetOptions{})
	if err == nil && pod.DeletionTimestamp != nil {
		err = fmt.Errorf("guard pod %s is being deleted", pod.Name)
	}
	return err
}

// hasMachine returns an error unless the Node and the infrastructure of a member are not being
// deleted, and the member runs. Cluster API evicts all pods of a node at the same time, so its
// workload may leave.
func (r *rig) hasMachine(ctx context.Context, member int) error {
	node, err := r.core.CoreV1().Nodes().Get(ctx, r.nodeOf(member), metav1.GetOptions{})
	if err != nil {
		return err
	}
	infrastructure, err := r.get(ctx, r.processMachine(node.Name))
	switch {
	case err != nil:
		return err
	case infrastructure == nil || infrastructure.GetDeletionTimestamp() != nil:
		return fmt.Errorf("the infrastructure of node %s is gone or being deleted", node.Name)
	case node.DeletionTimestamp != nil || !r.etcd.Member(member).Running():
		return fmt.Errorf("node %s is being deleted, or its member has ended", node.Name)
	}
	return nil
}

// requireEnded waits until a Machine is gone, and requires that its machine has ended, that its
// Node is gone, and that etcd has quorum.
func (r *rig) requireEnded(m *unstructured.Unstructured) {
	r.t.Helper()
	r.waitForEnd(m)
	for _, member := range r.etcd.Members() {
		require.False(r.t, member.Node == m.GetName() && member.Running(), "its infrastructure ended the process")
	}
	gone, err := r.isGone(r.t.Context(), m.GetName())
	require.NoError(r.t, err)
	require.True(r.t, gone, "Cluster API deletes the Node last")
	r.requireQuorum()
}

// waitForHook waits until a Machine has Holdfast's hook.
func (r *rig) waitForHook(m *unstructured.Unstructured) {
	r.t.Helper()
	r.wait("the hook of Machine "+m.GetName(), func(ctx context.Context) error {
		current, err := r.get(ctx, m)
		if err != nil || current == nil {
			return errors.Join(err, errors.New("no Machine"))
		}
		if current.GetAnnotations()[machine.HookAnnotation] == "" {
			return fmt.Errorf("its annotations are %v", current.GetAnnotations())
		}
		return nil
	})
}

// waitsForHook returns an error unless a Machine is being deleted and waits for Holdfast's hook
// only.
func (r *rig) waitsForHook(ctx context.Context, m *unstructured.Unstructured) error {
	current, err := r.get(ctx, m)
	if err != nil || current == nil {
		return errors.Join(err, errors.New("the Machine is gone"))
	}
	status, reason, message := condition(current, "Deleting")
	if status != "True" || reason != "WaitingForPreTerminateHook" || !strings.Contains(message, machine.HookAnnotation) {
		return fmt.Errorf("the condition Deleting is %s, %s: %s", status, reason, message)
	}
	return nil
}

// hasRefusal returns an error unless an event of a Machine has Holdfast's answer for its node.
func (r *rig) hasRefusal(ctx context.Context, m *unstructured.Unstructured) error {
	events, err := r.core.CoreV1().Events(m.GetNamespace()).List(ctx, metav1.ListOptions{
		FieldSelector: "reason=DeletionRefused,involvedObject.kind=Machine,involvedObject.name=" + m.GetName(),
	})
	if err != nil {
		return err
	}
	answer := "the machine may not end: deleting node " + m.GetName() + " would break quorum of etcd cluster"
	if !slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return strings.HasPrefix(e.Message, answer) }) {
		return fmt.Errorf("of %d refusals of Machine %s none begins with %q", len(events.Items), m.GetName(), answer)
	}
	return nil
}

// removeGuard makes a node one that has no guard pod.
func (r *rig) removeGuard(name string) {
	r.t.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, guard.NodeLabel, guard.Never)
	_, err := r.core.CoreV1().Nodes().Patch(r.t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{})
	require.NoError(r.t, err)
	r.wait("the end of the guard pod of "+name, func(ctx context.Context) error {
		_, err := r.core.CoreV1().Pods(guard.Namespace).Get(ctx, guard.Name(name), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("it exists"))
	})
}

// deleteUnreviewed deletes an object while no webhook runs.
func (r *rig) deleteUnreviewed(o *unstructured.Unstructured) {
	r.t.Helper()
	flags := r.machineFlags()
	for _, w := range r.Webhooks() {
		require.NoError(r.t, w.Kill())
	}
	require.NoError(r.t, r.client.Delete(r.t.Context(), o))
	for _, w := range r.Webhooks() {
		require.NoError(r.t, w.Start(flags...))
	}
}
