package metricsserver

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/util/cert"
)

// Path is where the metrics are.
const Path = "/metrics"

// maxScrapes is how many scrapes are answered at the same time. More than one Prometheus may run.
const maxScrapes = 4

// NewBuildInfo returns holdfast_build_info. The version is the result of cli.Version: the version,
// the commit after a plus sign or a space, and the version of Go at the end.
func NewBuildInfo(program, version string) prometheus.Collector {
	built := strings.Fields(version)
	release, revision, isStamped := strings.Cut(built[0], "+")
	if !isStamped && len(built) > 2 {
		revision = built[1]
	}
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "holdfast_build_info", Help: "A constant 1, with the program and how it was built as labels.",
		ConstLabels: prometheus.Labels{
			"program": program, "version": release, "revision": revision, "goversion": built[len(built)-1],
		},
	}, func() float64 { return 1 })
}

// Handler serves the metrics at Path.
func Handler(metrics prometheus.Gatherer, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET "+Path, promhttp.HandlerFor(metrics, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelError), MaxRequestsInFlight: maxScrapes,
	}))
	return mux
}

// SelfSigned returns the TLS configuration of a server with a certificate of its own, made now and
// kept in memory. It encrypts, and proves nothing about the server: clients do not verify it, as
// with controller-runtime's default.
func SelfSigned(host string) (*tls.Config, error) {
	certificate, key, err := cert.GenerateSelfSignedCertKey(host, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("creating the certificate of the metrics port: %w", err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("loading the certificate of the metrics port: %w", err)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}, Certificates: []tls.Certificate{pair},
	}, nil
}
