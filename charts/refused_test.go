package charts_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRefused checks that choices that contradict each other end in an error that names the value.
func TestRefused(t *testing.T) {
	for name, c := range map[string]struct {
		version string
		values  []string
		want    string
	}{
		"cordon with Karpenter": {"1.36.0", []string{"autoscaler=karpenter", "hold.mode=cordon"}, "buys another one"},
		"key with cordon":       {"1.36.0", []string{"hold.taintKey=holdfast.dev/x"}, "set hold.mode=taint"},
		"key of another domain": {"1.36.0", []string{"hold.mode=taint", "hold.taintKey=example.com/x"}, "taintKey"},
		"key with a quote":      {"1.36.0", []string{"hold.mode=taint", `hold.taintKey=holdfast.dev/x"y`}, "taintKey"},
		"unknown autoscaler":    {"1.36.0", []string{"autoscaler=escalator"}, "cluster-autoscaler"},
		"born held on 1.35":     {"1.35.9", []string{"bornHeld=enabled"}, "requires Kubernetes 1.36"},
		"Secret without CA":     {"1.36.0", []string{"certificates.mode=secret"}, "--set-file certificates.caBundle"},
		"Secret with a CA of white space": {
			"1.36.0", []string{"certificates.mode=secret", "certificates.caBundle=\n"}, "/certificates/caBundle",
		},
		"CA without a Secret": {
			"1.36.0", []string{"certificates.caBundle=-----BEGIN CERTIFICATE-----"}, "set certificates.mode=secret",
		},
		"issuer without cert-manager": {
			"1.36.0", []string{"certificates.issuerRef.name=mine"}, "set certificates.mode=cert-manager",
		},
		"equal ports": {
			"1.36.0", []string{"metrics.enabled=true", "agent.healthPort=11878"}, "set one of them to another port",
		},
		"field of resources": {"1.36.0", []string{"agent.resources.limit.memory=1Gi"}, "additional properties 'limit'"},
		"list of limits":     {"1.36.0", []string{"webhook.resources.limits={1Gi}"}, "/webhook/resources/limits"},
		"low limit":          {"1.36.0", []string{"webhook.resources.limits.memory=200Mi"}, "raise the limit"},
		"low limit in bytes": {"1.36.0", []string{"webhook.resources.limits.memory=209715200"}, "raise the limit"},
		"high limit of Go":   {"1.36.0", []string{"webhook.goMemoryLimit=1GiB"}, "lower it"},
		"limit of the agent": {"1.36.0", []string{"agent.goMemoryLimit=128MiB"}, "agent.resources.limits.memory"},
		"webhook's equal ports": {
			"1.36.0", []string{"webhook.port=8081"}, "webhook.healthPort and webhook.port are the same",
		},
		"equal ports of a node": {
			"1.36.0", []string{"webhook.hostNetwork=true", "webhook.healthPort=11877"}, "agent.healthPort and webhook",
		},
		"equal ports for metrics": {
			"1.36.0",
			[]string{"webhook.hostNetwork=true", "metrics.enabled=true", "webhook.metricsPort=11878"},
			"metrics.agentPort and webhook.metricsPort",
		},
		"sources on the host network": {
			"1.36.0", []string{"webhook.hostNetwork=true", "webhook.apiServerSources={192.0.2.1/32}"}, "no NetworkPolicy",
		},
		"label of a selector": {
			"1.36.0", []string{`agent.podLabels.app\.kubernetes\.io/name=x`}, "agent.podLabels: Holdfast or Kubernetes selects",
		},
		"label of Holdfast": {
			"1.36.0", []string{`webhook.podLabels.holdfast\.dev/drain-guard=x`}, "by the label holdfast.dev/drain-guard",
		},
		"label of a controller": {
			"1.36.0", []string{"webhook.podLabels.pod-template-hash=a"}, "by the label pod-template-hash",
		},
		"number as a label":   {"1.36.0", []string{"webhook.podLabels.a=1"}, "got number, want string"},
		"misspelled affinity": {"1.36.0", []string{"webhook.affinity.podAffinitty.a=b"}, "podAffinitty"},
		"constraint without a key": {
			"1.36.0", []string{"webhook.topologySpreadConstraints[0].maxSkew=1"}, "missing properties 'topologyKey'",
		},
		"unknown alert": {
			"1.36.0",
			[]string{"monitoring.disabledAlerts={HoldfastGrantOpen,Holdfast}"},
			`there is no alert "Holdfast"; the alerts are HoldfastAgentMissing, HoldfastBornHeldSwitchedOff, `,
		},
		"severity":           {"1.36.0", []string{"monitoring.ruleLabels.severity=page"}, "a severity of its own"},
		"label of a rule":    {"1.36.0", []string{"monitoring.ruleLabels.a/b=c"}, "use letters, digits and _ only"},
		"interval":           {"1.36.0", []string{"monitoring.interval=1min"}, "/monitoring/interval"},
		"low port":           {"1.36.0", []string{"metrics.agentPort=80"}, "agentPort"},
		"misspelled value":   {"1.36.0", []string{"autoscaller=none"}, "autoscaller"},
		"tag in repository":  {"1.36.0", []string{"agent.image.repository=example.org/a:v1"}, "repository"},
		"short digest":       {"1.36.0", []string{"agent.image.digest=sha256:1234"}, "digest"},
		"no replica":         {"1.36.0", []string{"webhook.replicas=0"}, "replicas"},
		"address, not CIDR":  {"1.36.0", []string{"webhook.apiServerSources={192.0.2.1}"}, "apiServerSources"},
		"Kubernetes 1.32":    {"1.32.13", nil, "1.33"},
		"drains as a string": {"1.36.0", []string{"drains.enabled=off"}, "enabled"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := template(t, c.version, c.values...)
			require.ErrorContains(t, err, c.want)
		})
	}
	t.Run("other namespace", func(t *testing.T) {
		_, err := helm(t, "", "template", "holdfast", "holdfast", "--namespace", "kube-system")
		require.ErrorContains(t, err, "add --namespace holdfast-system")
	})
}

