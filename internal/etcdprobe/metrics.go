package etcdprobe

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the numbers of a Prober.
type metrics struct {
	questions *prometheus.CounterVec
	expiry    *prometheus.Desc
}

func newMetrics() *metrics {
	m := &metrics{
		questions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_agent_etcd_questions_total", Help: "Questions to etcd servers, by what became of them.",
		}, []string{"outcome"}),
		expiry: prometheus.NewDesc("holdfast_agent_etcd_certificate_expiry_timestamp_seconds",
			"When the client certificate that opened the etcd on this host last expires: the first, if there are several. "+
				"Absent if none was needed yet or none was taken.", nil, nil),
	}
	for _, o := range outcomes() {
		m.questions.WithLabelValues(string(o))
	}
	return m
}

func (m *metrics) asked(o outcome) { m.questions.WithLabelValues(string(o)).Inc() }

// Describe and Collect make the Prober a prometheus.Collector.
func (p *Prober) Describe(to chan<- *prometheus.Desc) {
	p.metrics.questions.Describe(to)
	to <- p.metrics.expiry
}

// Collect sends the numbers as they are now.
func (p *Prober) Collect(to chan<- prometheus.Metric) {
	p.metrics.questions.Collect(to)
	if first := p.expiry(); !first.IsZero() {
		to <- prometheus.MustNewConstMetric(p.metrics.expiry, prometheus.GaugeValue, float64(first.Unix()))
	}
}

// expiry is when the first of the client certificates in use expires, zero if none is. The files are read anew, so that a
// renewed certificate counts at once.
func (p *Prober) expiry() time.Time {
	var first time.Time
	for who, m := range p.inUse() {
		if files, err := load(m.way); err == nil {
			m.notAfter = files.notAfter
			p.mu.Lock()
			if now := p.known[who]; now.way == m.way {
				now.notAfter = m.notAfter
				p.known[who] = now
			}
			p.mu.Unlock()
		}
		if !m.notAfter.IsZero() && (first.IsZero() || m.notAfter.Before(first)) {
			first = m.notAfter
		}
	}
	return first
}
