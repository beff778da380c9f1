package main

// usage is the help of the program. A test checks that it explains every flag.
const usage = `Holdfast's agent manages one Kubernetes node. It protects the node while etcd runs on the host outside
Kubernetes, holds a new node until its network works, and labels the node with its SPC record.

  holdfast-agent run --node=NAME [flags]   work until SIGTERM; the command of the DaemonSet
  holdfast-agent inspect [flags]           print what the agent observes on this host and what it would do;
                                           needs no cluster
  holdfast-agent version                   print the version
  holdfast-agent --help                    print this help

Exit codes: 0 success, 1 failure, 2 usage error.

Node
  --node=NAME                     name of the agent's node (required). The agent changes no other node
  --kubeconfig=FILE               kubeconfig for the API server. If empty, the agent uses the service account of
                                  its pod
  --host-root=DIR                 directory where the host's / is mounted (default /)

Holding a node until its network works
  --hold-mode=cordon|taint        how the agent holds a node (default cordon). Use taint if your autoscaler
                                  knows startup taints, or with Cilium, which also sets the condition
                                  NetworkUnavailable
  --hold-taint-key=KEY            key of the taint, with --hold-mode=taint. Policy holdfast-nodes allows keys of
                                  holdfast.dev/, readiness.k8s.io/ and
                                  startup-taint.cluster-autoscaler.kubernetes.io/
  --hold-unrecorded               hold a node that is not ready and has no hold record. For clusters without the
                                  born-held policy
  --gates=auto|LIST               gates that must be open before the agent releases a node (default auto: cni, and
                                  flannel if the CNI configuration names it). A list of cni, flannel and
                                  network-plugin requires these gates on every node too. In a list,
                                  unit:NAME.service waits until a systemd unit has finished. condition:TYPE waits
                                  until a condition of the Node is True, and condition:TYPE=False until it is
                                  False. condition:NetworkUnavailable waits until a component other than Holdfast
                                  has set that condition to False. label:KEY or label:KEY=VALUE waits for a label
                                  of the Node. http:HOST:PORT/PATH waits until a GET request is answered with a 2xx
                                  status; https: too, without a check of the certificate. tcp:HOST:PORT waits until
                                  a connection is accepted. Without HOST it is 127.0.0.1. A held node is probed
                                  every second, with a time limit of 3s; a released one is not probed
  --flannel-subnet-file=FILE      flannel's subnet file (default /run/flannel/subnet.env)
  --trust-durable-subnet-file     treat a subnet file that is not on a tmpfs as written in this boot
  --cni-conf-dir=DIR,...          directories of CNI configurations. The agent uses the first directory that has
                                  one (default /etc/cni/net.d and k3s'
                                  /var/lib/rancher/k3s/agent/etc/cni/net.d)
  --cni-bin-dir=DIR,...           directories of CNI plugins (default /opt/cni/bin, /usr/lib/cni,
                                  /usr/libexec/cni, k3s' /var/lib/rancher/k3s/data/cni and
                                  /var/lib/rancher/k3s/data/current/bin, and GKE's /home/kubernetes/bin)
  --network-plugin-label=KEY=VALUE
                                  a node with this label also waits for the marker of the network_plugin role,
                                  until its first release
  --network-plugin-marker=FILE    the marker: a file that contains the boot ID
                                  (default /run/holdfast/network_plugin.done)

Protecting etcd
  --protect-static-pods=BOOL      also protect etcd in a static pod (default true). RKE2 stops its etcd when the
                                  Node is deleted
  --etcd-ca=FILE --etcd-cert=FILE --etcd-key=FILE
                                  client certificate for etcd; set all three or none. The agent tries it first at
                                  every etcd server on the host. Then it tries the certificates in the server's
                                  own configuration until the server accepts one. It reads changed files again
  --probe-timeout=DURATION        time limit for the answer of one member (default 1.5s; at most 2s)

StackPointCloud
  --spc-inventory=NAMESPACE/NAME  ConfigMap with the list of machines, written by the webhook. If empty, the agent
                                  does not use SPC
  --spc-withhold-group=BOOL       do not label a node with its SPC group if it holds etcd, or may hold etcd
                                  (default true). SPC's autoscaler 0.4 leaves only nodes without a group alone

Running
  --tick=DURATION                 interval between checks when there are no events (default 10s). An event wakes
                                  the agent immediately
  --health-listen=ADDRESS         address for /healthz and /metrics (default 127.0.0.1:9878). If empty, the agent
                                  does not serve them
  --metrics-listen=ADDRESS        address for /metrics over HTTPS, such as :11878. If empty, the agent does not serve
                                  it (default). A client needs a token of a user who may get the URL /metrics. The
                                  agent creates its certificate at every start. The component metrics sets this
                                  flag with the permissions that it needs
  --log-level=LEVEL               debug, info, warn or error (default info)
  --log-format=json|text          format of the log (default json)

All paths are paths on the host, except --host-root and --kubeconfig. No setting comes from an environment
variable, except how to reach the API server, as in every pod (KUBERNETES_SERVICE_HOST, HTTPS_PROXY), and Go's
GOGC.
`
