package machine

import (
	corev1 "k8s.io/api/core/v1"
)

const (
	kindCluster       = "Cluster"
	controlPlaneGroup = "controlplane.cluster.x-k8s.io"
)

// Annotations with which Cluster API names the owner of the Machine of a Node (cluster-api,
// api/core/v1beta2: ClusterNameAnnotation, ClusterNamespaceAnnotation, OwnerKindAnnotation and
// OwnerNameAnnotation).
const (
	clusterNameAnnotation      = "cluster.x-k8s.io/cluster-name"
	clusterNamespaceAnnotation = "cluster.x-k8s.io/cluster-namespace"
	ownerKindAnnotation        = "cluster.x-k8s.io/owner-kind"
	ownerNameAnnotation        = "cluster.x-k8s.io/owner-name"
)

// IsOwnerKind reports whether the deletion of an object of this kind deletes Machines: a Cluster,
// or a control plane of any provider of Cluster API.
func IsOwnerKind(group, kind string) bool {
	return group == ClusterAPIGroup && kind == kindCluster || group == controlPlaneGroup
}

// Owns reports whether a Cluster or a control plane owns the Machine of this Node, according to the
// annotations of the Node.
func (o Object) Owns(n *corev1.Node) bool {
	if n.Annotations[clusterNamespaceAnnotation] != o.Namespace {
		return false
	}
	if o.Kind == kindCluster {
		return n.Annotations[clusterNameAnnotation] == o.Name
	}
	return n.Annotations[ownerKindAnnotation] == o.Kind && n.Annotations[ownerNameAnnotation] == o.Name
}
