package main

import (
	"bytes"
	"flag"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/internal/node/datasearch"
	"github.com/holdfast-dev/holdfast/internal/node/nodenet"
	"github.com/holdfast-dev/holdfast/internal/operator/cli"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

func TestParse(t *testing.T) {
	tests := map[string]struct {
		args []string
		want func(*config)
	}{
		"defaults": {nil, func(*config) {}},
		"other host": {
			[]string{"--host-root=/host", "--kubeconfig=agent.conf"},
			func(c *config) {
				c.host.Root, c.kubeconfig = "/host", "agent.conf"
			},
		},
		"taint": {
			taintFlags("readiness.k8s.io/network"),
			func(c *config) {
				c.policy.TaintKey = "readiness.k8s.io/network"
			},
		},
		"forced gates": {
			[]string{"--gates=cni,flannel"},
			func(c *config) {
				c.policy.Force = []string{readiness.GateCNI, readiness.GateFlannel}
			},
		},
		"named gates": {[]string{"--gates=unit:a.service,condition:NetworkUnavailable,unit:b.target"}, func(c *config) {
			c.policy.Force = []string{"unit:a.service", "condition:NetworkUnavailable", "unit:b.target"}
			c.host.Units = []string{"a.service", "b.target"}
		}},
		"endpoints": {[]string{"--gates=http::9879/healthz,tcp:[::1]:179,label:a/b=c,condition:X=False"}, func(c *config) {
			c.policy.Force = []string{"http::9879/healthz", "tcp:[::1]:179", "label:a/b=c", "condition:X=False"}
		}},
		"label with value": {
			[]string{"--network-plugin-label=built-by=ansible"},
			func(c *config) {
				c.policy.NetworkPluginLabel = "built-by=ansible"
			},
		},
		"label without value": {
			[]string{"--network-plugin-label=built-by"},
			func(c *config) {
				c.policy.NetworkPluginLabel = "built-by"
			},
		},
		"other paths": {
			[]string{"--flannel-subnet-file=/a", "--cni-conf-dir=/b,/f", "--cni-bin-dir=/c,/d", "--network-plugin-marker=/e"},
			func(c *config) {
				c.host.SubnetFile, c.host.Marker = "/a", "/e"
				c.host.CNIConfDirs, c.host.CNIBinDirs = []string{"/b", "/f"}, []string{"/c", "/d"}
			},
		},
		"no policy": {
			[]string{"--hold-unrecorded", "--trust-durable-subnet-file", "--flannel-uses-etcd"},
			func(c *config) {
				c.policy.HoldUnrecorded, c.policy.TrustDurableSubnetFile, c.policy.FlannelUsesEtcd = true, true, true
			},
		},
		"no static pods": {[]string{"--protect-static-pods=false"}, func(c *config) { c.staticPods = false }},
		"certificate": {certificateFlags("/ca", "/cert", "/key"), func(c *config) {
			c.host.EtcdCredential = &evidence.Credential{CA: "/ca", Cert: "/cert", Key: "/key", Origin: "--etcd-cert"}
		}},
		"CA": {[]string{"--etcd-ca=/ca"}, func(c *config) {
			c.host.EtcdCredential = &evidence.Credential{CA: "/ca", Origin: "--etcd-ca, no client certificate"}
		}},
		"times": {
			[]string{"--probe-timeout=1s", "--tick=1m"},
			func(c *config) {
				c.probeTimeout, c.tick = time.Second, time.Minute
			},
		},
		"data search": {
			[]string{"--data-search-interval=1h", "--data-search-max-time=5m", "--data-search-max-directories=9"},
			func(c *config) {
				c.host.DataSearch = datasearch.Limits{Interval: time.Hour, MaxTime: 5 * time.Minute, MaxDirectories: 9}
			},
		},
		"no data search": {[]string{"--data-search-interval=0"}, func(c *config) { c.host.DataSearch.Interval = 0 }},
		"no health":      {[]string{"--health-listen="}, func(c *config) { c.healthListen = "" }},
		"metrics":        {[]string{"--metrics-listen=:11878"}, func(c *config) { c.metricsListen = ":11878" }},
		"spc": {
			[]string{"--spc-inventory=holdfast-system/machines"},
			func(c *config) {
				c.inventory = types.NamespacedName{Namespace: "holdfast-system", Name: "machines"}
			},
		},
		"spc group": {[]string{"--spc-withhold-group=false"}, func(c *config) { c.withholdGroup = false }},
		"output": {
			[]string{"--log-level=warn", "--log-format=text"},
			func(c *config) {
				c.log = cli.LogOptions{Level: slog.LevelWarn}
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			want := config{
				node: "n1", staticPods: true, probeTimeout: 500 * time.Millisecond, tick: 10 * time.Second,
				healthListen: "127.0.0.1:11877", log: cli.LogOptions{JSON: true}, withholdGroup: true,
			}
			want.host.DataSearch = datasearch.Limits{
				Interval: 6 * time.Hour, MaxTime: 2 * time.Hour, MaxDirectories: 5_000_000,
			}
			want.host.Root, want.host.Network = "/", nodenet.Network{}.WithDefaults()
			test.want(&want)
			got, err := parse(append([]string{"--node=n1"}, test.args...))
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
}

func TestUsageErrors(t *testing.T) {
	for name, test := range map[string]struct {
		flags []string // in addition to run --node=n1
		want  string
	}{
		"invalid node":         {[]string{"--node=N 1"}, "is not a valid node name"},
		"unknown flag":         {[]string{"--nod=n1"}, "flag provided but not defined: -nod"},
		"argument":             {[]string{"now"}, `unexpected argument "now"; holdfast-agent run has flags only`},
		"invalid bool":         {[]string{"--protect-static-pods=perhaps"}, "perhaps"},
		"invalid duration":     {[]string{"--tick=soon"}, "soon"},
		"relative root":        {[]string{"--host-root=host"}, `--host-root="host" is not an absolute path`},
		"relative plugin":      {[]string{"--cni-bin-dir=/opt/cni/bin,bin"}, `--cni-bin-dir="bin" is not an absolute path`},
		"empty subnet file":    {[]string{"--flannel-subnet-file="}, "--flannel-subnet-file"},
		"unknown hold mode":    {[]string{"--hold-mode=drain"}, "use cordon or taint"},
		"taint without key":    {[]string{"--hold-mode=taint"}, "--hold-mode=taint requires --hold-taint-key"},
		"key without taint":    {[]string{"--hold-taint-key=a/b"}, "add --hold-mode=taint"},
		"refused taint":        {taintFlags("example.org/network"), "policy holdfast-nodes refuses --hold-taint-key"},
		"taint without prefix": {taintFlags("network"), "policy holdfast-nodes refuses --hold-taint-key"},
		"invalid taint":        {taintFlags("a b"), "is not a valid taint key"},
		"invalid unit":         {[]string{"--gates=unit:network"}, "write the full name of one systemd unit"},
		"URL as a gate":        {[]string{"--gates=http://localhost:80/"}, "write HOST:PORT/PATH without //"},
		"port of a gate":       {[]string{"--gates=tcp:localhost"}, "write HOST:PORT, such as 127.0.0.1:9879"},
		"label of a gate":      {[]string{"--gates=label:=x"}, "write label:KEY or label:KEY=VALUE"},
		"status of a gate":     {[]string{"--gates=condition:X=Unknown"}, "the status must be True or False"},
		"unknown gate":         {[]string{"--gates=cni,dns"}, `unknown gate "dns"`},
		"invalid label":        {[]string{"--network-plugin-label==yes"}, "is not a label key=value"},
		"one certificate":      {[]string{"--etcd-cert=/cert"}, "belong together"},
		"CA and certificate":   {[]string{"--etcd-ca=/ca", "--etcd-cert=/cert"}, "belong together"},
		"relative CA":          {[]string{"--etcd-ca=ca"}, `--etcd-ca="ca" is not an absolute path`},
		"relative certificate": {certificateFlags("ca", "/cert", "/key"), `--etcd-ca="ca" is not an absolute path`},
		"long probe":           {[]string{"--probe-timeout=5s"}, "use 100ms to 2s"},
		"short data search":    {[]string{"--data-search-interval=1m"}, "use 10m or more, or 0 for no searches"},
		"no directories":       {[]string{"--data-search-max-directories=0"}, "use at least 1s and 1"},
		"short tick":           {[]string{"--tick=1ms"}, "use 1s to 10m"},
		"unknown level":        {[]string{"--log-level=loud"}, "use debug, info, warn or error"},
		"unknown format":       {[]string{"--log-format=xml"}, "use json or text"},
		"invalid address":      {[]string{"--health-listen=here"}, "is not an address with a port"},
		"invalid metrics":      {[]string{"--metrics-listen=11878"}, "is not an address with a port, such as :11878"},
		"invalid ConfigMap":    {[]string{"--spc-inventory=machines"}, "is not the namespace/name"},
	} {
		t.Run(name, func(t *testing.T) {
			requireUsageError(t, append([]string{"run", "--node=n1"}, test.flags...), test.want)
		})
	}
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"no command":       {nil, "a command is required"},
		"unknown command":  {[]string{"walk"}, `unknown command "walk"`},
		"missing node":     {[]string{"run"}, "--node is required"},
		"error of inspect": {[]string{"inspect", "--gates=dns"}, `unknown gate "dns"`},
	} {
		t.Run(name, func(t *testing.T) { requireUsageError(t, test.args, test.want) })
	}
}

func requireUsageError(t *testing.T, args []string, want string) {
	t.Helper()
	var out, errOut bytes.Buffer
	require.Equal(t, 2, execute(t.Context(), args, &out, &errOut), errOut.String())
	require.Contains(t, errOut.String(), want)
	require.Contains(t, errOut.String(), "--help` for usage.")
	require.Empty(t, out.String())
}

func taintFlags(key string) []string { return []string{"--hold-mode=taint", "--hold-taint-key=" + key} }

func certificateFlags(ca, cert, key string) []string {
	return []string{"--etcd-ca=" + ca, "--etcd-cert=" + cert, "--etcd-key=" + key}
}

func TestFailures(t *testing.T) {
	tests := map[string]struct {
		args []string
		want string
	}{
		"no kubeconfig": {[]string{"--kubeconfig=/nowhere/admin.conf"}, "/nowhere/admin.conf"},
		"no host":       {[]string{"--kubeconfig=testdata/kubeconfig", "--host-root=/nowhere"}, "/nowhere"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			args := append([]string{"run", "--node=n1"}, test.args...)
			require.Equal(t, 1, execute(t.Context(), args, &out, &errOut), errOut.String())
			require.Contains(t, errOut.String(), test.want)
		})
	}
}

func TestHelpAndVersion(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"-h"}, {"help"}, {"run", "--help"}} {
		var out, errOut bytes.Buffer
		require.Zero(t, execute(t.Context(), args, &out, &errOut), "%v", args)
		require.Equal(t, usage, out.String())
		require.Empty(t, errOut.String())
	}
	var out, errOut bytes.Buffer
	require.Zero(t, execute(t.Context(), []string{"version"}, &out, &errOut))
	require.True(t, strings.HasPrefix(out.String(), "holdfast agent "), out.String())
}

func TestTaintPrefixes(t *testing.T) {
	policy, err := os.ReadFile("../../manifests/base/policies/nodes.yaml")
	require.NoError(t, err)
	var prefixes []string
	for _, prefix := range taintPrefixes() {
		prefixes = append(prefixes, strings.ReplaceAll(prefix, ".", "[.]"))
	}
	pattern := `"^(` + strings.Join(prefixes, "|") + `)/"`
	require.Equal(t, 2, strings.Count(string(policy), pattern), "one rule to set and one to remove a taint")
}

func TestUsage(t *testing.T) {
	network := nodenet.Network{}.WithDefaults()
	for _, dir := range slices.Concat(network.CNIConfDirs, network.CNIBinDirs) {
		require.Contains(t, usage, dir)
	}
	new(flags).flagSet().VisitAll(func(f *flag.Flag) {
		require.Contains(t, usage, " --"+f.Name, "usage does not explain --%s", f.Name)
		if f.DefValue != "" && f.DefValue != "false" {
			require.Contains(t, usage, "default "+f.DefValue, "usage does not give the default of --%s", f.Name)
		}
	})
	for _, line := range strings.Split(usage, "\n") {
		require.LessOrEqual(t, len(line), 120, line)
	}
}
