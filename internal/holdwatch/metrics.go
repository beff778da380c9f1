package holdwatch

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// metrics are the numbers of a Watcher. Only the leader's are other than zero.
type metrics struct {
	holds                *prometheus.GaugeVec
	oldest               prometheus.Gauge
	givenUp, switchedOff prometheus.Counter
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		holds: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "holdfast_webhook_holds", Help: "Nodes that are held, as the leader sees them. Those in state agent_missing or overdue need attention.",
		}, []string{"state"}),
		oldest: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_webhook_oldest_hold_seconds", Help: "Age of the oldest hold, as the leader sees it; 0 if nothing is held.",
		}),
		givenUp: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_webhook_holds_given_up_total", Help: "Holds that were ended because they had lasted too long (--on-stuck-hold=release).",
		}),
		switchedOff: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_webhook_born_held_switched_off_total", Help: "Times that the born-held policy's parameter was taken away.",
		}),
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.holds, m.oldest, m.givenUp, m.switchedOff} {
		errs = append(errs, r.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("registering metrics: %w", err)
	}
	m.show(tally{})
	return m, nil
}

func (m *metrics) show(t tally) {
	for _, s := range readiness.Standings() {
		m.holds.WithLabelValues(string(s)).Set(float64(t.standings[s]))
	}
	m.oldest.Set(t.oldest.Seconds())
}
