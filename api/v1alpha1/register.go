package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// Group is the API group of Holdfast's own objects and the prefix of its keys on Nodes.
	Group = "holdfast.dev"
	// Version is the version of the API that this package holds.
	Version = "v1alpha1"
	// Resource is the plural under which EtcdClusters are served.
	Resource = "etcdclusters"
)

// GroupVersion names the API of this package.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: Group, Version: Version}
}

// AddToScheme registers the types of this package, and the options of list and watch, with a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion(), &EtcdCluster{}, &EtcdClusterList{})
	metav1.AddToGroupVersion(s, GroupVersion())
	return nil
}
