package main

import (
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"k8s.io/client-go/rest"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/holdfast-dev/holdfast/internal/operator/cli"
	"github.com/holdfast-dev/holdfast/internal/shared/metricsserver"
)

// newRegistry returns the metrics of the process. Its parts add their own.
func newRegistry(ready func() error) (*prometheus.Registry, error) {
	return metricsserver.NewRegistry("webhook", cli.Version(version), collectors.NewGoCollector(),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "holdfast_webhook_ready", Help: "Whether this replica can answer reviews (1) or not (0).",
		}, func() float64 {
			if ready() != nil {
				return 0
			}
			return 1
		}))
}

// newMetricsPort returns the port for the metrics of this program and of controller-runtime.
func newMetricsPort(
	cfg config, api *rest.Config, registry prometheus.Gatherer, log *slog.Logger,
) (p cli.Port, err error) {
	p = cli.Port{Flag: "--metrics-listen", Address: cfg.metricsListen, Drain: drainTime, Log: log}
	p.Handler = metricsserver.Handler(prometheus.Gatherers{registry, crmetrics.Registry}, log)
	if cfg.metricsSecure {
		p.Handler, p.TLS, err = metricsserver.Secure(p.Handler, api, cfg.certificates.Service, log)
	}
	return p, err
}
