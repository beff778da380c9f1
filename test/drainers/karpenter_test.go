//go:build drainers

package drainers

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/holdfast-dev/holdfast/internal/testenv/process"
	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
)

// expireAfter is when the expiring NodeClaim expires. Its node must have registered before.
const expireAfter = "90s"

// nodeClaim is a NodeClaim without a NodePool: nothing but the test and its expiration deletes it.
const nodeClaim = `
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

// TestKarpenter deletes one NodeClaim of an etcd node and lets another one expire while etcd can
// lose neither. Nothing is evicted and no machine ends until it can. Then exactly one goes, and the
// other when the member of the first has been replaced.
func TestKarpenter(t *testing.T) {
	r := newRig(t, "karpenter")
	r.applyDefinitions("karpenter", "sigs.k8s.io/karpenter", "pkg/apis/crds", "kwok/apis/crds")
	r.create("apiVersion: karpenter.kwok.sh/v1alpha1\nkind: KWOKNodeClass\nmetadata: {name: default}\n")
	claims := []*unstructured.Unstructured{
		r.create(nodeClaim, "deleted", "Never"), r.create(nodeClaim, "expiring", expireAfter),
		r.create(nodeClaim, "other", "Never"),
	}
	// Karpenter is stopped until etcd is short of a member, because its clock does not wait for it.
	karpenter := r.startKarpenter()
	var nodes []string
	for _, c := range claims {
		nodes = append(nodes, r.waitRegistered(c))
	}
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
		r.wait("the end of NodeClaim "+c.GetName(), func(ctx context.Context) error {
			current, err := r.get(ctx, c)
			if err == nil && current != nil {
				err = errors.New("it exists")
			}
			return err
		})
	}
}

func (r *rig) startKarpenter() *process.Process {
	r.t.Helper()
	return r.startProgram("karpenter", []string{
		"DISABLE_LEADER_ELECTION=true", "METRICS_PORT=0", "HEALTH_PROBE_PORT=0", "SYSTEM_NAMESPACE=" + namespace,
	})
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
