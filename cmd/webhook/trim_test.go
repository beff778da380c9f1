package main

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestTrimCached: the cache has what the verdict, guard pods and the inventory read, and no more.
func TestTrimCached(t *testing.T) {
	amounts := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}
	kept := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "worker-1", UID: "u1", Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"},
		},
		Spec: corev1.NodeSpec{ProviderID: "aws:///i-1", Unschedulable: true, Taints: []corev1.Taint{{Key: "e"}}},
		Status: corev1.NodeStatus{
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			NodeInfo:   corev1.NodeSystemInfo{MachineID: "m1", SystemUUID: "s1"},
		},
	}
	read := kept.DeepCopy()
	read.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
	read.Status.Capacity, read.Status.Allocatable = amounts, amounts
	read.Status.Images = []corev1.ContainerImage{{Names: []string{"holdfast-agent"}}}
	read.Status.VolumesInUse = []corev1.UniqueVolumeName{"v"}
	trimmed, err := trimCached(read)
	require.NoError(t, err)
	require.Equal(t, kept, trimmed)
}
