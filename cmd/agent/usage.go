package main

// usage explains the whole program; a flag that it does not explain fails a test.
func usage() string {
	return `Holdfast's agent keeps one Kubernetes node: it protects the node while etcd runs on it outside Kubernetes, holds a
new node until its network works, and labels it with its SPC record.

  holdfast-agent run --node=NAME [flags]   work until SIGTERM; what the DaemonSet runs
  holdfast-agent inspect [flags]           print what is seen on this host and what would be done; needs no cluster
  holdfast-agent version                   print the version
  holdfast-agent --help                    print this

Exit status: 0 done, 1 failed, 2 a mistake on the command line.

Which node
  --node=NAME                     the node that the agent runs on, the only one that it touches (required)
  --kubeconfig=FILE               how to reach the API server; empty takes the pod's service account
  --host-root=DIR                 where the host's / is mounted (default /)

Holding a node until its network works
  --hold-mode=cordon|taint        how a node is held (default cordon). Autoscalers that know a startup taint want taint,
                                  and so does Cilium, which fights for the condition NetworkUnavailable
  --hold-taint-key=KEY            the taint's key, with --hold-mode=taint: of holdfast.dev/, readiness.k8s.io/ or
                                  startup-taint.cluster-autoscaler.kubernetes.io/, as policy holdfast-nodes lets it
  --hold-unrecorded               hold a node that is not ready and has no hold record: for clusters without the
                                  born-held policy
  --gates=auto|LIST               what must be there before a node is released (default auto: cni, and flannel where
                                  the CNI configuration names it). A list of cni, flannel, network-plugin asks for
                                  those on every node as well; unit:NAME.service in it waits for a systemd unit to
                                  finish, condition:TYPE for a condition of the Node to be True, and
                                  condition:NetworkUnavailable for one to be False, by another than Holdfast
  --flannel-subnet-file=FILE      flannel's subnet file (default /run/flannel/subnet.env)
  --trust-durable-subnet-file     take a subnet file that does not lie on a tmpfs for one of this boot
  --cni-conf-dir=DIR,...          CNI configurations; the first directory with one counts (default /etc/cni/net.d and
                                  k3s' /var/lib/rancher/k3s/agent/etc/cni/net.d)
  --cni-bin-dir=DIR,...           CNI plugins (default /opt/cni/bin, /usr/lib/cni, /usr/libexec/cni, k3s'
                                  /var/lib/rancher/k3s/data/cni and /var/lib/rancher/k3s/data/current/bin, and GKE's
                                  /home/kubernetes/bin)
  --network-plugin-label=KEY=VALUE
                                  nodes with this label also wait for the marker of the network_plugin role, until
                                  they have been released once
  --network-plugin-marker=FILE    the marker: a file that holds the boot ID (default /run/holdfast/network_plugin.done)

Protecting etcd
  --protect-static-pods=BOOL      protect etcd in a static pod too (default true): RKE2 stops it when its Node goes
  --etcd-ca=FILE --etcd-cert=FILE --etcd-key=FILE
                                  a client certificate for etcd, all three together. It is tried first at every etcd
                                  server found; those of the server's own configuration follow, each until one is
                                  taken. Files that change are read anew
  --probe-timeout=DURATION        how long one member may take to answer (default 1.5s; at most 2s)

StackPointCloud
  --spc-inventory=NAMESPACE/NAME  the ConfigMap with the list of machines, written by the webhook; empty does without
  --spc-withhold-group=BOOL       do not label a node that holds etcd, or may, with its SPC group (default true): SPC's
                                  autoscaler 0.4 knows no other protection than not to know the node's group

Running
  --tick=DURATION                 how often to look if nothing happens (default 10s); events wake the agent at once
  --health-listen=ADDRESS         where /healthz and /metrics answer (default 127.0.0.1:9878); empty for nowhere
  --log-level=LEVEL               debug, info, warn or error (default info)
  --log-format=json|text          (default json)

Paths other than --host-root and --kubeconfig are those of the host. No setting comes from an environment variable;
only the way to the API server does, as in every pod (KUBERNETES_SERVICE_HOST, HTTPS_PROXY), and Go's GOGC.
`
}
