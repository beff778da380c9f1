package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/internal/agent"
	"github.com/holdfast-dev/holdfast/internal/apiaccess"
	"github.com/holdfast-dev/holdfast/internal/buildinfo"
	"github.com/holdfast-dev/holdfast/internal/etcdprobe"
	"github.com/holdfast-dev/holdfast/internal/host"
	"github.com/holdfast-dev/holdfast/internal/spcapi"
)

const (
	// shutdownBudget is how long answers that are under way may take when the agent ends.
	shutdownBudget = 2 * time.Second
	// healthRetry is how long to wait for a port that somebody else has.
	healthRetry = 10 * time.Second
)

// run builds the agent and works until the context ends, which is success.
func run(ctx context.Context, cfg config, log *slog.Logger) error {
	prober := etcdprobe.New(etcdprobe.Options{Timeout: cfg.probeTimeout})
	defer prober.Close()
	made, err := build(cfg, prober, log)
	if err != nil {
		return err
	}
	log.InfoContext(ctx, "agent starting", "version", buildinfo.Version(version))
	numbers, err := metrics(made, prober)
	if err != nil {
		return err
	}
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error { return made.Run(running) })
	if cfg.healthListen != "" {
		group.Go(func() error { return serveHealth(running, cfg.healthListen, made.Healthy, numbers, log) })
	}
	err = group.Wait()
	if ctx.Err() != nil {
		log.InfoContext(context.WithoutCancel(ctx), "agent stopped")
		return nil
	}
	return err
}

// metrics answers with the numbers of the agent's parts, and with what its process uses.
func metrics(parts ...prometheus.Collector) (http.Handler, error) {
	all := prometheus.NewRegistry()
	for _, part := range append(parts, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})) {
		if err := all.Register(part); err != nil {
			return nil, fmt.Errorf("registering metrics: %w", err)
		}
	}
	return promhttp.HandlerFor(all, promhttp.HandlerOpts{}), nil
}

func logger(cfg config, w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: cfg.logLevel}
	if cfg.logJSON {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

func build(cfg config, prober *etcdprobe.Prober, log *slog.Logger) (*agent.Agent, error) {
	config, err := restConfig(cfg.kubeconfig)
	if err != nil {
		return nil, err
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("making a client for the API server: %w", err)
	}
	clusters, err := agent.NewClusters(config, client)
	if err != nil {
		return nil, err
	}
	core, err := apiaccess.NewCore(config, client)
	if err != nil {
		return nil, err
	}
	cfg.host.Log = log
	machine, err := host.New(cfg.host)
	if err != nil {
		return nil, err
	}
	parts := agent.Config{
		Node: cfg.node, Nodes: core.Nodes(), Events: core.Events(metav1.NamespaceDefault), Clusters: clusters,
		Network: machine.Network, LetGo: machine.LetGo, Etcd: machine.Etcd, Watch: machine.Watch,
		Identify: prober.Identify, Observe: prober.Observe,
		Policy: cfg.policy, StaticPods: cfg.staticPods, Tick: cfg.tick, Log: log,
	}
	if cfg.inventory.Name != "" {
		reader := &spcapi.Reader{ConfigMaps: core.ConfigMaps(cfg.inventory.Namespace), Name: cfg.inventory.Name, Log: log}
		parts.Inventory, parts.FollowInventory, parts.WithholdGroup = reader.Latest, reader.Run, cfg.withholdGroup
	}
	return agent.New(parts)
}

// restConfig says how to reach the API server.
func restConfig(kubeconfig string) (*rest.Config, error) {
	// A release is two writes and an event; the limits only stop a runaway loop.
	config, err := apiaccess.Config(apiaccess.Options{
		Kubeconfig: kubeconfig, UserAgent: "holdfast-agent/" + buildinfo.Version(version), QPS: 20, Burst: 40,
	})
	if errors.Is(err, rest.ErrNotInCluster) {
		return nil, errors.New("this is no pod of a cluster; give --kubeconfig=FILE, or use `holdfast-agent inspect`, which needs no cluster")
	}
	return config, err
}

// serveHealth answers /healthz until the context ends: 200 while the agent's loop turns, 503 otherwise; and /metrics. A port
// that somebody else has is asked for again and again; what the agent is for does not depend on it.
func serveHealth(ctx context.Context, address string, healthy func(time.Time) error, numbers http.Handler, log *slog.Logger) error {
	said := ""
	for {
		err := answerHealth(ctx, address, healthy, numbers)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if text := err.Error(); text != said {
			said = text
			log.ErrorContext(ctx, "the health endpoint cannot be served, trying again", "address", address, "err", err)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(healthRetry):
		}
	}
}

// answerHealth serves until it fails or the context ends.
func answerHealth(ctx context.Context, address string, healthy func(time.Time) error, numbers http.Handler) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listening for --health-listen: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if err := healthy(time.Now()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.Handle("GET /metrics", numbers)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return server.Serve(listener) })
	group.Go(func() error {
		<-ctx.Done()
		budget, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownBudget)
		defer cancel()
		return errors.Join(context.Cause(ctx), server.Shutdown(budget))
	})
	return group.Wait()
}
