package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	crlog "sigs.k8s.io/controller-runtime/pkg/log"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/holdfast-dev/holdfast/internal/apiaccess"
	"github.com/holdfast-dev/holdfast/internal/buildinfo"
)

// run builds the webhook and works until the context ends, which is success.
func run(ctx context.Context, cfg config, errOut io.Writer) error {
	log := logger(cfg, errOut)
	klog.SetSlogLogger(log.With("library", "client-go"))
	crlog.SetLogger(logr.FromSlogHandler(log.With("library", "controller-runtime").Handler()))
	api, err := restConfig(cfg.kubeconfig)
	if err != nil {
		return err
	}
	ports, err := listen(ctx, cfg)
	if err != nil {
		return err
	}
	log.InfoContext(ctx, "webhook starting", "version", buildinfo.Version(version), "api_server", api.Host)
	if cfg.clientCAFile == "" {
		log.WarnContext(ctx, "callers of the webhook are not authenticated, whoever reaches its port can have grants written",
			"listen", cfg.listen, "advice", "set --client-ca-file, or let in the API server alone by a NetworkPolicy")
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	// Health answers from the start: whoever waits for the API server is alive and not ready.
	var ready atomic.Pointer[func() error]
	group, running := errgroup.WithContext(ctx)
	if ports.health != nil {
		group.Go(func() error {
			return serve(running, ports.health, health(func() error {
				if check := ready.Load(); check != nil {
					return (*check)()
				}
				return errors.New("waiting for the API server")
			}), log)
		})
	}
	if ports.metrics != nil {
		all := prometheus.Gatherers{registry, crmetrics.Registry}
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", promhttp.HandlerFor(all, promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelError)}))
		group.Go(func() error { return serve(running, ports.metrics, mux, log) })
	}
	group.Go(func() error {
		return work(running, setup{config: cfg, api: api, log: log, registry: registry, listener: ports.webhook},
			func(check func() error) { ready.Store(&check) })
	})
	err = errors.Join(group.Wait(), ports.close())
	if ctx.Err() != nil {
		log.InfoContext(context.WithoutCancel(ctx), "webhook stopped")
		return nil
	}
	return err
}

func logger(cfg config, w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: cfg.logLevel}
	if cfg.logJSON {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// restConfig says how to reach the API server.
func restConfig(kubeconfig string) (*rest.Config, error) {
	// client-go's own limit of five requests a second would use up a review's eight seconds in line; the API server
	// protects itself.
	config, err := apiaccess.Config(apiaccess.Options{
		Kubeconfig: kubeconfig, UserAgent: "holdfast-webhook/" + buildinfo.Version(version), QPS: 200, Burst: 400,
	})
	if errors.Is(err, rest.ErrNotInCluster) {
		return nil, errors.New("this is no pod of a cluster; give --kubeconfig=FILE")
	}
	return config, err
}

// ports are the listeners; those that are not wanted are nil.
type ports struct{ webhook, metrics, health net.Listener }

// listen opens all ports before anything else, so that one in use is said at once.
func listen(ctx context.Context, cfg config) (ports, error) {
	var p ports
	for _, each := range []struct {
		flag, address string
		to            *net.Listener
	}{
		{"--listen", cfg.listen, &p.webhook},
		{"--metrics-listen", cfg.metricsListen, &p.metrics},
		{"--health-listen", cfg.healthListen, &p.health},
	} {
		if each.address == "" {
			continue
		}
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", each.address)
		if err != nil {
			return ports{}, errors.Join(fmt.Errorf("listening for %s: %w", each.flag, err), p.close())
		}
		*each.to = listener
	}
	return p, nil
}

// close gives up the ports that no server has closed.
func (p ports) close() error {
	var err error
	for _, l := range []net.Listener{p.webhook, p.metrics, p.health} {
		if l == nil {
			continue
		}
		if failed := l.Close(); failed != nil && !errors.Is(failed, net.ErrClosed) {
			err = errors.Join(err, failed)
		}
	}
	return err
}
