package nodepatch

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// interruptedClient calls a function directly after each write of the status.
type interruptedClient struct {
	typedcorev1.NodeInterface
	then func()
}

func (i interruptedClient) Patch(
	ctx context.Context, name string, kind types.PatchType, body []byte, o metav1.PatchOptions, sub ...string,
) (*corev1.Node, error) {
	n, err := i.NodeInterface.Patch(ctx, name, kind, body, o, sub...)
	if slices.Contains(sub, "status") {
		i.then()
	}
	return n, err
}

// desiredHold returns what the agent writes to a new Node, and a label.
func desiredHold() Desired {
	return Desired{
		StatusFirst:   true,
		Labels:        map[string]*string{"holdfast.dev/etcd-member": new("true")},
		Annotations:   map[string]*string{"holdfast.dev/hold": new(`{"state":"held"}`)},
		Unschedulable: new(true),
		AddTaints:     []corev1.Taint{{Key: "holdfast.test/wait", Effect: corev1.TaintEffectNoSchedule}},
		Conditions: []corev1.NodeCondition{
			newCondition("NetworkHeld", corev1.ConditionTrue, "WaitingForCNI", "waiting"),
			newCondition(corev1.NodeNetworkUnavailable, corev1.ConditionTrue, "HeldByHoldfast", "held"),
		},
	}
}

func desiredRelease() Desired {
	return Desired{
		Annotations:   map[string]*string{"holdfast.dev/hold": new(`{"state":"released"}`)},
		Unschedulable: new(false),
		RemoveTaints:  []corev1.Taint{{Key: "holdfast.test/wait", Effect: corev1.TaintEffectNoSchedule}},
		Conditions: []corev1.NodeCondition{
			newCondition(corev1.NodeNetworkUnavailable, corev1.ConditionFalse, "ReleasedByHoldfast", "released"),
		},
	}
}

