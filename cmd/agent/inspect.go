package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/internal/node/etcdprobe"
	"github.com/holdfast-dev/holdfast/internal/node/host"
	"github.com/holdfast-dev/holdfast/internal/node/nodenet"
	"github.com/holdfast-dev/holdfast/internal/operator/cli"
	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

const (
	// inspectBudget limits the time of an inspection after its search of the local disks, and
	// inspectSearchTime is the default limit of the search: a person waits for the answer.
	inspectBudget     = 15 * time.Second
	inspectSearchTime = "1500ms"
)

// inspectUsage is the help of `holdfast-agent inspect`. A test checks that it explains every
// flag.
const inspectUsage = `holdfast-agent inspect prints what the agent observes on this host, what it would decide, and why.
It needs no cluster and changes nothing. Run it as root: what only root can read is unknown to other users.

  holdfast-agent inspect [flags]

  -o text|json                    format of the output: text for people (default), JSON for scripts (described in
                                  docs/inspect.md)
  -v                              also print the labels and annotations that the agent would write. JSON always has
                                  them
  --exit-code                     show the result in the exit code
  --ask-etcd=BOOL                 probe the etcd servers on this host for their identity and the state of their
                                  cluster (default true)
  --host-root=DIR                 directory where the host's / is mounted (default /)
  --provider-id=ID                the Node's spec.providerID, to compare with the IDs of an OpenStack machine. If empty,
                                  inspect uses the kubelet's flag or cloud-init's instance ID

These flags of holdfast-agent run change the decisions too:
  --gates=auto|LIST  --network-plugin-label=KEY=VALUE  --network-plugin-marker=FILE
  --flannel-subnet-file=FILE  --trust-durable-subnet-file  --cni-conf-dir=DIR,...  --cni-bin-dir=DIR,...
  --protect-static-pods=BOOL  --etcd-ca=FILE --etcd-cert=FILE --etcd-key=FILE  --probe-timeout=DURATION
  --data-search-interval=DURATION  --data-search-max-time=DURATION  --data-search-max-directories=N
inspect searches once, unless the interval is 0. By default it ends the search after 1.5 s, and says so: then it is
unknown whether there is more data. For the whole disk, for example in scripts: --data-search-max-time=10m

Exit codes: 0 success, whatever the result is; 1 failure; 2 usage error. With --exit-code, the first of these that
applies:
  10  the host holds an etcd member
  11  it is unknown whether the host holds an etcd member
  12  a held node would stay held
   0  none of these: the host holds no etcd member, and a held node would be released
`

// inspectFlags holds the flags of `holdfast-agent inspect`.
type inspectFlags struct {
	flags
	output      string
	isVerbose   bool
	setExitCode bool
	askEtcd     bool
	providerID  string
}

func (i *inspectFlags) flagSet() *flag.FlagSet {
	set, run := cli.NewFlagSet("holdfast-agent inspect"), i.flags.flagSet()
	_ = run.Set("data-search-max-time", inspectSearchTime) // a valid duration
	set.StringVar(&i.output, "o", "text", "")
	set.BoolVar(&i.isVerbose, "v", false, "")
	set.BoolVar(&i.setExitCode, "exit-code", false, "")
	set.BoolVar(&i.askEtcd, "ask-etcd", true, "")
	set.StringVar(&i.providerID, "provider-id", "", "")
	for _, name := range []string{ // inspect has these flags of run too
		"host-root", "gates", "network-plugin-label", "network-plugin-marker", "flannel-subnet-file",
		"trust-durable-subnet-file", "cni-conf-dir", "cni-bin-dir", "protect-static-pods", "etcd-ca", "etcd-cert",
		"etcd-key", "probe-timeout", "data-search-interval", "data-search-max-time", "data-search-max-directories",
	} {
		set.Var(run.Lookup(name).Value, name, "")
	}
	return set
}

