package charts_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMonitoringChoices checks the values of the objects for the Prometheus Operator.
func TestMonitoringChoices(t *testing.T) {
	const (
		rule      = "monitoring.coreos.com/v1 PrometheusRule holdfast"
		monitor   = "monitoring.coreos.com/v1 PodMonitor holdfast-agent"
		dashboard = "v1 ConfigMap holdfast-dashboard"
	)
	chart := rendered(t, "1.36.0", "monitoring.enabled=true", "monitoring.labels.release=stack", "metrics.agentPort=12000")
	for _, id := range []string{rule, monitor, "monitoring.coreos.com/v1 ServiceMonitor holdfast-webhook"} {
		require.Equal(t, "stack", field(chart[id], "metadata", "labels").(object)["release"], id)
	}
	require.Contains(t, chart, dashboard)
	require.Contains(t, args(t, chart, agent), "--metrics-listen=:12000")
	container := list(chart[agent], "spec", "template", "spec", "containers")[0].(object)
	require.Equal(t, []any{object{"name": "metrics", "containerPort": 12000.0}}, container["ports"])

	chart = rendered(t, "1.36.0", "monitoring.enabled=true", "monitoring.rules=false", "monitoring.dashboard=false")
	require.Contains(t, chart, monitor)
	require.NotContains(t, chart, rule)
	require.NotContains(t, chart, dashboard)

	chart = rendered(t, "1.36.0", "metrics.enabled=true")
	require.Contains(t, args(t, chart, webhook), "--metrics-secure")
	require.NotContains(t, chart, monitor)
	require.NotContains(t, chart, rule)
}

// TestAlertChoices checks that the PrometheusRule has all alerts but those that are disabled, and
// that labels change nothing else in them.
func TestAlertChoices(t *testing.T) {
	alerts := func(values ...string) map[string]object {
		found := map[string]object{}
		chart := rendered(t, "1.36.0", append(values, "monitoring.enabled=true")...)
		for _, group := range list(chart["monitoring.coreos.com/v1 PrometheusRule holdfast"], "spec", "groups") {
			require.NotEmpty(t, list(group.(object), "rules"))
			for _, rule := range list(group.(object), "rules") {
				found[group.(object)["name"].(string)+" "+rule.(object)["alert"].(string)] = rule.(object)
			}
		}
		return found
	}
	want := alerts()
	require.NotEmpty(t, want)
	for _, rule := range want {
		rule["labels"].(object)["team"] = "platform"
	}
	require.Equal(t, want, alerts("monitoring.ruleLabels.team=platform"))
	for _, disabled := range []string{
		"holdfast-etcd HoldfastGrantOpen", "holdfast-spc HoldfastSPCInventoryStale",
		"holdfast-spc HoldfastSPCMachineNeverNode",
	} {
		require.Contains(t, want, disabled)
		delete(want, disabled)
	}
	require.Equal(t, want, alerts("monitoring.ruleLabels.team=platform",
		"monitoring.disabledAlerts={HoldfastGrantOpen,HoldfastSPCInventoryStale,HoldfastSPCMachineNeverNode}"))
}

// TestScrapeTimes checks the times of both monitors.
func TestScrapeTimes(t *testing.T) {
	chart := rendered(t, "1.36.0", "monitoring.enabled=true", "monitoring.interval=1m30s", "monitoring.scrapeTimeout=5s")
	for id, endpoints := range map[string]string{
		"monitoring.coreos.com/v1 PodMonitor holdfast-agent":       "podMetricsEndpoints",
		"monitoring.coreos.com/v1 ServiceMonitor holdfast-webhook": "endpoints",
	} {
		require.Subset(t, list(chart[id], "spec", endpoints)[0], object{"interval": "1m30s", "scrapeTimeout": "5s"})
	}
}
