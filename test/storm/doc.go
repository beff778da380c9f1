// Package storm shakes Holdfast as a whole: two hundred deletions from sixteen clients at once, on a real kube-apiserver
// with the shipped manifests and two real etcd clusters, one of five and one of three members that share two of their six
// nodes. Members are killed and hang meanwhile, machines die as soon as their deletion was allowed, and an operator
// replaces them. Nobody may be allowed to take a cluster below its quorum. All of it is in the package's tests.
package storm
