package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/holdfast-dev/holdfast/internal/node/etcdprobe"
	"github.com/holdfast-dev/holdfast/internal/node/host"
	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/test/fixture"
)

const (
	fleetSize = 1000
	// fleetTarget limits the time of the last release, as a multiple of the same number of patches.
	fleetTarget = 1.5
	// fleetParallelism limits the nodes and the agents that are created at the same time.
	fleetParallelism = 8
)

// measureFleet measures the time from the last host signal, at the same moment on 1,000 nodes,
// until all nodes are released. The agents are those of cmd/agent, each with its own token and
// connection, but in one process. They share one inotify watch of one host, because the kernel
// allows a user 128 inotify instances by default.
func measureFleet(ctx context.Context, b *benchCluster, t *resultTable) (err error) {
	f, err := newAgentFleet(b, "worker-fleet", fleetSize)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.logFile.Close()) }()
	t.progress("registering %d nodes", fleetSize)
	if err := f.register(ctx); err != nil {
		return err
	}
	// The process has the heap of 1,000 agents. A single agent would not collect garbage in
	// these seconds.
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	t.progress("starting %d agents", fleetSize)
	last, err := f.run(ctx, t)
	if err != nil {
		return err
	}
	// The same number of patches of the same Nodes, without agents.
	begun := time.Now()
	if err := f.patchAll(ctx); err != nil {
		return err
	}
	patched := time.Since(begun)
	t.add(resultRow{
		what:   fmt.Sprintf("%d bare patches by an administrator, %d at a time", fleetSize, floodAtOnce),
		median: ms(patched),
	})
	t.add(resultRow{
		what:   fmt.Sprintf("last release of %d nodes after one signal", fleetSize),
		median: ms(last),
	}.judged(last.Seconds()/patched.Seconds(), fleetTarget))
	return nil
}

// run starts the agents, measures the release of their nodes, and stops the agents. It returns
// the time until the last node was released.
func (f *agentFleet) run(ctx context.Context, t *resultTable) (last time.Duration, err error) {
	running, stop := context.WithCancel(ctx)
	group, running := errgroup.WithContext(running)
	defer func() {
		stop()
		if ended := group.Wait(); !errors.Is(ended, context.Canceled) {
			err = errors.Join(err, ended)
		}
	}()
	if err := f.start(running, group); err != nil {
		return 0, err
	}
	if err := f.cluster.waitForHeld(ctx, f.host+"-", len(f.list)); err != nil {
		return 0, err
	}
	if err := fixture.Wait(ctx, 2*time.Second); err != nil {
		return 0, err
	}
	return f.release(ctx, t)
}

// An agentFleet is a set of agents.
type agentFleet struct {
	cluster *benchCluster
	// host is the node whose host all agents observe. It begins the names of their own nodes.
	host    string
	list    []*fleetAgent
	watch   sharedWatch
	log     *slog.Logger
	logFile *os.File
	// tick is the time between two scans of an agent.
	tick time.Duration
}

func newAgentFleet(b *benchCluster, host string, size int) (*agentFleet, error) {
	file, err := os.Create(filepath.Join(b.Dir, host+".log"))
	if err != nil {
		return nil, err
	}
	f := &agentFleet{
		cluster: b, host: host, list: make([]*fleetAgent, size), tick: 10 * time.Second,
		log: slog.New(slog.NewTextHandler(file, nil)), logFile: file,
	}
	for i := range f.list {
		f.list[i] = &fleetAgent{name: fmt.Sprintf("%s-%d", host, i+1), opened: make(chan time.Time, 1)}
	}
	klog.SetSlogLogger(f.log) // client-go logs each delayed request
	return f, nil
}

// release writes the last host signal and returns the time until the last node was released.
func (f *agentFleet) release(ctx context.Context, t *resultTable) (last time.Duration, err error) {
	signalled, err := f.cluster.writeSubnetFile(f.host)
	if err != nil {
		return 0, err
	}
	var taken durations
	for _, a := range f.list {
		opened, err := a.waitForRelease(ctx)
		if err != nil {
			return 0, err
		}
		taken = append(taken, opened.Sub(signalled))
	}
	last = taken.quantile(1)
	t.add(taken.row(fmt.Sprintf("release of a fleet after one signal; %d responses \"too many requests\"",
		f.throttledAnswers())))
	return last, f.waitForConditions(ctx, t, signalled)
}

