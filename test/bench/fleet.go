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

	"github.com/holdfast-dev/holdfast/internal/etcdprobe"
	"github.com/holdfast-dev/holdfast/internal/host"
	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/test/fixture"
)

const (
	fleetSize = 1000
	// fleetTarget limits the time of the last release, as a multiple of the same number of patches.
	fleetTarget = 1.5
	// fleetParallelism limits the nodes and the agents that are created at the same time.
	fleetParallelism = 8
	// fleetHost is the node whose host all agents observe.
	fleetHost = "worker-fleet"
)

// measureFleet measures the time from the last host signal, at the same moment on 1,000 nodes,
// until all nodes are released. The agents are those of cmd/agent, each with its own token and
// connection, but in one process. They share one inotify watch of one host, because the kernel
// allows a user 128 inotify instances by default.
func measureFleet(ctx context.Context, b *benchCluster, t *resultTable) (err error) {
	log, err := os.Create(filepath.Join(b.Dir, "fleet.log"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	f := &agentFleet{cluster: b, log: slog.New(slog.NewTextHandler(log, nil)), list: make([]*fleetAgent, fleetSize)}
	klog.SetSlogLogger(f.log) // client-go logs each delayed request
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
	if err := f.cluster.waitForHeld(ctx, fleetHost+"-", fleetSize); err != nil {
		return 0, err
	}
	if err := fixture.Wait(ctx, 2*time.Second); err != nil {
		return 0, err
	}
	return f.release(ctx, t)
}

// An agentFleet is the set of agents.
type agentFleet struct {
	cluster *benchCluster
	log     *slog.Logger
	list    []*fleetAgent
	watch   sharedWatch
}

// release writes the last host signal and returns the time until the last node was released.
func (f *agentFleet) release(ctx context.Context, t *resultTable) (last time.Duration, err error) {
	signalled, err := f.cluster.writeSubnetFile(fleetHost)
	if err != nil {
		return 0, err
	}
	var taken durations
	for _, a := range f.list {
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-time.After(time.Minute):
			return 0, fmt.Errorf("node %s was not released within a minute; see fleet.log", a.name)
		case at := <-a.opened:
			taken = append(taken, at.Sub(signalled))
		}
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
			if strings.HasPrefix(list.Items[i].Name, fleetHost+"-") && isReleased(&list.Items[i]) &&
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
	if err := f.cluster.registerHeld(ctx, fleetHost); err != nil {
		return err
	}
	boot, err := os.ReadFile(filepath.Join(f.cluster.HostRoot(fleetHost), "proc/sys/kernel/random/boot_id"))
	if err != nil {
		return err
	}
	return f.forEach(ctx, func(i int) error {
		f.list[i] = &fleetAgent{name: fmt.Sprintf("%s-%d", fleetHost, i+1), opened: make(chan time.Time, 1)}
		_, _, err := f.cluster.API.AddNode(ctx,
			apiserver.NodeSpec{Name: f.list[i].name, InternalIP: "192.0.2.1", BootID: string(boot[:len(boot)-1])})
		return err
	})
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
	watched, err := host.New(host.Options{Root: f.cluster.HostRoot(fleetHost)})
	if err != nil {
		return err
	}
	group.Go(func() error { return watched.Watch(ctx, f.watch.notifyAll) })
	return f.forEach(ctx, func(i int) error {
		prober := etcdprobe.New(etcdprobe.Options{})
		made, err := f.build(ctx, f.list[i], prober)
		if err != nil {
			return err
		}
		group.Go(func() error {
			defer prober.Close()
			return made.Run(ctx)
		})
		return nil
	})
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
