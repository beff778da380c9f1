// Package site runs Holdfast as a cluster runs it: a real kube-apiserver with the shipped manifests, etcd clusters outside
// of it on machines that are directories, the built agent once per node and the built webhook twice behind its Service.
// The demo tells a story on it, the benchmarks measure it, the storm shakes it.
//
// It needs no Docker and no root. What it starts dies with the process that started it.
package site
