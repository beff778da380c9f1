package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/holdfast-dev/holdfast/internal/operator/cli"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/internal/shared/metricsserver"
)

const (
	// portDrain limits how long the agent waits for running requests to its ports.
	portDrain = 2 * time.Second
	// portRetry is the delay between two attempts to listen on a port that is in use.
	portRetry = 10 * time.Second
)

// A port is an address on which the agent answers requests.
type port struct {
	flag, address string
	handler       http.Handler
	tls           *tls.Config // nil for plain HTTP
}

// openPorts returns the ports of the flags.
func openPorts(
	cfg config, healthy func(time.Time) error, metrics http.Handler, log *slog.Logger,
) (ports []port, err error) {
	if cfg.healthListen != "" {
		mux := http.NewServeMux()
		mux.HandleFunc("GET /healthz", cli.CheckHandler(func() error { return healthy(time.Now()) }))
		mux.Handle(metricsserver.Path, metrics)
		ports = append(ports, port{flag: "--health-listen", address: cfg.healthListen, handler: mux})
	}
	if cfg.metricsListen == "" {
		return ports, nil
	}
	api, err := restConfig(cfg.kubeconfig)
	if err != nil {
		return nil, err
	}
	authorizer, err := metricsserver.NewAuthorizer(api, log)
	if err != nil {
		return nil, err
	}
	secure := port{flag: "--metrics-listen", address: cfg.metricsListen, handler: authorizer.Require(metrics)}
	secure.tls, err = metricsserver.SelfSigned(cfg.node)
	return append(ports, secure), err
}

// serve answers requests until ctx ends. If the port is taken, it keeps retrying. The agent works
// without its ports, but without that of its liveness probe the kubelet restarts it.
func (p port) serve(ctx context.Context, log *slog.Logger) error {
	var logged loop.LogOnce
	for {
		err := p.serveOnce(ctx, log)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if logged.Changed("", err.Error()) {
			log.ErrorContext(ctx, "failed to serve a port; retrying", "flag", p.flag, "address", p.address, "err", err)
		}
		if err := loop.Wait(ctx, portRetry, nil); err != nil {
			return err
		}
	}
}

func (p port) serveOnce(ctx context.Context, log *slog.Logger) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", p.address)
	if err != nil {
		return fmt.Errorf("listening on %s: %w", p.flag, err)
	}
	if p.tls != nil {
		listener = tls.NewListener(listener, p.tls)
	}
	return cli.Serve(ctx, cli.NewServer(p.handler, log), listener, portDrain)
}
