// Package apiserver starts a real kube-apiserver with its own etcd, for tests, benchmarks and
// the demo. A server dies with the process that started it, however that process ends.
//
// A test calls New, NewInstalled or NewOlder. The server stops when the test ends:
//
//	server := apiserver.NewInstalled(t) // with the shipped manifests in effect
//	node, kubelet, err := server.AddNode(ctx, apiserver.NodeSpec{Name: "worker-1"})
//	agent, err := server.ServiceAccountConfig(ctx, namespace, "holdfast-agent", "worker-1")
//	err = apiserver.WriteKubeconfig(path, agent) // for a child process
//	service, err := server.ServeService(ctx, namespace, "holdfast-webhook", "127.0.0.1:9443")
//	out, err := server.Kubectl(ctx, "describe", "node", "worker-1")
//
// A program calls Start and Apply, which do not need the package testing, and stops the server
// itself.
//
// The API server learns of policies and webhook configurations from watches, and updates its
// compiled rules once a second. Apply waits for that. After any other change of a policy, call
// WaitForPolicies.
package apiserver