// TestMemoryLimit checks limits that fit the memory limit of Go, and those that the chart cannot
// compare.
func TestMemoryLimit(t *testing.T) {
	for _, limit := range []string{"201Mi", "1G", "209715201", "1.5Gi", "1e9", "null"} {
		_, err := template(t, "1.36.0", "webhook.resources.limits.memory="+limit)
		require.NoError(t, err)
	}
	_, err := template(t, "1.36.0", "webhook.resources=null")
	require.NoError(t, err)
}

// TestMissingDefinitions checks that the chart names the definitions that a cluster does not have.
func TestMissingDefinitions(t *testing.T) {
	const monitors = "monitoring.coreos.com/v1/PodMonitor,monitoring.coreos.com/v1/ServiceMonitor"
	for name, c := range map[string]struct{ kinds, value, want string }{
		"no cluster": {"", "monitoring.enabled=true", ""},
		"all":        {"v1/Node," + monitors + ",monitoring.coreos.com/v1/PrometheusRule", "monitoring.enabled=true", ""},
		"none":       {"v1/Node", "monitoring.enabled=true", "its kind PodMonitor"},
		"no rules":   {"v1/Node," + monitors, "monitoring.enabled=true", "its kind PrometheusRule"},
		"not needed": {"v1/Node," + monitors, "monitoring.enabled=true,monitoring.rules=false", ""},
		"disabled":   {"v1/Node", "metrics.enabled=true", ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := helm(t, "", "template", "holdfast", "holdfast", "--namespace", namespace, "--kube-version", "1.36.0",
				"--api-versions", c.kinds, "--set", c.value)
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.want)
		})
	}
}
