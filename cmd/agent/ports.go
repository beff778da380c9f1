package main

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/holdfast-dev/holdfast/internal/operator/cli"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/internal/shared/metricsserver"
)

// portDrain limits how long the agent waits for running requests to its ports.
const portDrain = 2 * time.Second

// newPorts returns the ports of the flags.
func newPorts(
	cfg config, healthy func(time.Time) error, metrics http.Handler, log *slog.Logger,
) (ports []cli.Port, err error) {
	if cfg.healthListen != "" {
		mux := http.NewServeMux()
		mux.HandleFunc("GET /healthz", cli.CheckHandler(func() error { return healthy(time.Now()) }))
		mux.Handle(metricsserver.Path, metrics)
		ports = append(ports, cli.Port{
			Flag: "--health-listen", Address: cfg.healthListen, Handler: mux, Drain: portDrain, Log: log,
		})
	}
	if cfg.metricsListen == "" {
		return ports, nil
	}
	api, err := restConfig(cfg.kubeconfig)
	if err != nil {
		return nil, err
	}
	secure := cli.Port{Flag: "--metrics-listen", Address: cfg.metricsListen, Drain: portDrain, Log: log}
	secure.Handler, secure.TLS, err = metricsserver.Secure(metrics, api, cfg.node, log)
	return append(ports, secure), err
}

// keepServing answers requests until ctx ends. If the port is taken, it keeps retrying. The agent
// works without its ports, but without that of its liveness probe the kubelet restarts it.
func keepServing(ctx context.Context, p cli.Port) error {
	return loop.KeepRunning(ctx, loop.Backoff(time.Second, 10*time.Second), p.Run, func(err error) {
		p.Log.ErrorContext(ctx, "failed to serve a port; retrying", "flag", p.Flag, "address", p.Address, "err", err)
	})
}
