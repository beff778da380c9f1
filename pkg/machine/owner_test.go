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
		group string
		owner machine.Object
		want  bool
	}{
		"Cluster":                  {machine.ClusterAPIGroup, machine.Object{Kind: "Cluster", Namespace: "a", Name: "prod"}, true},
		"other Cluster":            {machine.ClusterAPIGroup, machine.Object{Kind: "Cluster", Namespace: "a", Name: "test"}, false},
		"Cluster elsewhere":        {machine.ClusterAPIGroup, machine.Object{Kind: "Cluster", Namespace: "b", Name: "prod"}, false},
		"control plane":            {controlPlane, machine.Object{Kind: "RKE2ControlPlane", Namespace: "a", Name: "cp"}, true},
		"other control plane":      {controlPlane, machine.Object{Kind: "RKE2ControlPlane", Namespace: "a", Name: "cp2"}, false},
		"control plane elsewhere":  {controlPlane, machine.Object{Kind: "RKE2ControlPlane", Namespace: "b", Name: "cp"}, false},
		"another kind of the name": {controlPlane, machine.Object{Kind: "KubeadmControlPlane", Namespace: "a", Name: "cp"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			require.True(t, machine.IsOwnerKind(c.group, c.owner.Kind))
			require.Equal(t, c.want, c.owner.Owns(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
				"cluster.x-k8s.io/cluster-namespace": "a", "cluster.x-k8s.io/cluster-name": "prod",
				"cluster.x-k8s.io/owner-kind": "RKE2ControlPlane", "cluster.x-k8s.io/owner-name": "cp",
			}}}))
			require.False(t, c.owner.Owns(&corev1.Node{}), "a Node of no Machine")
		})
	}
	require.False(t, machine.IsOwnerKind(machine.ClusterAPIGroup, "Machine"))
	require.False(t, machine.IsOwnerKind("infrastructure.cluster.x-k8s.io", "Cluster"))
}

const controlPlane = "controlplane.cluster.x-k8s.io"
