// Package drainers tests Holdfast with the real programs that take nodes away: Karpenter with its
// kwok provider, and Cluster API's core with a small infrastructure provider of its own. They run
// against a real kube-apiserver with the shipped manifests, real agents and webhooks, and a real
// etcd cluster whose members are processes. Some of the tests install a component for machines
// (docs/machines.md). `make drainers` runs all of them. The package contains tests only.
//
// There are no kubelets. The test creates the Nodes, or completes those that Karpenter creates, and
// removes pods that are being deleted.
package drainers
