package agent

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

func TestWhatIsCounted(t *testing.T) {
	a := &Agent{metrics: newMetrics()}
	registry := prometheus.NewRegistry()
	require.NoError(t, registry.Register(a))
	a.metrics.looked(30*time.Millisecond, 2)
	a.metrics.found(protect.HostEvidence{Found: []protect.Found{
		local(1),
		{Sighting: protect.Sighting{PID: 2}, Answer: protect.Answer{Problem: "no answer"}},
		{Sighting: protect.Sighting{Where: "data"}},
		{Answer: protect.Answer{Ref: protect.MemberRef{Cluster: testCluster, Member: "b"}, Removed: true}},
	}})
	a.metrics.found(protect.HostEvidence{Found: []protect.Found{local(1)}})
	a.metrics.observed(time.Second)
	a.metrics.wrote(result(v1alpha1.Observation{}))
	a.metrics.wrote(result(v1alpha1.Observation{Problem: "no leader"}))
	a.metrics.wrote(publishFailed)

	families, err := registry.Gather()
	require.NoError(t, err)
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	require.NoError(t, err)
	require.Empty(t, problems)
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			got[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	require.Equal(t, map[string]float64{
		"holdfast_agent_look_duration_seconds": 1, "holdfast_agent_unreadable_places": 2, "holdfast_agent_observation_duration_seconds": 1,
		"holdfast_agent_etcd_servers member": 1, "holdfast_agent_etcd_servers removed": 0,
		"holdfast_agent_etcd_servers unverified": 0, "holdfast_agent_etcd_servers stopped": 0,
		"holdfast_agent_observations_total published": 1, "holdfast_agent_observations_total problem": 1, "holdfast_agent_observations_total failed": 1,
	}, got)
}
