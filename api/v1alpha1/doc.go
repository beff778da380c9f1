// Package v1alpha1 contains the custom resource EtcdCluster. The agents publish their
// observations of an etcd cluster in its status, and the webhook records bindings and allowed
// deletions in its spec.
//
// AddToScheme registers the types with a scheme.
//
// +kubebuilder:object:generate=true
// +groupName=holdfast.dev
package v1alpha1
