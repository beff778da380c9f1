package agent

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are the metrics of the etcd path.
type metrics struct {
	prometheus.Collector
	unreadable prometheus.Gauge
	published  *prometheus.CounterVec
}

func newMetrics() *metrics {
	registry := prometheus.NewRegistry()
	register := promauto.With(registry)
	m := &metrics{
		Collector: registry,
		unreadable: register.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_agent_unreadable_places",
			Help: "Places of the host that the last scan could not read. Only 0 can prove the absence of etcd.",
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
