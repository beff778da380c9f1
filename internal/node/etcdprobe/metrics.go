package etcdprobe

import (
	"maps"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the metrics of a Prober.
type metrics struct {
	requests *prometheus.CounterVec
	expiry   *prometheus.Desc
}

func newMetrics() *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_agent_etcd_questions_total", Help: "Requests to etcd servers, by outcome.",
		}, []string{"outcome"}),
		expiry: prometheus.NewDesc("holdfast_agent_etcd_certificate_expiry_timestamp_seconds",
			"Expiry of the client certificate that last worked with etcd on this host, in seconds since the epoch; "+
				"the earliest if there are several. Absent while no certificate has worked.", nil, nil),
	}
	for _, o := range []probeOutcome{
		outcomeAnswered, outcomeTimeout, outcomeUnreachable, outcomeUnreadable, outcomeExpired,
		outcomeUntrusted, outcomeForbidden, outcomeElection, outcomeStranger, outcomeFailed,
	} {
		m.requests.WithLabelValues(string(o))
	}
	return m
}

func (m *metrics) countOutcome(o probeOutcome) { m.requests.WithLabelValues(string(o)).Inc() }

// Describe implements prometheus.Collector.
func (p *Prober) Describe(ch chan<- *prometheus.Desc) {
	p.metrics.requests.Describe(ch)
	ch <- p.metrics.expiry
}

// Collect implements prometheus.Collector.
func (p *Prober) Collect(ch chan<- prometheus.Metric) {
	p.metrics.requests.Collect(ch)
	if expiry := p.earliestExpiry(); !expiry.IsZero() {
		ch <- prometheus.MustNewConstMetric(p.metrics.expiry, prometheus.GaugeValue, float64(expiry.Unix()))
	}
}

// earliestExpiry returns the earliest expiry of the client certificates in use that can be read,
// or zero. It reads the files again, so that a renewed certificate counts immediately.
func (p *Prober) earliestExpiry() time.Time {
	p.mu.Lock()
	servers := maps.Clone(p.cache)
	p.mu.Unlock()
	maps.DeleteFunc(servers, isIdle)
	var earliest time.Time
	for _, server := range servers {
		credential, _ := loadCredential(p.hostRoot, server.endpoint, loadedCredential{})
		if leaf := credential.leaf; leaf != nil && (earliest.IsZero() || leaf.NotAfter.Before(earliest)) {
			earliest = leaf.NotAfter
		}
	}
	return earliest
}
