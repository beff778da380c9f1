package charts_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTaintKey checks that the agent and the policy hold by the same key, whichever it is.
func TestTaintKey(t *testing.T) {
	for _, key := range []string{
		"holdfast.dev/held", "readiness.k8s.io/mine", "startup-taint.cluster-autoscaler.kubernetes.io/network",
	} {
		chart := rendered(t, "1.36.0", "hold.mode=taint", "hold.taintKey="+key)
		require.Contains(t, args(t, chart, agent), "--hold-taint-key="+key)
		variable := list(chart[policy], "spec", "variables")[0].(object)
		require.Equal(t, object{"name": "taintKey", "expression": `"` + key + `"`}, variable)
	}
}

// TestWebhookPorts checks that all objects have the ports that values name.
func TestWebhookPorts(t *testing.T) {
	ports := []string{"webhook.port=11443", "webhook.metricsPort=11879", "webhook.healthPort=11880"}
	chart := rendered(t, "1.36.0", ports...)
	require.Subset(t, args(t, chart, webhook), []any{
		"--listen=:11443", "--metrics-listen=:11879", "--health-listen=:11880",
	})
	container := list(chart[webhook], "spec", "template", "spec", "containers")[0].(object)
	require.Equal(t, []any{
		object{"name": "webhook", "containerPort": 11443.0},
		object{"name": "metrics", "containerPort": 11879.0},
		object{"name": "health", "containerPort": 11880.0},
	}, container["ports"])
	// The probes, the Services and the NetworkPolicy name these ports.
	require.Equal(t, "health", field(container, "readinessProbe", "httpGet", "port"))
	require.Equal(t, "health", field(container, "livenessProbe", "httpGet", "port"))
	chart = rendered(t, "1.36.0", append(ports, "metrics.enabled=true")...)
	for id, want := range map[string]object{
		"v1 Service holdfast-webhook":         {"name": "webhook", "port": 9443.0, "targetPort": "webhook"},
		"v1 Service holdfast-webhook-metrics": {"name": "metrics", "port": 11879.0, "targetPort": "metrics"},
	} {
		require.Equal(t, []any{want}, list(chart[id], "spec", "ports"))
	}
}

// TestHostNetwork checks what changes if the webhook uses the network of its nodes: nothing but
// reviews, and metrics over HTTPS, can be reached from other nodes.
func TestHostNetwork(t *testing.T) {
	const network = "networking.k8s.io/v1 NetworkPolicy holdfast-webhook"
	require.Contains(t, rendered(t, "1.36.0"), network)
	chart := rendered(t, "1.36.0", "webhook.hostNetwork=true")
	require.NotContains(t, chart, network)
	pod := field(chart[webhook], "spec", "template", "spec").(object)
	require.Equal(t, true, pod["hostNetwork"])
	require.Equal(t, "ClusterFirstWithHostNet", pod["dnsPolicy"])
	require.Subset(t, args(t, chart, webhook), []any{"--metrics-listen=127.0.0.1:8080", "--health-listen=127.0.0.1:8081"})
	container := list(pod, "containers")[0].(object)
	require.Equal(t, "127.0.0.1", field(container, "readinessProbe", "httpGet", "host"))
	require.Equal(t, "127.0.0.1", field(container, "livenessProbe", "httpGet", "host"))
	require.Equal(t, object{"maxUnavailable": 1.0, "maxSurge": 0.0},
		field(chart[webhook], "spec", "strategy", "rollingUpdate"), "two replicas need the same ports")

	chart = rendered(t, "1.36.0", "webhook.hostNetwork=true", "metrics.enabled=true")
	require.NotContains(t, args(t, chart, webhook), "--metrics-listen=127.0.0.1:8080")
}

// TestPodLabels checks that labels of the user are on the pods, and nowhere else.
func TestPodLabels(t *testing.T) {
	chart := rendered(t, "1.36.0", `agent.podLabels.example\.com/team=yes`, "webhook.podLabels.a=b")
	for id, want := range map[string]object{
		agent:   {"app.kubernetes.io/name": "holdfast-agent", "example.com/team": "yes"},
		webhook: {"app.kubernetes.io/name": "holdfast-webhook", "a": "b"},
	} {
		require.Equal(t, want, field(chart[id], "spec", "template", "metadata", "labels"))
		selector := object{"app.kubernetes.io/name": want["app.kubernetes.io/name"]}
		require.Equal(t, selector, field(chart[id], "spec", "selector", "matchLabels"))
	}
}

// TestPlacement checks that a list of the affinity replaces only the built-in list of that name,
// and that a constraint without a selector is about the webhook.
func TestPlacement(t *testing.T) {
	pod := func(values ...string) object {
		return field(rendered(t, "1.36.0", values...)[webhook], "spec", "template", "spec").(object)
	}
	const spread = "preferredDuringSchedulingIgnoredDuringExecution"
	builtIn := pod()
	require.NotContains(t, builtIn, "topologySpreadConstraints")
	changed := pod("webhook.affinity.podAntiAffinity."+spread+"[0].weight=1",
		"webhook.topologySpreadConstraints[0].topologyKey=zone", "webhook.topologySpreadConstraints[0].maxSkew=1",
		"webhook.topologySpreadConstraints[0].whenUnsatisfiable=ScheduleAnyway",
		"webhook.topologySpreadConstraints[1].topologyKey=rack", "webhook.topologySpreadConstraints[1].maxSkew=2",
		"webhook.topologySpreadConstraints[1].whenUnsatisfiable=DoNotSchedule",
		"webhook.topologySpreadConstraints[1].labelSelector.matchLabels.a=b",
	)
	require.Equal(t, field(builtIn, "affinity", "nodeAffinity"), field(changed, "affinity", "nodeAffinity"))
	require.Equal(t, []any{object{"weight": 1.0}}, field(changed, "affinity", "podAntiAffinity", spread))
	require.Equal(t, []any{
		object{
			"topologyKey": "zone", "maxSkew": 1.0, "whenUnsatisfiable": "ScheduleAnyway",
			"labelSelector": object{"matchLabels": object{"app.kubernetes.io/name": "holdfast-webhook"}},
		},
		object{
			"topologyKey": "rack", "maxSkew": 2.0, "whenUnsatisfiable": "DoNotSchedule",
			"labelSelector": object{"matchLabels": object{"a": "b"}},
		},
	}, changed["topologySpreadConstraints"])
}
