package machine_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/pkg/machine"
)

func TestOwns(t *testing.T) {
	for name, c := range map[string]struct {
		group, kind, namespace, name string
		want                         bool
	}{
		"Cluster":                  {machine.ClusterAPIGroup, "Cluster", "a", "prod", true},
		"other Cluster":            {machine.ClusterAPIGroup, "Cluster", "a", "test", false},
		"Cluster elsewhere":        {machine.ClusterAPIGroup, "Cluster", "b", "prod", false},
		"control plane":            {controlPlane, "RKE2ControlPlane", "a", "cp", true},
		"other control plane":      {controlPlane, "RKE2ControlPlane", "a", "cp2", false},
		"control plane elsewhere":  {controlPlane, "RKE2ControlPlane", "b", "cp", false},
		"another kind of the name": {controlPlane, "KubeadmControlPlane", "a", "cp", false},
	} {
		t.Run(name, func(t *testing.T) {
			require.True(t, machine.IsOwnerKind(c.group, c.kind))
			owner := machine.Object{Kind: c.kind, Namespace: c.namespace, Name: c.name}
			require.Equal(t, c.want, owner.Owns(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
				"cluster.x-k8s.io/cluster-namespace": "a", "cluster.x-k8s.io/cluster-name": "prod",
				"cluster.x-k8s.io/owner-kind": "RKE2ControlPlane", "cluster.x-k8s.io/owner-name": "cp",
			}}}))
			require.False(t, owner.Owns(&corev1.Node{}), "a Node of no Machine")
		})
	}
	require.False(t, machine.IsOwnerKind(machine.ClusterAPIGroup, "Machine"))
	require.False(t, machine.IsOwnerKind("infrastructure.cluster.x-k8s.io", "Cluster"))
}

const controlPlane = "controlplane.cluster.x-k8s.io"
