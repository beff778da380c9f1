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

	"github.com/holdfast-dev/holdfast/internal/host"
	"github.com/holdfast-dev/holdfast/pkg/protect"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

func TestParse(t *testing.T) {
	tests := map[string]struct {
		args []string
		want func(*config)
	}{
		"the least":           {nil, func(*config) {}},
		"another host":        {[]string{"--host-root=/host", "--kubeconfig=agent.conf"}, func(c *config) { c.host.Root, c.kubeconfig = "/host", "agent.conf" }},
		"taint":               {[]string{"--hold-mode=taint", "--hold-taint-key=readiness.k8s.io/network"}, func(c *config) { c.policy.TaintKey = "readiness.k8s.io/network" }},
		"gates on every node": {[]string{"--gates=cni,flannel"}, func(c *config) { c.policy.Force = []string{readiness.GateCNI, readiness.GateFlannel} }},
		"named gates": {[]string{"--gates=unit:a.service,condition:NetworkUnavailable,unit:b.target"}, func(c *config) {
			c.policy.Force = []string{"unit:a.service", "condition:NetworkUnavailable", "unit:b.target"}
			c.host.Units = []string{"a.service", "b.target"}
		}},
		"label with value":    {[]string{"--network-plugin-label=built-by=ansible"}, func(c *config) { c.policy.NetworkPluginLabel = "built-by=ansible" }},
		"label without value": {[]string{"--network-plugin-label=built-by"}, func(c *config) { c.policy.NetworkPluginLabel = "built-by" }},
		"other paths": {
			[]string{"--flannel-subnet-file=/a", "--cni-conf-dir=/b,/f", "--cni-bin-dir=/c,/d", "--network-plugin-marker=/e"},
			func(c *config) {
				c.host.SubnetFile, c.host.CNIConfDirs, c.host.CNIBinDirs, c.host.Marker = "/a", []string{"/b", "/f"}, []string{"/c", "/d"}, "/e"
			},
		},
		"without the policy": {
			[]string{"--hold-unrecorded", "--trust-durable-subnet-file"},
			func(c *config) { c.policy.HoldUnrecorded, c.policy.TrustDurableSubnetFile = true, true },
		},
		"no static pods": {[]string{"--protect-static-pods=false"}, func(c *config) { c.staticPods = false }},
		"a certificate": {[]string{"--etcd-ca=/ca", "--etcd-cert=/cert", "--etcd-key=/key"}, func(c *config) {
			c.host.EtcdCredential = &protect.Credential{CA: "/ca", Cert: "/cert", Key: "/key", Origin: "--etcd-cert"}
		}},
		"times":     {[]string{"--probe-timeout=1s", "--tick=1m"}, func(c *config) { c.probeTimeout, c.tick = time.Second, time.Minute }},
		"no health": {[]string{"--health-listen="}, func(c *config) { c.healthListen = "" }},
		"spc":       {[]string{"--spc-inventory=holdfast-system/machines"}, func(c *config) { c.inventory = types.NamespacedName{Namespace: "holdfast-system", Name: "machines"} }},
		"spc group": {[]string{"--spc-withhold-group=false"}, func(c *config) { c.withholdGroup = false }},
		"output":    {[]string{"--log-level=warn", "--log-format=text"}, func(c *config) { c.logLevel, c.logJSON = slog.LevelWarn, false }},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			want := config{
				node: "n1", staticPods: true, probeTimeout: 1500 * time.Millisecond, tick: 10 * time.Second,
				healthListen: "127.0.0.1:9878", logJSON: true, withholdGroup: true,
			}
			want.host.Root, want.host.SubnetFile = "/", "/run/flannel/subnet.env"
			want.host.CNIConfDirs, want.host.CNIBinDirs = host.CNIConfDirs(), host.CNIBinDirs()
			want.host.Marker = "/run/holdfast/network_plugin.done"
			test.want(&want)
			got, err := parse(append([]string{"--node=n1"}, test.args...))
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
}

func TestMistakesAreAnsweredWithASentenceAndStatusTwo(t *testing.T) {
	tests := map[string]struct {
		args []string
		says string
	}{
		"nothing":                {nil, "say what to do"},
		"no such command":        {[]string{"walk"}, `no command "walk"`},
		"no node":                {[]string{"run"}, "--node is missing"},
		"no node's name":         {[]string{"run", "--node=N 1"}, "cannot be the name of a node"},
		"no such flag":           {[]string{"run", "--nod=n1"}, "flag provided but not defined: -nod"},
		"no flag at all":         {[]string{"run", "--node=n1", "now"}, `"now" is not a flag`},
		"no bool":                {[]string{"run", "--node=n1", "--protect-static-pods=perhaps"}, "perhaps"},
		"no duration":            {[]string{"run", "--node=n1", "--tick=soon"}, "soon"},
		"relative root":          {[]string{"run", "--node=n1", "--host-root=host"}, "--host-root=\"host\" is not an absolute path"},
		"relative plugin":        {[]string{"run", "--node=n1", "--cni-bin-dir=/opt/cni/bin,bin"}, "--cni-bin-dir=\"bin\" is not an absolute path"},
		"empty subnet file":      {[]string{"run", "--node=n1", "--flannel-subnet-file="}, "--flannel-subnet-file"},
		"no such hold mode":      {[]string{"run", "--node=n1", "--hold-mode=drain"}, "choose cordon or taint"},
		"taint without key":      {[]string{"run", "--node=n1", "--hold-mode=taint"}, "--hold-mode=taint needs --hold-taint-key"},
		"key without taint":      {[]string{"run", "--node=n1", "--hold-taint-key=a/b"}, "add --hold-mode=taint"},
		"refused taint":          {[]string{"run", "--node=n1", "--hold-mode=taint", "--hold-taint-key=example.org/network"}, "is refused by the policy holdfast-nodes"},
		"taint without prefix":   {[]string{"run", "--node=n1", "--hold-mode=taint", "--hold-taint-key=network"}, "is refused by the policy holdfast-nodes"},
		"no taint's key":         {[]string{"run", "--node=n1", "--hold-mode=taint", "--hold-taint-key=a b"}, "cannot be the key of a taint"},
		"no unit's name":         {[]string{"run", "--node=n1", "--gates=unit:network"}, "write the whole name of one systemd unit"},
		"no such gate":           {[]string{"run", "--node=n1", "--gates=cni,dns"}, `gate "dns" is not known`},
		"no label":               {[]string{"run", "--node=n1", "--network-plugin-label==yes"}, "is not key=value"},
		"half a certificate":     {[]string{"run", "--node=n1", "--etcd-cert=/cert"}, "go together"},
		"relative certificate":   {[]string{"run", "--node=n1", "--etcd-ca=ca", "--etcd-cert=/cert", "--etcd-key=/key"}, "--etcd-ca=\"ca\" is not an absolute path"},
		"probes take too long":   {[]string{"run", "--node=n1", "--probe-timeout=5s"}, "choose between 100ms and 2s"},
		"ticks come too often":   {[]string{"run", "--node=n1", "--tick=1ms"}, "choose between 1s and 10m"},
		"no such level":          {[]string{"run", "--node=n1", "--log-level=loud"}, "choose debug, info, warn or error"},
		"no such format":         {[]string{"run", "--node=n1", "--log-format=xml"}, "choose json or text"},
		"no address":             {[]string{"run", "--node=n1", "--health-listen=here"}, "is not an address and port"},
		"no ConfigMap":           {[]string{"run", "--node=n1", "--spc-inventory=machines"}, "is not namespace/name"},
		"mistake of inspect too": {[]string{"inspect", "--gates=dns"}, `gate "dns" is not known`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			require.Equal(t, 2, command(t.Context(), test.args, &out, &errOut), errOut.String())
			require.Contains(t, errOut.String(), test.says)
			require.Empty(t, out.String())
		})
	}
}

