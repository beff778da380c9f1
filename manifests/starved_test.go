package manifests_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
)

// testStarvedFlannel plays a failure of 2016 with the real scheduler. A node has two CPUs. Its
// flannel is a static pod, which the kubelet admits late, and only if 100m of CPU are free. Unless
// the node is born held, pods that wait for a node take both CPUs before.
func testStarvedFlannel(t *testing.T, server *apiserver.Server) {
	scheduler, err := server.StartScheduler()
	require.NoError(t, err)
	defer func() { require.NoError(t, scheduler.Stop(t.Context())) }()
	_, err = server.Client().CoreV1().ServiceAccounts("default").Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	require.NoError(t, err)

	t.Run("not held", func(t *testing.T) {
		s := newSmallNode(t, server, labelled("holdfast.dev/hold", "never"))
		s.createPods(t)
		require.Eventually(t, func() bool { return s.usedMilliCPU(t) == 2000 }, time.Minute, 20*time.Millisecond)
	})
	t.Run("held", func(t *testing.T) {
		s := newSmallNode(t, server, apiserver.NodeSpec{})
		s.createPods(t)
		require.Eventually(t, func() bool { return s.refused(t) == 2 }, time.Minute, 20*time.Millisecond)
		require.Zero(t, s.usedMilliCPU(t), "the scheduler has tried both pods")

		s.create(t, s.pod("flannel-small", "100m", "small")) // its mirror pod
		patchNode(t, server, "small", `{"spec":{"unschedulable":false}}`)
		require.Eventually(t, func() bool { return s.usedMilliCPU(t) == 1100 }, time.Minute, 20*time.Millisecond)
		require.Equal(t, 1, s.refused(t), "the second pod waits for another node")
	})
}

// A smallNode is a Ready Node with two CPUs.
type smallNode struct {
	server *apiserver.Server
	name   string
}

func newSmallNode(t *testing.T, server *apiserver.Server, spec apiserver.NodeSpec) smallNode {
	t.Helper()
	spec.Name, spec.Ready = "small", true
	node, _, err := server.AddNode(t.Context(), spec)
	require.NoError(t, err)
	// kube-controller-manager removes the taint not-ready of a Ready Node.
	patchNode(t, server, node.Name, `{"spec":{"taints":null}}`)
	node, err = server.Client().CoreV1().Nodes().Get(t.Context(), node.Name, metav1.GetOptions{})
	require.NoError(t, err)
	node.Status.Capacity = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourcePods: resource.MustParse("110"),
	}
	node.Status.Allocatable = node.Status.Capacity
	_, err = server.Client().CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		remove(t, server, spec.Name)
		gone := int64(0)
		require.NoError(t, server.Client().CoreV1().Pods("default").DeleteCollection(context.WithoutCancel(t.Context()),
			metav1.DeleteOptions{GracePeriodSeconds: &gone}, metav1.ListOptions{}))
	})
	return smallNode{server, spec.Name}
}

// createPods creates two pods that wait for a node, with a CPU each.
func (s smallNode) createPods(t *testing.T) {
	t.Helper()
	s.create(t, s.pod("app-1", "1", ""))
	s.create(t, s.pod("app-2", "1", ""))
}

func (s smallNode) pod(name, cpu, node string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "c", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)},
		}}},
	}}
}

func (s smallNode) create(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	_, err := s.server.Client().CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
	require.NoError(t, err)
}

func (s smallNode) pods(t *testing.T) []corev1.Pod {
	t.Helper()
	list, err := s.server.Client().CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	return list.Items
}

// usedMilliCPU returns what the pods of the node request, as the kubelet counts it.
func (s smallNode) usedMilliCPU(t *testing.T) (used int64) {
	t.Helper()
	for _, p := range s.pods(t) {
		if p.Spec.NodeName == s.name {
			used += p.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
		}
	}
	return used
}

// refused returns the number of pods for which the scheduler has found no node.
func (s smallNode) refused(t *testing.T) (count int) {
	t.Helper()
	for _, p := range s.pods(t) {
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && p.Spec.NodeName == "" {
				count++
			}
		}
	}
	return count
}
