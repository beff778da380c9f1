package holdwatch

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// metrics are the metrics of a Watcher. Only the leader has values other than zero.
type metrics struct {
	holds, held          *prometheus.GaugeVec
	oldest               prometheus.Gauge
	givenUp, switchedOff prometheus.Counter
	reasons              map[string]int // those that held exports
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		holds: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "holdfast_webhook_holds",
			Help: "Held nodes by state, as the leader observes them. States agent_missing and overdue need attention.",
		}, []string{"state"}),
		held: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "holdfast_webhook_held_nodes",
			Help: "Held nodes by the reason of their condition NetworkHeld, or NoReport if no agent has written it.",
		}, []string{"reason"}),
		oldest: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_webhook_oldest_hold_seconds",
			Help: "Age of the oldest hold, as the leader observes it; 0 if no node is held.",
		}),
		givenUp: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_webhook_holds_given_up_total",
			Help: "Holds that the leader ended because they exceeded their time limit (--on-stuck-hold=release).",
		}),
		switchedOff: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_webhook_born_held_switched_off_total",
			Help: "Times that the leader deleted the parameter of the born-held policy.",
		}),
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.holds, m.held, m.oldest, m.givenUp, m.switchedOff} {
		errs = append(errs, r.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("registering metrics: %w", err)
	}
	m.update(holdCounts{})
	return m, nil
}

func (m *metrics) update(counts holdCounts) {
	for _, s := range readiness.HoldStates() {
		m.holds.WithLabelValues(string(s)).Set(float64(counts.states[s]))
	}
	for reason := range m.reasons {
		if counts.reasons[reason] == 0 {
			m.held.DeleteLabelValues(reason)
		}
	}
	for reason, n := range counts.reasons {
		m.held.WithLabelValues(reason).Set(float64(n))
	}
	m.reasons = counts.reasons
	m.oldest.Set(counts.oldest.Seconds())
}
