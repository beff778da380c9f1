package main

import (
	"bytes"
	"flag"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/control/spcapi"
	"github.com/holdfast-dev/holdfast/internal/operator/cli"
	"github.com/holdfast-dev/holdfast/internal/testenv/pki"
	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

func TestParseDefaults(t *testing.T) {
	got, err := parse(nil)
	require.NoError(t, err)
	require.Equal(t, config{
		namespace: "holdfast-system", leaseDuration: 15 * time.Second, observerWait: 3 * time.Second,
		guardDrains: true, maxClusters: 16, zoneLabel: "topology.kubernetes.io/zone",
		holds:  readiness.HoldLimits{Agent: 2 * time.Minute, Hold: 10 * time.Minute, Namespace: "holdfast-system"},
		listen: ":9443", metricsListen: ":8080", healthListen: ":8081",
		log: cli.LogOptions{JSON: true},
	}, got)
}

func TestParse(t *testing.T) {
	ca := filepath.Join(t.TempDir(), "ca.crt")
	authority, err := pki.NewCA("kube-apiserver")
	require.NoError(t, err)
	require.NoError(t, authority.Write(ca))
	for name, c := range map[string]struct {
		args string
		want func(*config)
	}{
		"no health ports": {
			"--metrics-listen= --health-listen=",
			func(c *config) {
				c.metricsListen, c.healthListen = "", ""
			},
		},
		"metrics over HTTPS": {"--metrics-secure", func(c *config) { c.metricsSecure = true }},
		"text log": {
			"--log-format=text --log-level=debug", func(c *config) { c.log = cli.LogOptions{Level: slog.LevelDebug} },
		},
		"certificate in files": {
			"--tls-cert-file=/tls/tls.crt --tls-key-file=/tls/tls.key",
			func(c *config) { c.certificates.CertFile, c.certificates.KeyFile = "/tls/tls.crt", "/tls/tls.key" },
		},
		"client CA": {
			"--client-ca-file=" + ca + " --client-name=apiserver",
			func(c *config) {
				c.clientCAFile, c.clientName = ca, "apiserver"
			},
		},
		"release stuck holds": {"--on-stuck-hold=release --agent-missing-after=1m " +
			"--stuck-hold-after=20m --namespace=hf", func(c *config) {
			c.namespace = "hf"
			c.holds = readiness.HoldLimits{Agent: time.Minute, Hold: 20 * time.Minute, Release: true, Namespace: "hf"}
		}},
		"marks of other programs": {
			"--doomed-taint=example.com/gone --doomed-taint=NodeGoes --away-mark=example.org/ " +
				"--away-mark=example.net/repair --away-mark=condition:example.net/Repair",
			func(c *config) {
				c.departures = departure.Table{}.Add(departure.ForGood, "example.com/gone").Add(departure.ForGood, "NodeGoes").
					Add(departure.ForAWhile, "example.org/").Add(departure.ForAWhile, "example.net/repair").
					Add(departure.ForAWhile, "condition:example.net/Repair")
			},
		},
		"zone label": {"--zone-label=example.com/rack", func(c *config) { c.zoneLabel = "example.com/rack" }},
		"spc": {"--spc-url=https://api.example.org --spc-token-file=/t " +
			"--spc-organization=7 --spc-cluster=9", func(c *config) {
			c.spc = spcapi.Options{BaseURL: "https://api.example.org", TokenFile: "/t", Organization: 7, Cluster: 9}
		}},
		"spc by Secret": {"--spc-secret-dir=/s --spc-cluster=9", func(c *config) {
			c.spc = spcapi.Options{SecretDir: "/s", Cluster: 9}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			want, err := parse(nil)
			require.NoError(t, err)
			c.want(&want)
			got, err := parse(strings.Fields(c.args))
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
}

func TestUsageErrors(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.crt")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for _, c := range []struct{ args, want string }{
		{"--nonsense", "flag provided but not defined: -nonsense"},
		{"serve", `unexpected argument "serve"; holdfast-webhook has flags only, such as --namespace=NAME`},
		{"--observer-wait=soon", `invalid value "soon" for flag -observer-wait`},
		{"--observer-wait=6s", "--observer-wait=6s is out of range; use 100ms to 5s"},
		{"--observer-wait=0", "--observer-wait=0s is out of range; use 100ms to 5s"},
		{"--min-remaining-tolerance=-1", "--min-remaining-tolerance=-1 is out of range; use 0 to 9"},
		{"--max-etcd-clusters=0", "--max-etcd-clusters=0 is out of range; use 1 to 256"},
		{"--doomed-taint=", `--doomed-taint="" is neither a key such as example.com/reboot nor a prefix such as`},
		{"--doomed-taint=a/b/c", `--doomed-taint="a/b/c" is neither a key such as`},
		{"--doomed-taint=gone:NoSchedule", `--doomed-taint="gone:NoSchedule" must be a key without a value and an effect`},
		{"--away-mark=example.com/x=true", `--away-mark="example.com/x=true" must be a key without a value and an effect`},
		{"--away-mark=/", `--away-mark="/" is neither a key such as`},
		{"--away-mark=UPPER.com/", `--away-mark="UPPER.com/" is neither a key such as`},
		{"--away-mark=holdfast.dev/etcd", `--away-mark="holdfast.dev/etcd" is a key that Holdfast sets itself`},
		{"--away-mark=holdfast.dev/", `--away-mark="holdfast.dev/" is a key that Holdfast sets itself`},
		{"--away-mark=atlassian.com/no-delete", `--away-mark="atlassian.com/no-delete" is a key that Holdfast sets itself`},
		{"--doomed-taint=karpenter.sh/", `--doomed-taint="karpenter.sh/" matches an annotation that Holdfast sets`},
		{"--doomed-taint=node.kubernetes.io/", `"node.kubernetes.io/" matches keys that Kubernetes sets on every node`},
		{"--away-mark=kubernetes.io/", `--away-mark="kubernetes.io/" matches keys that Kubernetes sets on every node`},
		{"--away-mark=node.kubernetes.io/unschedulable", "is the taint of a cordon, which does not say"},
		{"--away-mark=condition:", `--away-mark="condition:" must be the type of a condition without a status`},
		{"--away-mark=condition:Repair=True", `--away-mark="condition:Repair=True" must be the type of a condition`},
		{"--away-mark=condition:example.com/", `--away-mark="condition:example.com/" must be the type of a condition`},
		{"--away-mark=condition:Ready", `--away-mark="condition:Ready" is a condition that Kubernetes or Holdfast sets`},
		{"--away-mark=condition:EtcdMember", "is a condition that Kubernetes or Holdfast sets on nodes that stay"},
		{"--doomed-taint=condition:Repair", `--doomed-taint="condition:Repair" must be a key without a value and an effect`},
		{"--doomed-taint=a.b/c --away-mark=a.b/c", `--away-mark="a.b/c" is also a --doomed-taint`},
		{"--zone-label=", `--zone-label="" is not the key of a label: `},
		{"--zone-label=a=b", `--zone-label="a=b" is not the key of a label: `},
		{"--on-stuck-hold=maybe", `--on-stuck-hold="maybe" is unknown; use keep or release`},
		{"--agent-missing-after=0s", "--agent-missing-after=0s --stuck-hold-after=10m0s are out of range; use 1s to 24h"},
		{"--stuck-hold-after=25h", "--agent-missing-after=2m0s --stuck-hold-after=25h0m0s are out of range; use 1s to 24h"},
		{"--stuck-hold-after=2m", "--stuck-hold-after=2m0s must be longer than --agent-missing-after=2m0s"},
		{"--lease-duration=1s", "--lease-duration=1s is out of range; use 3s to 10m"},
		{"--namespace=", `--namespace="" is not a valid Kubernetes name: `},
		{"--namespace=a.b", `--namespace="a.b" is not a valid Kubernetes name: `},
		{"--tls-cert-file=/a", "--tls-cert-file and --tls-key-file belong together"},
		{"--tls-key-file=/a", "--tls-cert-file and --tls-key-file belong together"},
		{"--listen=", `--listen="" is not an address with a port`},
		{"--listen=9443", `--listen="9443" is not an address with a port`},
		{"--metrics-listen=:http-alt-x", `--metrics-listen=":http-alt-x" is not an address with a port`},
		{"--metrics-secure --metrics-listen=", "--metrics-secure has no effect without --metrics-listen"},
		{"--health-listen=x:99999", `--health-listen="x:99999" is not an address with a port`},
		{"--client-name=x", `--client-name="x" has no effect without --client-ca-file`},
		{"--client-ca-file=/nowhere", `--client-ca-file="/nowhere" is not usable: open /nowhere`},
		{"--client-ca-file=" + empty, "is not usable: the file contains no certificate"},
		{"--spc-cluster=9", "--spc-ca-file have no effect without --spc-token-file or --spc-secret-dir"},
		{"--spc-secret-dir=/s --spc-ca-file=/nowhere", "reading the SPC API's certificate authorities: open /nowhere"},
		{"--spc-token-file=" + strings.Repeat("a1", 32), "the name of the token file looks like a token"},
		{
			"--spc-url=ftp://x --spc-token-file=/t --spc-organization=7 --spc-cluster=9",
			`the SPC API's URL must be http(s)://host[/path]`,
		},
		{"--spc-token-file=/t --spc-organization=7 --spc-cluster=9", "the SPC API needs a URL such as"},
		{"--log-level=loud", `--log-level="loud" is unknown; use debug, info, warn or error`},
		{"--log-format=xml", `--log-format="xml" is unknown; use json or text`},
	} {
		t.Run(c.args, func(t *testing.T) {
			var out, errOut bytes.Buffer
			require.Equal(t, 2, execute(t.Context(), strings.Fields(c.args), &out, &errOut))
			require.Empty(t, out.String())
			require.Contains(t, errOut.String(), c.want)
			require.Contains(t, errOut.String(), "Run `holdfast-webhook --help`")
			require.NotContains(t, errOut.String(), "a1a1a1a1", "the error repeats a token")
		})
	}
}

func TestHelp(t *testing.T) {
	var out, errOut bytes.Buffer
	require.Equal(t, 0, execute(t.Context(), []string{"--help"}, &out, &errOut))
	require.Empty(t, errOut.String())
	new(flags).flagSet().VisitAll(func(f *flag.Flag) {
		require.Regexp(t, `(?m)^  (holdfast-webhook )?--`+f.Name+`[= ]`, out.String())
	})
	out.Reset()
	require.Equal(t, 0, execute(t.Context(), []string{"--version"}, &out, &errOut))
	require.True(t, strings.HasPrefix(out.String(), "holdfast webhook "), out.String())
}

func TestFailures(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, taken.Close()) })
	for name, c := range map[string]struct{ args, want string }{
		"no cluster":         {"", "the webhook does not run in a pod; set --kubeconfig=FILE"},
		"missing kubeconfig": {"--kubeconfig=/nowhere", "reading the configuration of the API server: "},
		"port in use": {
			"--kubeconfig=" + unreachableAPI(t) + " --listen=127.0.0.1:0 --metrics-listen=" + taken.Addr().String(),
			"listening on --metrics-listen: ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			require.Equal(t, 1, execute(t.Context(), strings.Fields(c.args), &out, &errOut))
			require.Contains(t, errOut.String(), "webhook: "+c.want)
		})
	}
}
