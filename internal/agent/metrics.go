package agent

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// metrics are the numbers of the agent's side of etcd. A nil one counts nothing.
type metrics struct {
	looks        prometheus.Histogram
	unreadable   prometheus.Gauge
	servers      *prometheus.GaugeVec
	observations prometheus.Histogram
	published    *prometheus.CounterVec
}

func newMetrics() *metrics {
	m := &metrics{
		looks: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "holdfast_agent_look_duration_seconds", Help: "How long a look at the host for etcd took, without asking etcd.",
			Buckets: []float64{.005, .02, .05, .2, 1, 5},
		}),
		unreadable: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_agent_unreadable_places",
			Help: "Places of the host that the last look could not read. Until it is 0 the absence of etcd is not proven.",
		}),
		servers: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "holdfast_agent_etcd_servers", Help: "The etcd servers on this host, by what they say of themselves.",
		}, []string{"state"}),
		observations: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "holdfast_agent_observation_duration_seconds", Help: "How long a look at all members of an etcd cluster took.",
			Buckets: []float64{.02, .05, .2, .5, 1.6, 3.2},
		}),
		published: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_agent_observations_total",
			Help: "Observations of etcd clusters that were due to be published: published without or with a problem, or failed.",
		}, []string{"result"}),
	}
	for _, result := range []string{publishedWhole, publishedProblem, publishFailed} {
		m.published.WithLabelValues(result)
	}
	return m
}

// The results of publishing an observation.
const (
	publishedWhole   = "published"
	publishedProblem = "problem"
	publishFailed    = "failed"
)

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.looks, m.unreadable, m.servers, m.observations, m.published}
}

// looked counts a look at the host.
func (m *metrics) looked(took time.Duration, unreadable int) {
	if m == nil {
		return
	}
	m.looks.Observe(took.Seconds())
	m.unreadable.Set(float64(unreadable))
}

// found counts the servers on the host.
func (m *metrics) found(seen protect.HostEvidence) {
	if m == nil {
		return
	}
	states := map[string]int{"member": 0, "removed": 0, "unverified": 0, "stopped": 0}
	for _, f := range seen.Found {
		switch {
		case f.Removed:
			states["removed"]++
		case f.Answered():
			states["member"]++
		case f.Running():
			states["unverified"]++
		default:
			states["stopped"]++
		}
	}
	for state, n := range states {
		m.servers.WithLabelValues(state).Set(float64(n))
	}
}

// observed counts a look at a cluster.
func (m *metrics) observed(took time.Duration) {
	if m != nil {
		m.observations.Observe(took.Seconds())
	}
}

// wrote counts an attempt at publishing.
func (m *metrics) wrote(result string) {
	if m != nil {
		m.published.WithLabelValues(result).Inc()
	}
}
