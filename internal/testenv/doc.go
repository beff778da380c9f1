// Package testenv starts the real servers that Holdfast's tests and demo run against: etcd clusters laid out as installers
// lay them out, and a kube-apiserver. Nothing in it imitates a server. What it starts dies with the process that started
// it, however that ends.
//
// A test takes what it needs and forgets it; it is stopped when the test ends:
//
//	server := testenv.NewInstalledAPIServer(t)               // kube-apiserver with the shipped manifests in effect
//	etcd := testenv.NewEtcd(t, testenv.EtcdOptions{Members: 3, TLS: true})
//	node, kubelet, err := server.AddNode(ctx, testenv.NodeSpec{Name: "worker-1", Ready: true}) // as its kubelet would
//	agent, err := server.ServiceAccountConfig(ctx, "holdfast-system", "holdfast-agent", "worker-1")
//	err = testenv.WriteKubeconfig(path, agent)               // for a child process
//	service, err := server.ServeService(ctx, "holdfast-system", "holdfast-webhook", "127.0.0.1:9443", "127.0.0.1:9444")
//	out, err := server.Kubectl(ctx, "describe", "node", "worker-1")
//
// A program takes StartAPIServer, Apply and StartEtcd, which know nothing of testing, and stops them itself.
//
// The API server learns of policies and webhook configurations by watches of its own, and looks at what it has learnt once
// a second. Apply waits for that; whoever changes a policy afterwards calls Obeyed.
package testenv
