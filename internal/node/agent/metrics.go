package agent

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// metrics are the metrics of the etcd path.
type metrics struct {
	prometheus.Collector
	scans      prometheus.Histogram
	unreadable prometheus.Gauge
	servers    *prometheus.GaugeVec
	probes     prometheus.Histogram
	published  *prometheus.CounterVec
}

func newMetrics() *metrics {
	registry := prometheus.NewRegistry()
	register := promauto.With(registry)
	m := &metrics{
		Collector: registry,
		scans: register.NewHistogram(prometheus.HistogramOpts{
			Name:    "holdfast_agent_look_duration_seconds",
			Help:    "Duration of a scan of the host for etcd, without the requests to etcd.",
			Buckets: []float64{.005, .02, .05, .2, 1, 5},
		}),
		unreadable: register.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_agent_unreadable_places",
			Help: "Places of the host that the last scan could not read. Only 0 can prove the absence of etcd.",
		}),
		servers: register.NewGaugeVec(prometheus.GaugeOpts{
			Name: "holdfast_agent_etcd_servers",
			Help: "etcd servers on this host, by state: member, removed, unverified or stopped.",
		}, []string{"state"}),
		probes: register.NewHistogram(prometheus.HistogramOpts{
			Name: "holdfast_agent_observation_duration_seconds", Help: "Duration of a probe of all members of an etcd cluster.",
			Buckets: []float64{.02, .05, .2, .5, 1.6, 3.2},
		}),
		published: register.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_agent_observations_total",
			Help: "Observations due to be published, by result: published, problem (published with a problem) or failed.",
		}, []string{"result"}),
	}
	for _, result := range []string{resultPublished, resultProblem, resultFailed} {
		m.published.WithLabelValues(result)
	}
	return m
}

// The values of the label "result".
const (
	resultPublished = "published"
	resultProblem   = "problem"
	resultFailed    = "failed"
)

func (m *metrics) countServers(scan evidence.Scan) {
	states := map[string]int{"member": 0, "removed": 0, "unverified": 0, "stopped": 0}
	for _, f := range scan.Found {
		switch {
		case f.Removed:
			states["removed"]++
		case f.HasAnswered():
			states["member"]++
		case f.IsRunning():
			states["unverified"]++
		default:
			states["stopped"]++
		}
	}
	for state, n := range states {
		m.servers.WithLabelValues(state).Set(float64(n))
	}
}
