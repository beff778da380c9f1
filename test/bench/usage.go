package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/internal/testenv/process"
	"github.com/holdfast-dev/holdfast/test/fixture"
)

const (
	// idleBeforeReading is the time without events before an agent's memory is read.
	idleBeforeReading = 30 * time.Second
	residentTarget    = 23 << 20
	anonymousTarget   = 5 << 20
)

// A processUsage is what a process has used so far. Memory is in bytes.
type processUsage struct {
	cpu time.Duration
	// resident is all memory, and peak the most of it. anonymous is the part without a file. The
	// kernel can reclaim the rest.
	resident, peak, anonymous uint64
}

// readUsage reads the usage of a process. Its memory is the sum over the mappings. The values in
// /proc/<pid>/status are less exact, because each CPU counts separately.
func readUsage(pid int) (processUsage, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return processUsage{}, err
	}
	stat, failed := p.Stat()
	status, failedStatus := p.NewStatus()
	memory, failedMemory := p.ProcSMapsRollup()
	return processUsage{
		cpu:      time.Duration(stat.CPUTime() * float64(time.Second)),
		resident: memory.Rss, peak: status.VmHWM, anonymous: memory.Anonymous,
	}, errors.Join(failed, failedStatus, failedMemory)
}

// memory describes the memory.
func (u processUsage) memory() string {
	return fmt.Sprintf("%.1f MiB, anonymous %.1f", float64(u.resident)/(1<<20), float64(u.anonymous)/(1<<20))
}

// measureMemory measures an idle agent on a released worker, and a program that only watches
// its Node with client-go's typed client.
func measureMemory(ctx context.Context, b *benchCluster, t *resultTable) error {
	const name = "worker-memory"
	if _, err := b.startHeld(ctx, name, 1); err != nil {
		return err
	}
	node := name + "1"
	if _, err := b.releaseNode(ctx, node); err != nil {
		return err
	}
	watcher, err := b.startWatcher(ctx, node)
	if err != nil {
		return err
	}
	t.progress("waiting %s without events", idleBeforeReading)
	if err := fixture.Wait(ctx, idleBeforeReading); err != nil {
		return err
	}
	least, err := readUsage(watcher.PID())
	if err != nil {
		return err
	}
	used, err := readUsage(b.Agent(node).PID())
	if err != nil {
		return err
	}
	if err := watcher.Stop(ctx); err != nil {
		return err
	}
	t.add(resultRow{what: "memory of a program that only watches its Node with client-go", median: least.memory()})
	t.add(resultRow{
		what: "memory of an idle agent on a worker", median: used.memory(),
		ratio: fmt.Sprintf("×%.2f, anonymous ×%.2f", float64(used.resident)/float64(least.resident),
			float64(used.anonymous)/float64(least.anonymous)),
		target: "≤ 23 MiB, anonymous ≤ 5", missed: used.resident > residentTarget || used.anonymous > anonymousTarget,
	})
	return nil
}

// startWatcher builds and starts the program to compare with.
func (b *benchCluster) startWatcher(ctx context.Context, node string) (*process.Process, error) {
	root, err := process.RepositoryRoot()
	if err != nil {
		return nil, err
	}
	program := filepath.Join(b.Dir, "watcher")
	build := exec.CommandContext(ctx, "go", "build", "-ldflags", "-s -w", "-o", program, "./test/bench/watcher")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building the watcher: %w: %s", err, out)
	}
	account, err := b.API.ServiceAccountConfig(ctx, fixture.Namespace, "holdfast-agent", node)
	if err != nil {
		return nil, err
	}
	kubeconfig := program + ".kubeconfig"
	if err := apiserver.WriteKubeconfig(kubeconfig, account); err != nil {
		return nil, err
	}
	return process.Start(process.Options{Path: program, Args: []string{kubeconfig, node}, LogFile: program + ".log"})
}

const (
	idleTime = time.Minute
	// idleTarget limits the CPU usage of an idle agent, as a share of a core.
	idleTarget = 0.005
	// scanTarget limits the CPU time of one full scan of a host.
	scanTarget = 50 * time.Millisecond
)

