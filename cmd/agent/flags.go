package main

import (
	"cmp"
	"flag"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/holdfast-dev/holdfast/internal/node/host"
	"github.com/holdfast-dev/holdfast/internal/operator/cli"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// config holds the checked flags of `holdfast-agent run`.
type config struct {
	node, kubeconfig string
	host             host.Options
	policy           readiness.Policy
	staticPods       bool
	probeTimeout     time.Duration
	tick             time.Duration
	healthListen     string
	metricsListen    string
	inventory        types.NamespacedName // empty without SPC
	withholdGroup    bool
	log              cli.LogOptions
}

// flags holds the flags of `holdfast-agent run` as they were written.
type flags struct {
	config
	holdMode, gates           string
	etcdCA, etcdCert, etcdKey string
	spcInventory              string
	logFlags                  cli.LogFlags
}

// usage is the help of the program. A test checks that it explains every flag.
const usage = `Holdfast's agent manages one Kubernetes node. It protects the node while etcd runs on the host,
holds a new node until its network works, and labels the node with its SPC record.

  holdfast-agent run --node=NAME [flags]   work until SIGTERM; the command of the DaemonSet
  holdfast-agent inspect [flags]           print what the agent observes on this host and what it would do;
                                           needs no cluster
  holdfast-agent version, --version        print the version
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
  --hold-unrecorded               hold a node that has no hold record, is not ready, and is not known to have been
                                  ready. For clusters without the born-held policy
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
                                  every second, with a time limit of 3s; another one only while that can change
                                  the decision about it
  --flannel-subnet-file=FILE      flannel's subnet file (default /run/flannel/subnet.env)
  --trust-durable-subnet-file     treat a subnet file that is not on a tmpfs as written in this boot
  --flannel-uses-etcd             flannel stores its subnets in etcd, so accept its subnet file on a Node without
                                  podCIDRs
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
                                  client certificate for etcd, all three, or --etcd-ca alone for an etcd that wants
                                  none. The agent tries it first at every etcd server on the host. Then it tries the
                                  certificates in the server's own configuration until the server accepts one. It
                                  reads changed files again
  --probe-timeout=DURATION        time limit for the answer of one member (default 500ms; at most 2s)
  --data-search-interval=DURATION interval between two searches of the local disks for data of stopped members
                                  (default 6h0m0s). The agent also searches at its start, after a disk was mounted,
                                  and if a member of this node was not found. With 0 it never does, and finds data
                                  only in known places
  --data-search-max-time=DURATION time limit of one search (default 2h0m0s)
  --data-search-max-directories=N most directories of one search (default 5000000). A search that ends at a limit
                                  proves no absence of etcd

StackPointCloud
  --spc-inventory=NAMESPACE/NAME  list of machines, published by the webhook. The agent reads the ConfigMap NAME-N for
                                  its Node. If empty, the agent does not use SPC
  --spc-withhold-group=BOOL       do not label a node with its SPC group if it holds etcd, or may hold etcd
                                  (default true). SPC's autoscaler 0.4 leaves only nodes without a group alone

Running
  --tick=DURATION                 interval between checks when there are no events (default 10s). An event wakes
                                  the agent immediately
  --health-listen=ADDRESS         address for /healthz and /metrics (default 127.0.0.1:11877). If empty, the agent
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

// flagSet declares every flag of `holdfast-agent run`. The constant usage explains them.
func (f *flags) flagSet() *flag.FlagSet {
	set := cli.NewFlagSet("holdfast-agent run")
	f.host.Network = f.host.WithDefaults()
	set.StringVar(&f.node, "node", "", "")
	set.StringVar(&f.kubeconfig, "kubeconfig", "", "")
	set.StringVar(&f.host.Root, "host-root", "/", "")
	set.StringVar(&f.holdMode, "hold-mode", "cordon", "")
	set.StringVar(&f.policy.TaintKey, "hold-taint-key", "", "")
	set.BoolVar(&f.policy.HoldUnrecorded, "hold-unrecorded", false, "")
	set.StringVar(&f.gates, "gates", "auto", "")
	set.StringVar(&f.host.SubnetFile, "flannel-subnet-file", f.host.SubnetFile, "")
	set.BoolVar(&f.policy.TrustDurableSubnetFile, "trust-durable-subnet-file", false, "")
	set.BoolVar(&f.policy.FlannelUsesEtcd, "flannel-uses-etcd", false, "")
	set.Func("cni-conf-dir", "", splitInto(&f.host.CNIConfDirs))
	set.Func("cni-bin-dir", "", splitInto(&f.host.CNIBinDirs))
	set.StringVar(&f.host.Marker, "network-plugin-marker", f.host.Marker, "")
	set.StringVar(&f.policy.NetworkPluginLabel, "network-plugin-label", "", "")
	set.BoolVar(&f.staticPods, "protect-static-pods", true, "")
	set.StringVar(&f.etcdCA, "etcd-ca", "", "")
	set.StringVar(&f.etcdCert, "etcd-cert", "", "")
	set.StringVar(&f.etcdKey, "etcd-key", "", "")
	set.DurationVar(&f.probeTimeout, "probe-timeout", 500*time.Millisecond, "")
	set.DurationVar(&f.host.DataSearch.Interval, "data-search-interval", 6*time.Hour, "")
	set.DurationVar(&f.host.DataSearch.MaxTime, "data-search-max-time", 2*time.Hour, "")
	set.IntVar(&f.host.DataSearch.MaxDirectories, "data-search-max-directories", 5_000_000, "")
	set.DurationVar(&f.tick, "tick", 10*time.Second, "")
	set.StringVar(&f.healthListen, "health-listen", "127.0.0.1:11877", "")
	set.StringVar(&f.metricsListen, "metrics-listen", "", "")
	set.StringVar(&f.spcInventory, "spc-inventory", "", "")
	set.BoolVar(&f.withholdGroup, "spc-withhold-group", true, "")
	f.logFlags.AddTo(set)
	return set
}

// parse returns the checked flags of `holdfast-agent run`, a usage error, or flag.ErrHelp.
func parse(args []string) (config, error) {
	var f flags
	err := cli.ParseFlags(f.flagSet(), args, "--node=NAME", &f,
		checkNode, checkHost, completeHold, completeGates, completeEtcd, checkTimes, completeOutput,
		completeInventory)
	return f.config, err
}

func checkNode(f *flags) error {
	if f.node == "" {
		return cli.UsageErrorf("--node is required: the name of the node on which the agent runs " +
			"(in a DaemonSet: --node=$(NODE_NAME), from spec.nodeName)")
	}
	if problems := validation.IsDNS1123Subdomain(f.node); len(problems) > 0 {
		return cli.UsageErrorf("--node=%q is not a valid node name: %s", f.node, problems[0])
	}
	return nil
}

func splitInto(list *[]string) func(string) error {
	return func(value string) error {
		*list = strings.Split(value, ",")
		return nil
	}
}

func checkHost(f *flags) error {
	return cmp.Or(
		checkAbsolute("--host-root", f.host.Root),
		checkAbsolute("--flannel-subnet-file", f.host.SubnetFile),
		checkAbsolute("--network-plugin-marker", f.host.Marker),
		checkAbsolute("--cni-conf-dir", f.host.CNIConfDirs...),
		checkAbsolute("--cni-bin-dir", f.host.CNIBinDirs...),
	)
}

func checkAbsolute(name string, paths ...string) error {
	for _, path := range paths {
		if !filepath.IsAbs(path) {
			return cli.UsageErrorf("%s=%q is not an absolute path; write the full path, beginning with /", name, path)
		}
	}
	return nil
}

func completeHold(f *flags) error {
	key := f.policy.TaintKey
	prefix, _, _ := strings.Cut(key, "/")
	problems := validation.IsQualifiedName(key)
	switch {
	case f.holdMode == "cordon" && key != "":
		return cli.UsageErrorf("--hold-taint-key=%q has no effect with --hold-mode=cordon; "+
			"add --hold-mode=taint, or remove the key", key)
	case f.holdMode == "cordon":
		return nil
	case f.holdMode != "taint":
		return cli.UsageErrorf("--hold-mode=%q is unknown; use cordon or taint", f.holdMode)
	case key == "":
		return cli.UsageErrorf("--hold-mode=taint requires --hold-taint-key: a key that your autoscaler treats as " +
			"a startup taint, such as readiness.k8s.io/network (Karpenter) or " +
			"startup-taint.cluster-autoscaler.kubernetes.io/network")
	case len(problems) > 0:
		return cli.UsageErrorf("--hold-taint-key=%q is not a valid taint key: %s", key, problems[0])
	case !slices.Contains(taintPrefixes(), prefix):
		return cli.UsageErrorf("policy holdfast-nodes refuses --hold-taint-key=%q; use a key of %s, "+
			"such as readiness.k8s.io/network", key, strings.Join(taintPrefixes(), ", "))
	}
	return nil
}

// taintPrefixes returns the key prefixes that manifests/base/policies/nodes.yaml lets an
// agent set. A new prefix must be added in both places, or the policy refuses every write
// of the agent.
func taintPrefixes() []string {
	return []string{"holdfast.dev", "readiness.k8s.io", "startup-taint.cluster-autoscaler.kubernetes.io"}
}

func completeGates(f *flags) error {
	if f.gates != "auto" {
		f.policy.Force = strings.Split(f.gates, ",")
	}
	if key, value, _ := strings.Cut(f.policy.NetworkPluginLabel, "="); f.policy.NetworkPluginLabel != "" {
		if problems := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(problems) > 0 {
			return cli.UsageErrorf("--network-plugin-label=%q is not a label key=value: %s",
				f.policy.NetworkPluginLabel, problems[0])
		}
	}
	if err := f.policy.Validate(); err != nil {
		return cli.UsageErrorf("--gates=%q: %v; auto selects the gates that the node's CNI configuration needs", f.gates, err)
	}
	f.host.Units = f.policy.Units()
	return nil
}

func completeEtcd(f *flags) error {
	own := evidence.Credential{CA: f.etcdCA, Cert: f.etcdCert, Key: f.etcdKey, Origin: "--etcd-cert"}
	var err error
	switch {
	case f.etcdCA == "" && f.etcdCert == "" && f.etcdKey == "":
		return nil
	case f.etcdCert == "" && f.etcdKey == "":
		own.Origin = "--etcd-ca, no client certificate"
	case f.etcdCA == "" || f.etcdCert == "" || f.etcdKey == "":
		return cli.UsageErrorf("--etcd-ca, --etcd-cert and --etcd-key belong together; set all three, --etcd-ca alone for " +
			"an etcd that wants no client certificate, or none to use the certificates on the host")
	default:
		err = cmp.Or(checkAbsolute("--etcd-cert", f.etcdCert), checkAbsolute("--etcd-key", f.etcdKey))
	}
	f.host.EtcdCredential = &own
	return cmp.Or(checkAbsolute("--etcd-ca", f.etcdCA), err)
}

func checkTimes(f *flags) error {
	if f.probeTimeout < 100*time.Millisecond || f.probeTimeout > 2*time.Second {
		return cli.UsageErrorf("--probe-timeout=%s is out of range; use 100ms to 2s, because the webhook waits 3s",
			f.probeTimeout)
	}
	search := f.host.DataSearch
	if search.Interval != 0 && search.Interval < 10*time.Minute {
		return cli.UsageErrorf("--data-search-interval=%s is out of range; use 10m or more, or 0 for no searches",
			search.Interval)
	}
	if search.MaxTime < time.Second || search.MaxDirectories < 1 {
		return cli.UsageErrorf("--data-search-max-time=%s and --data-search-max-directories=%d: use at least 1s and 1; "+
			"--data-search-interval=0 switches the searches off", search.MaxTime, search.MaxDirectories)
	}
	if f.tick < time.Second || f.tick > 10*time.Minute {
		return cli.UsageErrorf("--tick=%s is out of range; use 1s to 10m", f.tick)
	}
	return nil
}

func completeOutput(f *flags) (err error) {
	if f.log, err = f.logFlags.Options(); err != nil {
		return err
	}
	if f.healthListen != "" {
		err = cli.CheckAddress("--health-listen", f.healthListen, "127.0.0.1:11877")
	}
	if err == nil && f.metricsListen != "" {
		err = cli.CheckAddress("--metrics-listen", f.metricsListen, ":11878")
	}
	return err
}

func completeInventory(f *flags) error {
	if f.spcInventory == "" {
		return nil
	}
	namespace, name, ok := strings.Cut(f.spcInventory, "/")
	if !ok || len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return cli.UsageErrorf("--spc-inventory=%q is not the namespace/name of a ConfigMap; use that of the webhook, "+
			"such as holdfast-system/holdfast-spc-inventory", f.spcInventory)
	}
	f.inventory = types.NamespacedName{Namespace: namespace, Name: name}
	return nil
}