func TestWriter(t *testing.T) {
	server := apiserver.New(t)
	nodes := server.Client().CoreV1().Nodes()
	writer := NewWriter(nodes)
	register := func(t *testing.T) (*corev1.Node, *rest.Config) {
		name := "n" + t.Name()[len("TestWriter/"):]
		n, kubelet, err := server.AddNode(t.Context(), apiserver.NodeSpec{
			Name: name, Taints: []corev1.Taint{{Key: "dedicated", Value: "etcd", Effect: corev1.TaintEffectNoExecute}},
		})
		require.NoError(t, err)
		return n, kubelet
	}
	read := func(t *testing.T, name string) *corev1.Node {
		n, err := nodes.Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		return n
	}
	patch := func(t *testing.T, name, body string) {
		_, err := nodes.Patch(t.Context(), name, types.MergePatchType, []byte(body), metav1.PatchOptions{})
		require.NoError(t, err)
	}

	t.Run("hold-and-release", func(t *testing.T) {
		before, kubelet := register(t)
		held, err := writer.Apply(t.Context(), before, desiredHold())
		require.NoError(t, err)
		require.Equal(t, read(t, before.Name), held, "the newest Node is returned")
		require.True(t, held.Spec.Unschedulable)
		require.JSONEq(t, `{"state":"held"}`, held.Annotations["holdfast.dev/hold"])
		require.Equal(t, "true", held.Labels["holdfast.dev/etcd-member"])
		require.Equal(t, corev1.ConditionTrue, readiness.FindCondition(held, corev1.NodeNetworkUnavailable).Status)
		taints := slices.Concat(before.Spec.Taints, desiredHold().AddTaints)
		require.Equal(t, taints, held.Spec.Taints, "the taints of others stay, in their order")
		isOwn := func(f metav1.ManagedFieldsEntry) bool { return f.Manager == readiness.FieldManager }
		require.True(t, slices.ContainsFunc(held.ManagedFields, isOwn))
		for _, c := range before.Status.Conditions {
			require.Equal(t, c, *readiness.FindCondition(held, c.Type), "the conditions of the kubelet stay")
		}

		again, err := writer.Apply(t.Context(), held, desiredHold())
		require.NoError(t, err)
		require.Same(t, held, again, "nothing is left to write")

		require.NoError(t, apiserver.Heartbeat(t.Context(), kubelet, before.Name, true))
		held = read(t, before.Name)
		require.Equal(t, readiness.FindCondition(again, "NetworkHeld"), readiness.FindCondition(held, "NetworkHeld"))
		free, err := writer.Apply(t.Context(), held, desiredRelease())
		require.NoError(t, err)
		require.False(t, free.Spec.Unschedulable)
		require.Equal(t, before.Spec.Taints, free.Spec.Taints)
		require.Equal(t, corev1.ConditionFalse, readiness.FindCondition(free, corev1.NodeNetworkUnavailable).Status)
		require.Equal(t, corev1.ConditionTrue, readiness.FindCondition(free, corev1.NodeReady).Status)
	})

	t.Run("earlier-write", func(t *testing.T) {
		n, _ := register(t)
		patch(t, n.Name, `{"spec":{"taints":[{"key":"theirs","effect":"NoSchedule"}]}}`)
		moved := read(t, n.Name)
		_, err := writer.Apply(t.Context(), n, Desired{Unschedulable: new(true), AddTaints: desiredHold().AddTaints})
		require.True(t, apierrors.IsConflict(err), "%v", err)
		require.Equal(t, moved, read(t, n.Name))
	})

	t.Run("write-between", func(t *testing.T) {
		n, _ := register(t)
		between := NewWriter(interruptedClient{nodes, func() { patch(t, n.Name, `{"spec":{"unschedulable":true}}`) }})
		after, err := between.Apply(t.Context(), n, desiredHold())
		require.True(t, apierrors.IsConflict(err), "%v", err)
		require.Equal(t, corev1.ConditionTrue, readiness.FindCondition(after, "NetworkHeld").Status,
			"the write of the status counts")
		now := read(t, n.Name)
		require.NotContains(t, now.Annotations, "holdfast.dev/hold", "the cordon of another writer gets no record")
		require.Equal(t, n.Spec.Taints, now.Spec.Taints)
	})

	t.Run("unseen-write", func(t *testing.T) {
		n, _ := register(t)
		for name, body := range map[string]string{
			"annotation": `{"metadata":{"annotations":{"holdfast.dev/keep-cordoned":""}}}`,
			"label":      `{"metadata":{"labels":{"holdfast.dev/hold":"never"}}}`,
			"taint":      `{"spec":{"taints":[{"key":"theirs","effect":"NoSchedule"}]}}`,
		} {
			n = read(t, n.Name)
			patch(t, n.Name, body)
			d := desiredHold()
			d.Conditions[0].Message = "waiting, and not for " + name
			_, err := writer.Apply(t.Context(), n, d)
			require.True(t, apierrors.IsConflict(err), "the answer to the write of the status has a new %s: %v", name, err)
			require.False(t, read(t, n.Name).Spec.Unschedulable)
		}
	})

	t.Run("deletion", func(t *testing.T) {
		n, _ := register(t)
		patch(t, n.Name, `{"metadata":{"finalizers":["holdfast.test/stay"]}}`)
		n = read(t, n.Name)
		require.NoError(t, nodes.Delete(t.Context(), n.Name, metav1.DeleteOptions{}))
		_, err := writer.Apply(t.Context(), n, desiredHold())
		require.True(t, apierrors.IsConflict(err), "%v", err)
		require.False(t, read(t, n.Name).Spec.Unschedulable)
	})

	t.Run("heartbeat", func(t *testing.T) {
		n, kubelet := register(t)
		require.NoError(t, apiserver.Heartbeat(t.Context(), kubelet, n.Name, true))
		d := desiredHold()
		d.Conditions = d.Conditions[:1]
		held, err := writer.Apply(t.Context(), n, d)
		require.NoError(t, err, "the decision does not depend on a heartbeat")
		require.True(t, held.Spec.Unschedulable)
		require.Equal(t, corev1.ConditionTrue, readiness.FindCondition(held, corev1.NodeReady).Status,
			"the newer condition stays")
	})

	t.Run("plugin", func(t *testing.T) {
		n, _ := register(t)
		up := newCondition(corev1.NodeNetworkUnavailable, corev1.ConditionFalse, "CalicoIsUp", "up")
		n.Status.Conditions = append(n.Status.Conditions, up)
		before := n.DeepCopy()
		before.Status.Conditions = before.Status.Conditions[:len(before.Status.Conditions)-1]
		_, err := nodes.UpdateStatus(t.Context(), n, metav1.UpdateOptions{})
		require.NoError(t, err)
		_, err = writer.Apply(t.Context(), before, desiredHold())
		require.True(t, apierrors.IsConflict(err), "a plugin may write this condition only once: %v", err)
		require.Equal(t, "CalicoIsUp", readiness.FindCondition(read(t, n.Name), corev1.NodeNetworkUnavailable).Reason)
	})

	t.Run("other-node", func(t *testing.T) {
		n, _ := register(t)
		require.NoError(t, nodes.Delete(t.Context(), n.Name, metav1.DeleteOptions{}))
		fresh, _ := register(t)
		for name, d := range map[string]Desired{
			"cordon": {Unschedulable: new(true)}, "status": {Conditions: desiredHold().Conditions},
		} {
			_, err := writer.Apply(t.Context(), n, d)
			require.True(t, apierrors.IsConflict(err), "%s: %v", name, err)
		}
		require.Equal(t, fresh, read(t, n.Name))
	})

	t.Run("no-node", func(t *testing.T) {
		n, _ := register(t)
		require.NoError(t, nodes.Delete(t.Context(), n.Name, metav1.DeleteOptions{}))
		after, err := writer.Apply(t.Context(), n, desiredHold())
		require.True(t, apierrors.IsNotFound(err), "%v", err)
		require.Same(t, n, after)
	})
}
