// Command agent runs on every node. It protects the node while etcd runs on the host,
// holds a new node until its network works, and labels the node with its SPC record. See
// `holdfast-agent --help`.
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

	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/holdfast-dev/holdfast/internal/control/spcapi"
	"github.com/holdfast-dev/holdfast/internal/node/agent"
	"github.com/holdfast-dev/holdfast/internal/node/etcdprobe"
	"github.com/holdfast-dev/holdfast/internal/node/host"
	"github.com/holdfast-dev/holdfast/internal/node/nodenet"
	"github.com/holdfast-dev/holdfast/internal/operator/cli"
	"github.com/holdfast-dev/holdfast/internal/shared/apiaccess"
	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/internal/shared/metricsserver"
)

// gcPercent is half of Go's default. The agent keeps little and allocates little, so a smaller heap
// costs it no time.
const gcPercent = 50

// version is the version of the image with its commit. The Makefile has the linker set
// it; in other builds it is empty (see cli.Version).
var version string

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	os.Exit(cli.Run(func(ctx context.Context, args []string, out, errOut io.Writer) int {
		return commandLine{out, errOut, klog.SetSlogLogger}.execute(ctx, args)
	}))
}

// commandLine executes the arguments of holdfast-agent.
type commandLine struct {
	out, errOut io.Writer
	// setKlogLogger gives klog its logger. klog has one for the whole process, so only
	// main passes klog.SetSlogLogger.
	setKlogLogger func(*slog.Logger)
}

// execute returns the exit code.
func (c commandLine) execute(ctx context.Context, args []string) int {
	command, text := "holdfast-agent --help", usage
	if len(args) > 0 && args[0] == "inspect" {
		command, text = "holdfast-agent inspect --help", inspectUsage
	}
	err := c.dispatch(ctx, args)
	if errors.Is(err, flag.ErrHelp) {
		_, err = io.WriteString(c.out, text)
	}
	return cli.ReportError(c.errOut, "agent", command, err)
}

func (c commandLine) dispatch(ctx context.Context, args []string) error {
	if len(args) == 0 {
		fmt.Fprint(c.errOut, usage)
		return cli.UsageErrorf("a command is required: run, inspect or version")
	}
	switch name, rest := args[0], args[1:]; name {
	case "run":
		cfg, err := parse(rest)
		if err != nil {
			return err
		}
		log := cfg.log.NewLogger(c.errOut).With("node", cfg.node)
		c.setKlogLogger(log.With("library", "client-go"))
		return run(ctx, cfg, log)
	case "inspect":
		return inspect(ctx, rest, c.out)
	case "version", "--version", "-version":
		fmt.Fprintln(c.out, "holdfast agent "+cli.Version(version))
		return nil
	case "help", "--help", "-help", "-h":
		return flag.ErrHelp
	default:
		return cli.UsageErrorf("unknown command %q; use run, inspect or version", name)
	}
}

// run starts the agent and waits until ctx ends, which is success.
func run(ctx context.Context, cfg config, log *slog.Logger) error {
	prober := etcdprobe.New(etcdprobe.Options{Timeout: cfg.probeTimeout, HostRoot: hostfs.Root(cfg.host.Root)})
	defer prober.Close()
	nodeAgent, err := newAgent(cfg, prober, log)
	if err != nil {
		return err
	}
	log.InfoContext(ctx, "agent starting", "version", cli.Version(version))
	registry, err := metricsserver.NewRegistry("agent", cli.Version(version), nodeAgent, prober,
		collectors.NewGoCollector(collectors.WithGoCollectorMemStatsMetricsDisabled()))
	if err != nil {
		return err
	}
	ports, err := newPorts(cfg, nodeAgent.Healthy, metricsserver.Handler(registry, log), log)
	if err != nil {
		return err
	}
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error { return nodeAgent.Run(running) })
	for _, p := range ports {
		group.Go(func() error { return keepServing(running, p) })
	}
	err = group.Wait()
	if ctx.Err() != nil {
		log.InfoContext(context.WithoutCancel(ctx), "agent stopped")
		return nil
	}
	return err
}

func newAgent(cfg config, prober *etcdprobe.Prober, log *slog.Logger) (*agent.Agent, error) {
	config, err := restConfig(cfg.kubeconfig)
	if err != nil {
		return nil, err
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("creating a client for the API server: %w", err)
	}
	clusters, err := apiaccess.NewClusters(config, client)
	if err != nil {
		return nil, err
	}
	core, err := apiaccess.NewCore(config, client)
	if err != nil {
		return nil, err
	}
	cfg.host.Log = log
	observedHost, err := host.New(cfg.host)
	if err != nil {
		return nil, err
	}
	parts := agent.Config{
		Node: cfg.node, Nodes: core.Nodes(), Events: core.Events(metav1.NamespaceDefault), Clusters: clusters,
		Network: observedHost.Network, ProbeGate: nodenet.Probe,
		AllowShutdown: observedHost.EndShutdownDelay, Etcd: observedHost.Etcd, SearchData: observedHost.SearchData,
		Watch:    observedHost.Watch,
		Identify: prober.Identify, Observe: prober.Observe, ListMembers: prober.ListMembers,
		Policy: cfg.policy, StaticPods: cfg.staticPods, Tick: cfg.tick, Log: log,
	}
	if cfg.inventory.Name != "" {
		reader := &spcapi.Reader{
			ConfigMaps: core.ConfigMaps(cfg.inventory.Namespace), Name: spcapi.PartName(cfg.inventory.Name, cfg.node), Log: log,
		}
		parts.Inventory, parts.FollowInventory, parts.WithholdGroup = reader.Latest, reader.Run, cfg.withholdGroup
	}
	return agent.New(parts)
}

func restConfig(kubeconfig string) (*rest.Config, error) {
	// A release takes two writes and an event. The limits only stop a loop that runs away.
	config, err := apiaccess.Config(apiaccess.Options{
		Kubeconfig: kubeconfig, UserAgent: "holdfast-agent/" + cli.Version(version), QPS: 20, Burst: 40,
	})
	if errors.Is(err, rest.ErrNotInCluster) {
		return nil, errors.New("the agent does not run in a pod; set --kubeconfig=FILE, " +
			"or use `holdfast-agent inspect`, which needs no cluster")
	}
	return config, err
}

// portDrain limits how long the agent waits for running requests to its ports.
const portDrain = 2 * time.Second

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
