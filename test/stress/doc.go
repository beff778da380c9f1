// Package stress tests Holdfast under load and faults: 16 clients make 200 deletions on a real
// kube-apiserver with the shipped manifests and two real etcd clusters. The clusters have five
// and three members and share two of their six nodes. Meanwhile members are killed and paused,
// machines die as soon as their deletion is allowed, and an operator replaces them. No allowed
// deletion may break the quorum of a cluster. The package contains tests only.
package stress
