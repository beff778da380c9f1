//go:build drainers

package drainers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/testenv/process"
	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
)

// expireAfter is when the expiring NodeClaim expires. Its node must have registered before.
const expireAfter = "150s"

const (
	// nodeClaim is a NodeClaim without a NodePool: nothing but the test and its expiration deletes it.
	nodeClaim = `
apiVersion: karpenter.sh/v1
kind: NodeClaim
metadata: {name: %s}
spec:
  expireAfter: %s
  nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
  requirements:
  - {key: node.kubernetes.io/instance-type, operator: In, values: [c-1x-amd64-linux]}
  - {key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}
`
	// noRegistration refuses Karpenter's write to a Node that it registers.
	noRegistration = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: no-registration}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [nodes]}
  validations:
  - {expression: '!("karpenter.sh/registered" in object.metadata.?labels.orValue({}))'}
`
	noRegistrationBinding = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: no-registration}
spec: {policyName: no-registration, validationActions: [Deny]}
`
)

// TestKarpenter deletes one NodeClaim of an etcd node and lets another one expire while etcd can
// lose neither. Nothing is evicted and no machine ends until it can. Then exactly one goes, and the
// other when the member of the first has been replaced.
func TestKarpenter(t *testing.T) {
	r := newRig(t, "karpenter")
	karpenter := r.startKarpenter()
	claims := []*unstructured.Unstructured{
		r.create(nodeClaim, "deleted", "Never"), r.create(nodeClaim, "expiring", expireAfter),
		r.create(nodeClaim, "other", "Never"),
	}
	var nodes []string
	for _, c := range claims {
		nodes = append(nodes, r.waitRegistered(c))
	}
	// Karpenter is stopped until etcd is short of a member, because its clock does not wait for it.
	require.NoError(t, karpenter.Pause())

	r.startEtcd(nodes...)
	for i, n := range nodes {
		r.completeNode(n, r.Net.IP(i+1))
		r.startWorkload(n)
	}
	r.startHoldfast()
	require.NoError(t, r.etcd.Member(3).Pause())
	require.NoError(t, r.client.Delete(t.Context(), claims[0]))
	require.NoError(t, karpenter.Resume())

	r.wait("both NodeClaims to be deleted, and the deletion of both Nodes to be refused", func(ctx context.Context) error {
		return errors.Join(r.isRefused(ctx, claims[0], nodes[0]), r.isRefused(ctx, claims[1], nodes[1]))
	})
	r.requireCalm(func(ctx context.Context) error {
		return errors.Join(r.isUntouched(ctx, 1), r.isUntouched(ctx, 2))
	})

	require.NoError(t, r.etcd.Member(3).Resume())
	first, second := r.waitForFirst(1, 2)
	t.Logf("node %s went first", nodes[first-1])
	require.NoError(t, r.endMachine(first))
	r.requireQuorum()
	r.requireCalm(func(ctx context.Context) error { return r.isUntouched(ctx, second) })

	fourth := r.waitRegistered(r.create(nodeClaim, "replacement", "Never"))
	r.replaceMember(first, fourth)
	r.completeNode(fourth, r.Net.IP(4))
	r.startAgent(fourth)
	r.wait("node "+nodes[second-1]+" to go", func(ctx context.Context) error {
		gone, err := r.isGone(ctx, nodes[second-1])
		if err == nil && !gone {
			err = errors.New("it exists")
		}
		return err
	})
	require.NoError(t, r.endMachine(second))
	r.requireQuorum()
	for _, c := range claims[:2] {
		r.waitForEnd(c)
	}
}

// TestKarpenterComponent deletes the NodeClaim of an etcd node with the component
// karpenter-nodeclaims. While etcd cannot lose the node, the API server refuses that. When etcd
// can, Karpenter deletes the Node first, and then ends the machine.
func TestKarpenterComponent(t *testing.T) {
	r := newRig(t, "karpenter-component")
	r.startKarpenter()
	claim := r.create(nodeClaim, "claimed", "Never")
	r.startClaimed(r.waitRegistered(claim))
	require.NoError(t, r.etcd.Member(3).Pause())
	r.requireRefused(claim, 1)

	require.NoError(t, r.etcd.Member(3).Resume())
	r.waitForDeletion(claim)
	r.waitForEnd(claim)
	gone, err := r.isGone(t.Context(), r.nodeOf(1))
	require.NoError(t, err)
	require.True(t, gone, "Karpenter deletes the Node before it ends the machine")
	require.NoError(t, r.endMachine(1))
	r.requireQuorum()
}

// TestKarpenterNotRegistered deletes the NodeClaim of an etcd node that Karpenter cannot register.
// Karpenter ends such a machine without a deletion of its Node. With the component
// karpenter-nodeclaims, the API server refuses the deletion of the NodeClaim until etcd can lose
// the node. The grant of that deletion then counts for the other nodes.
func TestKarpenterNotRegistered(t *testing.T) {
	r := newRig(t, "karpenter-not-registered")
	r.refuseRegistrations()
	r.startKarpenter()
	claim := r.create(nodeClaim, "claimed", "Never")
	r.startClaimed(r.waitForNode(claim))
	require.NoError(t, r.etcd.Member(3).Pause())
	r.requireRefused(claim, 1)
	require.NotEqual(t, "True", r.registered(claim))

	require.NoError(t, r.etcd.Member(3).Resume())
	r.waitForDeletion(claim)
	r.waitForEnd(claim)
	gone, err := r.isGone(t.Context(), r.nodeOf(1))
	require.NoError(t, err)
	require.False(t, gone, "Karpenter does not delete a Node that is not registered")
	other := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: r.nodeOf(2)}}
	err = r.client.Delete(t.Context(), other, client.DryRunAll)
	require.ErrorContains(t, err, "deleting node "+other.Name+" would break quorum of etcd cluster")
	require.NoError(t, r.endMachine(1))
	r.requireQuorum()
}

