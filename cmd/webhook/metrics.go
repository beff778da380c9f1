package main

import (
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"k8s.io/client-go/rest"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/holdfast-dev/holdfast/internal/operator/cli"
	"github.com/holdfast-dev/holdfast/internal/shared/metricsserver"
)

// newRegistry returns the metrics of the process. Its parts add their own.
func newRegistry(ready func() error) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		metricsserver.NewBuildInfo("webhook", cli.Version(version)),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "holdfast_webhook_ready", Help: "Whether this replica can answer reviews (1) or not (0).",
		}, func() float64 {
			if ready() != nil {
				return 0
			}
			return 1
		}),
	)
	return registry
}

// A metricsPort answers requests for the metrics.
type metricsPort struct {
	handler http.Handler
	tls     *tls.Config // nil for plain HTTP
}

// newMetricsPort returns the port for the metrics of this program and of controller-runtime.
func newMetricsPort(
	cfg config, api *rest.Config, registry prometheus.Gatherer, log *slog.Logger,
) (p metricsPort, err error) {
	p.handler = metricsserver.Handler(prometheus.Gatherers{registry, crmetrics.Registry}, log)
	if !cfg.metricsSecure {
		return p, nil
	}
	authorizer, err := metricsserver.NewAuthorizer(api, log)
	if err != nil {
		return p, err
	}
	p.handler = authorizer.Require(p.handler)
	p.tls, err = metricsserver.SelfSigned(cfg.certificates.Service)
	return p, err
}

// wrap returns a listener with TLS, if the port has it.
func (p metricsPort) wrap(l net.Listener) net.Listener {
	if p.tls == nil {
		return l
	}
	return tls.NewListener(l, p.tls)
}