// measureIdle measures the CPU usage of an idle agent on an etcd node.
func measureIdle(ctx context.Context, b *benchCluster, t *resultTable) error {
	pid := b.Agent(nodeName(1)).PID()
	before, err := readUsage(pid)
	if err != nil {
		return err
	}
	t.progress("waiting %s without events", idleTime)
	begun := time.Now()
	if err := fixture.Wait(ctx, idleTime); err != nil {
		return err
	}
	after, err := readUsage(pid)
	if err != nil {
		return err
	}
	share := (after.cpu - before.cpu).Seconds() / time.Since(begun).Seconds()
	t.add(resultRow{
		what:   fmt.Sprintf("idle agent on an etcd node; memory %s", after.memory()),
		median: fmt.Sprintf("%.2f %% of a core", share*100), target: "≤ 0.5 %", missed: share > idleTarget,
	})
	return nil
}

// measureScan runs the benchmark of a host scan, which is in the package internal/node/host.
func measureScan(ctx context.Context, _ *benchCluster, t *resultTable) error {
	out, err := goBenchmark(ctx, "./internal/node/host", "BenchmarkFindings", "50x")
	if err != nil {
		return err
	}
	cost, err := parseScanCost(out)
	if err != nil {
		return err
	}
	t.add(resultRow{
		what: "one full scan of a host with 2,000 processes", median: ms(cost) + " of CPU, mean", target: "≤ 50 ms",
		missed: cost > scanTarget,
	})
	return nil
}

// goBenchmark runs a benchmark of a package, and returns its output.
func goBenchmark(ctx context.Context, pkg, name, times string) (string, error) {
	root, err := process.RepositoryRoot()
	if err != nil {
		return "", err
	}
	run := exec.CommandContext(ctx, "go", "test", "-run=^$", "-bench=^"+name+"$", "-benchtime="+times, pkg)
	run.Dir = root
	out, err := run.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("running %s of %s: %w: %s", name, pkg, err, out)
	}
	return string(out), nil
}

// parseScanCost returns the CPU time per scan in the benchmark's output.
func parseScanCost(out string) (time.Duration, error) {
	found := regexp.MustCompile(`(?m)^BenchmarkFindings\S*\s.*?([0-9.]+) cpu-ms/op`).FindStringSubmatch(out)
	if found == nil {
		return 0, fmt.Errorf("reading the benchmark of internal/node/host: no cpu-ms/op in %q", out)
	}
	return time.ParseDuration(found[1] + "ms")
}

// loadInterval is the time between two samples of the load.
const loadInterval = 500 * time.Millisecond

// An apiLoad is the load of the API server by agents during a measurement.
type apiLoad struct {
	cluster  *benchCluster
	since    time.Time
	inflight atomic.Int64
}

// sampleLoad samples the load until ctx ends.
func (b *benchCluster) sampleLoad(ctx context.Context, group *errgroup.Group) *apiLoad {
	l := &apiLoad{cluster: b, since: time.Now()}
	group.Go(func() error {
		for fixture.Wait(ctx, loadInterval) == nil {
			now, err := b.inflight(ctx)
			if err != nil {
				return fmt.Errorf("reading the load of the API server: %w", err)
			}
			l.inflight.Store(max(l.inflight.Load(), now))
		}
		return nil
	})
	return l
}

// inflight returns how many requests the API server handles now, without watches.
func (b *benchCluster) inflight(ctx context.Context) (int64, error) {
	text, err := b.nodes.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if ctx.Err() != nil {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	sum, err := fixture.SumSeries(string(text), "apiserver_current_inflight_requests")
	return int64(sum), err
}

// report adds the requests of all agents since the start of the measurement to the table.
func (l *apiLoad) report(t *resultTable, what string) error {
	requests, err := l.cluster.API.Requests(agentAccount)
	if err != nil {
		return err
	}
	taken, perSecond, total := time.Since(l.since), map[int64]int{}, 0
	for _, r := range requests {
		if r.Answered.After(l.since) {
			total++
			perSecond[r.Answered.Unix()]++
		}
	}
	busiest := slices.Max(append(slices.Collect(maps.Values(perSecond)), 0))
	t.add(resultRow{
		what: fmt.Sprintf("%s in %s: %s", what, taken.Round(time.Second), countRequests(requests, l.since)),
		median: fmt.Sprintf("%.0f/s, at most %d/s; %d in flight", float64(total)/taken.Seconds(), busiest,
			l.inflight.Load()),
	})
	return nil
}
