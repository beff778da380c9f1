// Command webhook answers reviews of the API server. Every replica reviews deletions and drains of
// Nodes. The leader also binds members, ends grants, keeps guard pods, watches holds and publishes
// the SPC inventory. See `holdfast-webhook --help`.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"runtime/debug"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	// The image contains this program only. These are the certificate authorities for the
	// SPC API where the system has none.
	_ "golang.org/x/crypto/x509roots/fallback"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	crlog "sigs.k8s.io/controller-runtime/pkg/log"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/holdfast-dev/holdfast/internal/operator/cli"
	"github.com/holdfast-dev/holdfast/internal/shared/apiaccess"
	"github.com/holdfast-dev/holdfast/internal/shared/metricsserver"
)

const (
	// lingerTime is how long the webhook takes new requests after SIGTERM. By then, the
	// Service sends new connections to another replica.
	lingerTime = time.Second
	// failureLingerTime is how long the webhook takes new requests after a part of it has failed,
	// for example because it lost the Lease. The Service uses another replica after the kubelet has
	// seen two failed readiness probes.
	failureLingerTime = 6 * time.Second
	// drainTime limits how long the webhook waits for running requests after that. A review
	// takes 8 s at most.
	drainTime = 9 * time.Second
	// gcPercent is less than Go's default. Most of the memory is the cache of Nodes, and the reserve
	// of the garbage collector is a share of it. The collector then runs more often, which takes more
	// CPU when many large requests arrive.
	gcPercent = 30
)

// version is the version of the image with its commit. The Makefile has the linker set
// it; in other builds it is empty (see cli.Version).
var version string

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	os.Exit(cli.Run(execute))
}

func execute(ctx context.Context, args []string, out, errOut io.Writer) int {
	cfg, err := parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(out, usage)
		return cli.ExitSuccess
	case err == nil && cfg.version:
		fmt.Fprintln(out, "holdfast webhook "+cli.Version(version))
	case err == nil:
		err = run(ctx, cfg, errOut)
	}
	return cli.ReportError(errOut, "webhook", "holdfast-webhook --help", err)
}

// run starts the webhook and waits until ctx ends, which is success.
//
// Shutdown, in order: SIGTERM ends ctx and /readyz fails. The review port accepts for lingerTime,
// then drains for at most drainTime. When it has returned, the manager, the certificate, the
// metrics and the health server stop.
func run(ctx context.Context, cfg config, errOut io.Writer) error {
	log := cfg.log.NewLogger(errOut)
	klog.SetSlogLogger(log.With("library", "client-go"))
	crlog.SetLogger(logr.FromSlogHandler(log.With("library", "controller-runtime").Handler()))
	api, err := restConfig(cfg.kubeconfig)
	if err != nil {
		return err
	}
	log.InfoContext(ctx, "webhook starting", "version", cli.Version(version), "api_server", api.Host)
	if cfg.clientCAFile == "" {
		log.WarnContext(ctx, "the webhook does not authenticate its clients; every client of its port can cause grants",
			"listen", cfg.listen, "advice", "set --client-ca-file, or allow only the API server with a NetworkPolicy")
	}

	// Serve health from the start: a webhook that waits for the API server is alive, but not ready.
	r := &replica{config: cfg, api: api, log: log}
	check := func() error { return r.ready(ctx) }
	if r.registry, err = newRegistry(check); err != nil {
		return err
	}
	metrics, err := newMetricsPort(cfg, api, r.registry, log)
	if err != nil {
		return err
	}
	health := cli.Port{
		Flag: "--health-listen", Address: cfg.healthListen, Handler: healthHandler(check), Drain: drainTime, Log: log,
	}
	group, running := errgroup.WithContext(context.WithoutCancel(ctx))
	for _, port := range []cli.Port{metrics, health} {
		if port.Address != "" {
			group.Go(func() error { return port.Run(running) })
		}
	}
	group.Go(func() error {
		stopping, cancel := withEnd(running, ctx, 0)
		defer cancel()
		return r.run(stopping)
	})
	err = group.Wait()
	if ctx.Err() != nil {
		log.InfoContext(context.WithoutCancel(ctx), "webhook stopped")
		return nil
	}
	return err
}

func restConfig(kubeconfig string) (*rest.Config, error) {
	// client-go's default of five requests per second would make a review wait for most
	// of its 8 s. The API server has its own limits.
	config, err := apiaccess.Config(apiaccess.Options{
		Kubeconfig: kubeconfig, UserAgent: "holdfast-webhook/" + cli.Version(version), QPS: 200, Burst: 400,
	})
	if errors.Is(err, rest.ErrNotInCluster) {
		return nil, errors.New("the webhook does not run in a pod; set --kubeconfig=FILE")
	}
	return config, err
}

// healthHandler serves /healthz, which always succeeds because a restart does not bring
// the API server back, and /readyz.
func healthHandler(ready func() error) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", cli.CheckHandler(func() error { return nil }))
	mux.HandleFunc("GET /readyz", cli.CheckHandler(ready))
	return mux
}

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

func newMetricsPort(
	cfg config, api *rest.Config, registry prometheus.Gatherer, log *slog.Logger,
) (p cli.Port, err error) {
	p = cli.Port{Flag: "--metrics-listen", Address: cfg.metricsListen, Drain: drainTime, Log: log}
	p.Handler = metricsserver.Handler(prometheus.Gatherers{registry, crmetrics.Registry}, log)
	if cfg.metricsSecure {
		p.Handler, p.TLS, err = metricsserver.Secure(p.Handler, api, serviceName, log)
	}
	return p, err
}
