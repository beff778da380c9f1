package charts_test

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFlags decides for every flag of the programs whether extraArgs may contain it. The chart
// refuses the flags on which its other objects depend, with advice.
func TestFlags(t *testing.T) {
	const hold, files = "use hold.mode", "use certificates.mode"
	for part, c := range map[string]struct {
		permitted string
		refused   map[string]string // the advice by the name of the flag
	}{
		"agent": {
			permitted: "kubeconfig gates flannel-subnet-file trust-durable-subnet-file flannel-uses-etcd cni-conf-dir " +
				"cni-bin-dir network-plugin-marker network-plugin-label protect-static-pods etcd-ca etcd-cert etcd-key " +
				"probe-timeout data-search-interval data-search-max-time data-search-max-directories tick " +
				"spc-withhold-group log-level log-format",
			refused: map[string]string{
				"node": "is set by the chart", "host-root": "is set by the chart",
				"hold-mode": hold, "hold-taint-key": hold, "hold-unrecorded": hold,
				"health-listen": "use agent.healthPort", "metrics-listen": "use metrics.enabled and metrics.agentPort",
				"spc-inventory": "is set by spc.enabled",
			},
		},
		"webhook": {
			permitted: "kubeconfig lease-duration observer-wait min-remaining-tolerance max-etcd-clusters " +
				"doomed-taint away-mark zone-label " +
				"agent-missing-after stuck-hold-after on-stuck-hold client-ca-file " +
				"client-name spc-url spc-token-file spc-organization spc-cluster spc-ca-file log-level log-format version",
			refused: map[string]string{
				"namespace": "remove it", "guard-drains": "drains.enabled",
				"cluster-api": "use clusterAPI.enabled", "karpenter": "use karpenterNodeClaims.enabled",
				"listen": "use webhook.port", "health-listen": "use webhook.healthPort",
				"metrics-listen": "use webhook.metricsPort", "metrics-secure": "use metrics.enabled",
				"tls-cert-file": files, "tls-key-file": files,
				"spc-secret-dir": "use spc.enabled and spc.secretName",
			},
		},
	} {
		t.Run(part, func(t *testing.T) {
			permitted := strings.Fields(c.permitted)
			decided := append(slices.Collect(maps.Keys(c.refused)), permitted...)
			require.ElementsMatch(t, flagsOf(t, part), decided, "a flag is new or gone: decide whether the chart permits it")
			value := part + ".extraArgs={--" + strings.Join(permitted, "=1,--") + "=1}"
			_, err := template(t, "1.36.0", value)
			require.NoError(t, err)
			for flag, advice := range c.refused {
				_, err := template(t, "1.36.0", part+".extraArgs={--tick=1s,--"+flag+"=1}")
				require.ErrorContains(t, err, part+".extraArgs: --"+flag+"=1 ")
				require.ErrorContains(t, err, advice)
			}
		})
	}
}

// flagsOf returns the names of all flags of a program, from its source.
func flagsOf(t *testing.T, program string) []string {
	t.Helper()
	declaration := regexp.MustCompile(`\bset\.\w+\((?:&[\w.]+, )?"([a-z-]+)"`)
	var names []string
	for _, file := range []string{"../cmd/" + program + "/flags.go", "../internal/operator/cli/cli.go"} {
		code, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, found := range declaration.FindAllStringSubmatch(string(code), -1) {
			names = append(names, found[1])
		}
	}
	return names
}

// TestFlagsDependOnValues checks the flags that contradict only some values.
func TestFlagsDependOnValues(t *testing.T) {
	const none = "webhook.extraArgs={--metrics-listen=}"
	require.Contains(t, args(t, rendered(t, "1.36.0", none), webhook), "--metrics-listen=")
	_, err := template(t, "1.36.0", none, "metrics.enabled=true")
	require.ErrorContains(t, err, "webhook.extraArgs: --metrics-listen= contradicts")
}

// TestFlagSyntax checks what extraArgs may contain: one flag in each string, with any value.
func TestFlagSyntax(t *testing.T) {
	for _, flag := range []string{"--log-level debug", "log-level=debug", "-log-level=debug", "--", "--Log=1", "run"} {
		_, err := template(t, "1.36.0", "agent.extraArgs={"+flag+"}")
		require.ErrorContains(t, err, "/agent/extraArgs/0", flag)
	}
	for _, flag := range []string{"--hold-unrecorded2", "--gates=cni,unit:a b.service", "--client-name=a=b", "--a=\nb"} {
		chart := rendered(t, "1.36.0", "webhook.extraArgs[0]="+strings.ReplaceAll(flag, ",", `\,`))
		require.Contains(t, args(t, chart, webhook), strings.Join(strings.Fields(flag), " "))
	}
}
