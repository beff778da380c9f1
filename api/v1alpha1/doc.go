// Package v1alpha1 holds EtcdCluster, the one object in which agents publish what they see of an etcd cluster and the
// webhook keeps what it has allowed.
//
// +kubebuilder:object:generate=true
// +groupName=holdfast.dev
package v1alpha1
