package main

import (
	"errors"
	"flag"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/holdfast-dev/holdfast/internal/host"
	"github.com/holdfast-dev/holdfast/pkg/protect"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// config is the command line of `holdfast-agent run`, checked.
type config struct {
	node, kubeconfig string
	host             host.Options
	policy           readiness.Policy
	staticPods       bool
	probeTimeout     time.Duration
	tick             time.Duration
	healthListen     string
	inventory        types.NamespacedName // empty without SPC
	withholdGroup    bool
	logLevel         slog.Level
	logJSON          bool
}

// raw is the command line as it was written.
type raw struct {
	config
	holdMode, taintKey, gates   string
	confDirs, binDirs           string
	etcdCA, etcdCert, etcdKey   string
	inventory, level, logFormat string
}

// flags declares every flag of `holdfast-agent run`. Their help is in usage.go, by topic and in order of use.
func flags(r *raw) *flag.FlagSet {
	set := flag.NewFlagSet("holdfast-agent run", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.StringVar(&r.node, "node", "", "")
	set.StringVar(&r.kubeconfig, "kubeconfig", "", "")
	set.StringVar(&r.host.Root, "host-root", "/", "")
	set.StringVar(&r.holdMode, "hold-mode", "cordon", "")
	set.StringVar(&r.taintKey, "hold-taint-key", "", "")
	set.BoolVar(&r.policy.HoldUnrecorded, "hold-unrecorded", false, "")
	set.StringVar(&r.gates, "gates", "auto", "")
	set.StringVar(&r.host.SubnetFile, "flannel-subnet-file", "/run/flannel/subnet.env", "")
	set.BoolVar(&r.policy.TrustDurableSubnetFile, "trust-durable-subnet-file", false, "")
	set.StringVar(&r.confDirs, "cni-conf-dir", "", "")
	set.StringVar(&r.binDirs, "cni-bin-dir", "", "")
	set.StringVar(&r.host.Marker, "network-plugin-marker", "/run/holdfast/network_plugin.done", "")
	set.StringVar(&r.policy.NetworkPluginLabel, "network-plugin-label", "", "")
	set.BoolVar(&r.staticPods, "protect-static-pods", true, "")
	set.StringVar(&r.etcdCA, "etcd-ca", "", "")
	set.StringVar(&r.etcdCert, "etcd-cert", "", "")
	set.StringVar(&r.etcdKey, "etcd-key", "", "")
	set.DurationVar(&r.probeTimeout, "probe-timeout", 1500*time.Millisecond, "")
	set.DurationVar(&r.tick, "tick", 10*time.Second, "")
	set.StringVar(&r.healthListen, "health-listen", "127.0.0.1:9878", "")
	set.StringVar(&r.inventory, "spc-inventory", "", "")
	set.BoolVar(&r.withholdGroup, "spc-withhold-group", true, "")
	set.StringVar(&r.level, "log-level", "info", "")
	set.StringVar(&r.logFormat, "log-format", "json", "")
	return set
}

// parse reads the command line of `holdfast-agent run`. Every error says what to write instead, but flag.ErrHelp, which is no
// mistake.
func parse(args []string) (config, error) {
	var r raw
	set := flags(&r)
	switch err := set.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return config{}, err
	case err != nil:
		return config{}, misused("%v", err)
	}
	if set.NArg() > 0 {
		return config{}, misused("%q is not a flag; everything that `holdfast-agent run` takes is a flag, such as --node=NAME", set.Arg(0))
	}
	for _, check := range []func(*raw) error{checkNode, checkHost, checkHold, checkGates, checkEtcd, checkTimes, checkOutput, checkInventory} {
		if err := check(&r); err != nil {
			return config{}, err
		}
	}
	return r.config, nil
}

func checkNode(r *raw) error {
	if r.node == "" {
		return misused("--node is missing: give the name of the node that the agent runs on (in a DaemonSet: --node=$(NODE_NAME), from spec.nodeName)")
	}
	if problems := validation.IsDNS1123Subdomain(r.node); len(problems) > 0 {
		return misused("--node=%q cannot be the name of a node: %s", r.node, problems[0])
	}
	return nil
}

func checkHost(r *raw) error {
	r.host.CNIConfDirs, r.host.CNIBinDirs = host.CNIConfDirs(), host.CNIBinDirs()
	if r.confDirs != "" {
		r.host.CNIConfDirs = strings.Split(r.confDirs, ",")
	}
	if r.binDirs != "" {
		r.host.CNIBinDirs = strings.Split(r.binDirs, ",")
	}
	paths := append([]flagged{
		{"--host-root", r.host.Root},
		{"--flannel-subnet-file", r.host.SubnetFile},
		{"--network-plugin-marker", r.host.Marker},
	}, each("--cni-conf-dir", r.host.CNIConfDirs)...)
	return absolute(append(paths, each("--cni-bin-dir", r.host.CNIBinDirs)...))
}

// flagged is a value with the flag that it was given by.
type flagged struct{ flag, value string }

func each(name string, values []string) []flagged {
	var found []flagged
	for _, v := range values {
		found = append(found, flagged{name, v})
	}
	return found
}

func absolute(paths []flagged) error {
	for _, p := range paths {
		if !filepath.IsAbs(p.value) {
			return misused("%s=%q is not an absolute path; give it from / on, as the host has it", p.flag, p.value)
		}
	}
	return nil
}

func checkHold(r *raw) error {
	switch r.holdMode {
	case "cordon":
		if r.taintKey != "" {
			return misused("--hold-taint-key=%q has no effect with --hold-mode=cordon; add --hold-mode=taint or leave the key out", r.taintKey)
		}
		return nil
	case "taint":
		if r.taintKey == "" {
			return misused("--hold-mode=taint needs --hold-taint-key: a key that your autoscaler takes for a startup taint, " +
				"such as readiness.k8s.io/network (Karpenter) or startup-taint.cluster-autoscaler.kubernetes.io/network")
		}
		if problems := validation.IsQualifiedName(r.taintKey); len(problems) > 0 {
			return misused("--hold-taint-key=%q cannot be the key of a taint: %s", r.taintKey, problems[0])
		}
		if prefix, _, _ := strings.Cut(r.taintKey, "/"); !slices.Contains(taintPrefixes(), prefix) {
			return misused("--hold-taint-key=%q is refused by the policy holdfast-nodes, which lets the agent set keys of %s only; "+
				"choose one of those, such as readiness.k8s.io/network", r.taintKey, strings.Join(taintPrefixes(), ", "))
		}
		r.policy.TaintKey = r.taintKey
		return nil
	}
	return misused("--hold-mode=%q is not known; choose cordon or taint", r.holdMode)
}

// taintPrefixes are the prefixes of keys that manifests/base/policies/nodes.yaml lets an agent set. A further one is
// added in both places, or every write of the agent's is refused.
func taintPrefixes() []string {
	return []string{"holdfast.dev", "readiness.k8s.io", "startup-taint.cluster-autoscaler.kubernetes.io"}
}

func checkGates(r *raw) error {
	if r.gates != "auto" {
		r.policy.Force = strings.Split(r.gates, ",")
	}
	if key, value, _ := strings.Cut(r.policy.NetworkPluginLabel, "="); r.policy.NetworkPluginLabel != "" {
		if problems := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(problems) > 0 {
			return misused("--network-plugin-label=%q is not key=value: %s", r.policy.NetworkPluginLabel, problems[0])
		}
	}
	if err := r.policy.Validate(); err != nil {
		return misused("--gates=%q: %v, or auto for those that the node's own CNI calls for", r.gates, err)
	}
	r.host.Units = r.policy.Units()
	return nil
}

func checkEtcd(r *raw) error {
	if r.etcdCA == "" && r.etcdCert == "" && r.etcdKey == "" {
		return nil
	}
	if r.etcdCA == "" || r.etcdCert == "" || r.etcdKey == "" {
		return misused("--etcd-ca, --etcd-cert and --etcd-key go together; give all three, or none for the agent to find them on the host")
	}
	r.host.EtcdCredential = &protect.Credential{CA: r.etcdCA, Cert: r.etcdCert, Key: r.etcdKey, Origin: "--etcd-cert"}
	return absolute([]flagged{{"--etcd-ca", r.etcdCA}, {"--etcd-cert", r.etcdCert}, {"--etcd-key", r.etcdKey}})
}

func checkTimes(r *raw) error {
	if r.probeTimeout < 100*time.Millisecond || r.probeTimeout > 2*time.Second {
		return misused("--probe-timeout=%s: choose between 100ms and 2s; the webhook waits 3s for the answer", r.probeTimeout)
	}
	if r.tick < time.Second || r.tick > 10*time.Minute {
		return misused("--tick=%s: choose between 1s and 10m; events wake the agent anyway", r.tick)
	}
	return nil
}

func checkOutput(r *raw) error {
	if err := r.logLevel.UnmarshalText([]byte(r.level)); err != nil {
		return misused("--log-level=%q is not known; choose debug, info, warn or error", r.level)
	}
	if r.logFormat != "json" && r.logFormat != "text" {
		return misused("--log-format=%q is not known; choose json or text", r.logFormat)
	}
	r.logJSON = r.logFormat == "json"
	if r.healthListen == "" {
		return nil
	}
	if _, err := net.ResolveTCPAddr("tcp", r.healthListen); err != nil {
		return misused("--health-listen=%q is not an address and port such as 127.0.0.1:9878, nor empty for none: %v", r.healthListen, err)
	}
	return nil
}

func checkInventory(r *raw) error {
	if r.inventory == "" {
		return nil
	}
	namespace, name, ok := strings.Cut(r.inventory, "/")
	if !ok || len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return misused("--spc-inventory=%q is not namespace/name of the ConfigMap that the webhook writes, such as holdfast-system/holdfast-spc-inventory", r.inventory)
	}
	r.config.inventory = types.NamespacedName{Namespace: namespace, Name: name}
	return nil
}