// waitForConditions waits until the agents have written all conditions that follow a release.
func (f *agentFleet) waitForConditions(ctx context.Context, t *resultTable, signalled time.Time) error {
	err := f.cluster.WaitUntil(ctx, "the conditions that follow the releases", func(ctx context.Context) error {
		list, err := f.cluster.nodes.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return err
		}
		open := 0
		for i := range list.Items {
			if strings.HasPrefix(list.Items[i].Name, f.host+"-") && isReleased(&list.Items[i]) &&
				hasReleasedConditions(&list.Items[i]) {
				open++
			}
		}
		if open < len(f.list) {
			return fmt.Errorf("%d nodes have them", open)
		}
		return nil
	})
	t.add(resultRow{what: "  until all conditions are written", median: ms(time.Since(signalled))})
	return err
}

// register lays out the host and registers the nodes, each with its own kubelet's identity and
// held from birth.
func (f *agentFleet) register(ctx context.Context) error {
	if err := f.cluster.registerHeld(ctx, f.host); err != nil {
		return err
	}
	return f.forEach(ctx, func(i int) error { return f.registerOne(ctx, f.list[i]) })
}

// registerOne registers the node of an agent.
func (f *agentFleet) registerOne(ctx context.Context, a *fleetAgent) error {
	boot, err := os.ReadFile(filepath.Join(f.cluster.HostRoot(f.host), "proc/sys/kernel/random/boot_id"))
	if err != nil {
		return err
	}
	_, _, err = f.cluster.API.AddNode(ctx, apiserver.NodeSpec{
		Name: a.name, InternalIP: "192.0.2.1", BootID: strings.TrimSpace(string(boot)), PodCIDR: fixture.PodCIDR,
	})
	return err
}

// patchAll patches every node once, as fast as one client can.
func (f *agentFleet) patchAll(ctx context.Context) error {
	var group errgroup.Group
	group.SetLimit(floodAtOnce)
	for _, a := range f.list {
		group.Go(func() error {
			_, err := f.cluster.nodes.CoreV1().Nodes().Patch(ctx, a.name, types.MergePatchType,
				[]byte(`{"metadata":{"annotations":{"bench.holdfast.dev/patched":"true"}}}`), metav1.PatchOptions{})
			return err
		})
	}
	return group.Wait()
}

// start starts the watch of the host and the agents.
func (f *agentFleet) start(ctx context.Context, group *errgroup.Group) error {
	if err := f.startWatch(ctx, group); err != nil {
		return err
	}
	return f.forEach(ctx, func(i int) error { return f.startOne(ctx, group, f.list[i]) })
}

// startWatch starts the watch of the host.
func (f *agentFleet) startWatch(ctx context.Context, group *errgroup.Group) error {
	watched, err := host.New(host.Options{Root: f.cluster.HostRoot(f.host)})
	if err == nil {
		group.Go(func() error { return watched.Watch(ctx, f.watch.notifyAll) })
	}
	return err
}

// startOne starts an agent, which runs until ctx ends.
func (f *agentFleet) startOne(ctx context.Context, group *errgroup.Group, a *fleetAgent) error {
	prober := etcdprobe.New(etcdprobe.Options{})
	made, err := f.build(ctx, a, prober)
	if err != nil {
		return err
	}
	group.Go(func() error {
		defer prober.Close()
		return made.Run(ctx)
	})
	return nil
}

// forEach calls do for every agent, for a few agents at a time.
func (f *agentFleet) forEach(ctx context.Context, do func(i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(fleetParallelism)
	for i := range f.list {
		group.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return do(i)
		})
	}
	return group.Wait()
}

func (f *agentFleet) throttledAnswers() (answers int64) {
	for _, a := range f.list {
		answers += a.throttled.Load()
	}
	return answers
}
