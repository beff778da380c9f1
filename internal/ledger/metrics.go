package ledger

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// metrics are the numbers of a Book and its Leader.
type metrics struct {
	verdicts   *prometheus.CounterVec
	asks       prometheus.Counter
	conflicts  prometheus.Counter
	openGrants prometheus.Gauge
	ignored    *prometheus.GaugeVec
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		verdicts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_webhook_verdicts_total", Help: "Deletions of Nodes that were judged.",
		}, []string{"verdict", "reason"}),
		asks: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_webhook_asks_total", Help: "Times that the agents of an etcd cluster were asked to look again.",
		}),
		conflicts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_webhook_grant_conflicts_total",
			Help: "Changes of grants that lost the race against another one and were decided again.",
		}),
		openGrants: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_webhook_open_grants", Help: "Allowed deletions that are not settled, as the leader sees them.",
		}),
		ignored: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "holdfast_webhook_observations_ignored",
			Help: "Observations of agents of which something is not heard, by reason, as the leader sees them.",
		}, []string{"reason"}),
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.verdicts, m.asks, m.conflicts, m.openGrants, m.ignored} {
		errs = append(errs, r.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("registering metrics: %w", err)
	}
	return m, nil
}

// judged counts a ruling.
func (m *metrics) judged(r protect.Ruling) {
	verdict := "refused"
	if r.Allowed {
		verdict = "allowed"
	}
	m.verdicts.WithLabelValues(verdict, string(r.Reason)).Inc()
}