// startClaimed starts an etcd cluster on the node of a NodeClaim and on two other nodes, and
// Holdfast with the component for Karpenter.
func (r *rig) startClaimed(claimed string) {
	r.t.Helper()
	others := []string{"etcd-2", "etcd-3"}
	r.startEtcd(append([]string{claimed}, others...)...)
	r.completeNode(claimed, r.Net.IP(1))
	r.startWorkload(claimed)
	for i, n := range others {
		_, err := r.RegisterNode(r.t.Context(), n, r.Net.IP(i+2), true)
		require.NoError(r.t, err)
		r.startWorkload(n)
	}
	r.startHoldfast("karpenter-nodeclaims")
}

// startKarpenter starts Karpenter with its definitions and the class of all NodeClaims.
func (r *rig) startKarpenter() *process.Process {
	r.t.Helper()
	r.applyDefinitions("karpenter", "sigs.k8s.io/karpenter", "pkg/apis/crds", "kwok/apis/crds")
	r.create("apiVersion: karpenter.kwok.sh/v1alpha1\nkind: KWOKNodeClass\nmetadata: {name: default}\n")
	return r.startProgram("karpenter", []string{
		"DISABLE_LEADER_ELECTION=true", "METRICS_PORT=0", "HEALTH_PROBE_PORT=0", "SYSTEM_NAMESPACE=" + namespace,
	})
}

// refuseRegistrations makes the API server refuse Karpenter's write to a Node that it registers.
func (r *rig) refuseRegistrations() {
	r.t.Helper()
	r.create(noRegistration)
	r.create(noRegistrationBinding)
	r.wait("the policy to be in effect", func(ctx context.Context) error {
		probe := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: "probe", Labels: map[string]string{"karpenter.sh/registered": "true"},
		}}
		if err := r.client.Create(ctx, probe, client.DryRunAll); !apierrors.IsInvalid(err) {
			return fmt.Errorf("the dry run of a creation ended with %v", err) //nolint:errorlint // may be nil
		}
		return nil
	})
}

// registered returns the status of the condition Registered of a NodeClaim.
func (r *rig) registered(claim *unstructured.Unstructured) string {
	r.t.Helper()
	current, err := r.get(r.t.Context(), claim)
	require.NoError(r.t, err)
	require.NotNil(r.t, current)
	status, _, _ := condition(current, "Registered")
	return status
}

// waitForNode waits until the machine of a NodeClaim has a Node, and returns its name.
func (r *rig) waitForNode(claim *unstructured.Unstructured) (node string) {
	r.t.Helper()
	r.wait("the Node of NodeClaim "+claim.GetName(), func(ctx context.Context) error {
		current, err := r.get(ctx, claim)
		if err != nil || current == nil {
			return errors.Join(err, errors.New("no NodeClaim"))
		}
		id, _, _ := unstructured.NestedString(current.Object, "status", "providerID")
		node = strings.TrimPrefix(id, "kwok://")
		_, err = r.core.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		return err
	})
	return node
}

// waitRegistered waits until Karpenter has registered the Node of a NodeClaim, and returns the name
// of the Node.
func (r *rig) waitRegistered(claim *unstructured.Unstructured) (node string) {
	r.t.Helper()
	r.wait("the registration of NodeClaim "+claim.GetName(), func(ctx context.Context) error {
		current, err := r.get(ctx, claim)
		if err != nil || current == nil {
			return errors.Join(err, errors.New("no NodeClaim"))
		}
		if status, reason, message := condition(current, "Registered"); status != "True" {
			return fmt.Errorf("%s %s: %s", status, reason, message)
		}
		node, _, err = unstructured.NestedString(current.Object, "status", "nodeName")
		return err
	})
	return node
}

// isRefused returns an error unless the NodeClaim is being deleted and the deletion of its Node was
// refused.
func (r *rig) isRefused(ctx context.Context, claim *unstructured.Unstructured, node string) error {
	current, err := r.get(ctx, claim)
	switch {
	case err != nil:
		return err
	case current == nil:
		return fmt.Errorf("NodeClaim %s is gone", claim.GetName())
	case current.GetDeletionTimestamp() == nil:
		return fmt.Errorf("NodeClaim %s is not being deleted", claim.GetName())
	}
	events, err := r.core.CoreV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: "reason=DeletionRefused,involvedObject.kind=Node,involvedObject.name=" + node,
	})
	if err == nil && len(events.Items) == 0 {
		err = fmt.Errorf("no event reports a refused deletion of node %s", node)
	}
	return err
}

// waitForFirst waits until the Node of one of two members is gone, and checks that its guard pod
// was evicted and that the other node is untouched. It returns the member whose Node is gone first.
func (r *rig) waitForFirst(a, b int) (first, second int) {
	r.t.Helper()
	r.wait("one of the nodes to go", func(ctx context.Context) error {
		for _, pair := range [][2]int{{a, b}, {b, a}} {
			gone, err := r.isGone(ctx, r.nodeOf(pair[0]))
			if err != nil {
				return err
			}
			if gone {
				first, second = pair[0], pair[1]
				return nil
			}
		}
		return errors.New("both exist")
	})
	require.NoError(r.t, r.isUntouched(r.t.Context(), second))
	_, err := r.core.CoreV1().Pods(guard.Namespace).Get(r.t.Context(), guard.Name(r.nodeOf(first)), metav1.GetOptions{})
	require.Error(r.t, err, "the guard pod of a node is evicted before its machine ends")
	return first, second
}