func parseInspect(args []string) (inspectFlags, error) {
	var i inspectFlags
	err := cli.ParseFlags(i.flagSet(), args, "-o json", &i.flags, checkHost, completeGates, completeEtcd, checkTimes)
	if err == nil && i.output != "text" && i.output != "json" {
		err = cli.UsageErrorf("-o %q is unknown; use text or json", i.output)
	}
	return i, err
}

func inspect(ctx context.Context, args []string, out io.Writer) error {
	options, err := parseInspect(args)
	if err != nil {
		return err
	}
	observedHost, err := host.New(options.host)
	if err != nil {
		return cli.UsageErrorf("--host-root: %v", err)
	}
	if err := checkHostRoot(options.host.Root); err != nil {
		return err
	}
	if options.host.DataSearch.Interval > 0 {
		observedHost.SearchDataNow(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, inspectBudget)
	defer cancel()
	r := observeHost(ctx, observedHost, options)
	if options.output == "json" {
		err = r.writeJSON(out)
	} else {
		err = r.writeText(out, options.isVerbose)
	}
	switch {
	case err != nil:
		return fmt.Errorf("writing the report: %w", err)
	case options.setExitCode:
		return cli.ExitWith(r.Result.exitCode())
	}
	return nil
}

// checkHostRoot returns a usage error if root is not the root of a host. Without this
// check, an inspection of a wrong directory would report a host without etcd.
func checkHostRoot(root string) error {
	problem := ""
	if _, err := os.Lstat(filepath.Join(root, "etc")); errors.Is(err, fs.ErrNotExist) {
		problem = "it has no etc directory"
	}
	switch entries, err := os.ReadDir(filepath.Join(root, "proc")); {
	case errors.Is(err, fs.ErrNotExist):
		problem = "it has no proc directory"
	case err == nil && len(entries) == 0:
		problem = "its proc directory is empty, so the mounts below / are missing"
	}
	if problem == "" {
		return nil
	}
	return cli.UsageErrorf("--host-root=%s is not the root of a host: %s; in a pod, use the directory where "+
		"a hostPath volume mounts the host's /; on the host itself, omit the flag", root, problem)
}

// observeHost reads the host, probes the etcd servers on it, and decides as the agent would.
func observeHost(ctx context.Context, observedHost *host.Host, options inspectFlags) report {
	prober := etcdprobe.New(etcdprobe.Options{Timeout: options.probeTimeout, HostRoot: hostfs.Root(options.host.Root)})
	defer prober.Close()
	r := report{Version: reportVersion, Network: observedHost.Network(ctx)}
	r.Host = hostReport{Name: "this-host", Root: options.host.Root, BootID: r.Network.BootID, UserID: os.Geteuid()}
	if name, err := os.Hostname(); err == nil {
		r.Host.Name = name
	}
	r.Network.Probes = probeGates(ctx, options.policy.Endpoints())
	r.Etcd = etcdReport{Found: []foundReport{}, Scan: observedHost.Etcd(ctx)}
	for _, server := range r.Etcd.Scan.Found {
		found := foundReport{FoundServer: server}
		// Like the agent, probe a server whose process is not visible too.
		if options.askEtcd && (options.staticPods || !server.InCluster) {
			found.Identity = prober.Identify(ctx, server.Server)
		}
		if found.HasAnswered() && !found.Removed {
			observation := prober.Observe(ctx, server.Server, found.Identity)
			found.Observation = &observation
		}
		r.Etcd.Found = append(r.Etcd.Found, found)
	}
	r.OpenStack = describeMachine(observedHost.MachineIDs(), options.providerID)
	r.Decision = r.decide(options)
	r.Result, r.Conclusion = r.Decision.conclude()
	return r
}

// probeGates probes each endpoint once, all at the same time.
func probeGates(ctx context.Context, endpoints []readiness.Endpoint) []readiness.Probe {
	probes := make([]readiness.Probe, len(endpoints))
	var probing sync.WaitGroup
	for i, endpoint := range endpoints {
		probing.Go(func() {
			err := nodenet.Probe(ctx, endpoint)
			probes[i] = endpoint.Result(readiness.Probe{}, err, time.Now())
		})
	}
	probing.Wait()
	return probes
}