func TestFailuresHaveStatusOne(t *testing.T) {
	tests := map[string]struct {
		args []string
		says string
	}{
		"no kubeconfig": {[]string{"--kubeconfig=/nowhere/admin.conf"}, "/nowhere/admin.conf"},
		"no host":       {[]string{"--kubeconfig=testdata/kubeconfig", "--host-root=/nowhere"}, "/nowhere"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			require.Equal(t, 1, command(t.Context(), append([]string{"run", "--node=n1"}, test.args...), &out, &errOut), errOut.String())
			require.Contains(t, errOut.String(), test.says)
		})
	}
}

func TestHelpAndVersion(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"-h"}, {"help"}, {"run", "--help"}} {
		var out, errOut bytes.Buffer
		require.Zero(t, command(t.Context(), args, &out, &errOut), "%v", args)
		require.Equal(t, usage(), out.String())
		require.Empty(t, errOut.String())
	}
	var out, errOut bytes.Buffer
	require.Zero(t, command(t.Context(), []string{"version"}, &out, &errOut))
	require.True(t, strings.HasPrefix(out.String(), "holdfast agent "), out.String())
}

func TestThePolicyLetsEveryTaintThatTheFlagTakes(t *testing.T) {
	policy, err := os.ReadFile("../../manifests/base/policies/nodes.yaml")
	require.NoError(t, err)
	var prefixes []string
	for _, prefix := range taintPrefixes() {
		prefixes = append(prefixes, strings.ReplaceAll(prefix, ".", "[.]"))
	}
	require.Equal(t, 2, strings.Count(string(policy), `"^(`+strings.Join(prefixes, "|")+`)/"`), "to set and to take away")
}

func TestUsageExplainsEveryFlag(t *testing.T) {
	for _, dir := range slices.Concat(host.CNIConfDirs(), host.CNIBinDirs()) {
		require.Contains(t, usage(), dir)
	}
	flags(&raw{}).VisitAll(func(f *flag.Flag) {
		require.Contains(t, usage(), " --"+f.Name, "usage.go does not explain --%s", f.Name)
		if f.DefValue != "" && f.DefValue != "false" {
			require.Contains(t, usage(), "default "+f.DefValue, "usage.go does not give the default of --%s", f.Name)
		}
	})
	for _, line := range strings.Split(usage(), "\n") {
		require.LessOrEqual(t, len(line), 120, line)
	}
}
