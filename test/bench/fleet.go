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
	"github.com/holdfast-dev/holdfast/internal/testenv"
)

const (
	fleetSize   = 1000
	fleetTarget = 3 * time.Second
	// preparing is how many nodes are made at once, and how many agents are started: a fleet grows, it does not begin.
	preparing = 8
	// fleetHost is the node on whose host all of them look.
	fleetHost = "worker-fleet"
)

// fleet measures how long it takes until all of 1,000 nodes are open whose hosts give the last signal at one moment. The
// agents are those of cmd/agent, each with a token and a connection of its own, but in one process. They share what their
// kernel gives to each user 128 times and not 1,000, an instance of inotify: one watch of one host rings for all.
func fleet(ctx context.Context, s *stage, t *table) (err error) {
	log, err := os.Create(filepath.Join(s.Dir, "fleet.log"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	f := &agents{stage: s, log: slog.New(slog.NewTextHandler(log, nil)), list: make([]*fleetAgent, fleetSize)}
	klog.SetSlogLogger(f.log) // where client-go tells of every request that had to wait
	t.note("registering %d nodes", fleetSize)
	if err := f.register(ctx); err != nil {
		return err
	}
	// A thousand heaps in one: no agent alone would collect any garbage in these seconds.
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	t.note("starting %d agents", fleetSize)
	last, err := f.live(ctx, t)
	if err != nil {
		return err
	}
	// The same Nodes, as they are after all that, and nobody who would answer.
	begun := time.Now()
	if err := f.patchAll(ctx); err != nil {
		return err
	}
	patched := time.Since(begun)
	t.add(row{
		what: fmt.Sprintf("%d bare patches by an administrator, %d at once", fleetSize, floodAtOnce), median: ms(patched),
		ratio: fmt.Sprintf("the last release ×%.1f", last.Seconds()/patched.Seconds()),
	})
	return nil
}

// live starts the agents, has them release their nodes, and stops them. It returns when the last node was open.
func (f *agents) live(ctx context.Context, t *table) (last time.Duration, err error) {
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
	if err := f.stage.waiting(ctx, fleetHost+"-", fleetSize); err != nil {
		return 0, err
	}
	if err := leave(ctx, 2*time.Second); err != nil {
		return 0, err
	}
	return f.release(ctx, t)
}

// agents are the fleet.
type agents struct {
	stage *stage
	log   *slog.Logger
	list  []*fleetAgent
	bells bells
}

// release gives the signal and waits for all. It returns when the last node was open.
func (f *agents) release(ctx context.Context, t *table) (last time.Duration, err error) {
	signalled, err := f.stage.signal(fleetHost)
	if err != nil {
		return 0, err
	}
	var taken times
	for _, a := range f.list {
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-time.After(time.Minute):
			return 0, fmt.Errorf("%s was not opened within a minute; see fleet.log", a.name)
		case at := <-a.opened:
			taken = append(taken, at.Sub(signalled))
		}
	}
	last = taken.quantile(1)
	r := taken.row("a fleet is released by one signal")
	r.ratio = fmt.Sprintf("last %s; %d answers \"too many requests\"", ms(last), f.throttled())
	r.target, r.missed = "last ≤ 3 s", last > fleetTarget
	t.add(r)
	return last, f.settled(ctx, t, signalled)
}

// settled waits until the fleet has nothing more to write.
func (f *agents) settled(ctx context.Context, t *table, signalled time.Time) error {
	err := f.stage.Until(ctx, "all that follows the releases to be written", func(ctx context.Context) error {
		list, err := f.stage.nodes.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return err
		}
		open := 0
		for i := range list.Items {
			if strings.HasPrefix(list.Items[i].Name, fleetHost+"-") && released(&list.Items[i]) && told(&list.Items[i]) {
				open++
			}
		}
		if open < len(f.list) {
			return fmt.Errorf("it is on %d", open)
		}
		return nil
	})
	t.add(row{what: "  until all that follows is written too", median: ms(time.Since(signalled))})
	return err
}

// register makes the nodes, each by its own kubelet and held from birth, and the host.
func (f *agents) register(ctx context.Context) error {
	if err := f.stage.born(ctx, fleetHost); err != nil {
		return err
	}
	boot, err := os.ReadFile(filepath.Join(f.stage.Host(fleetHost), "proc/sys/kernel/random/boot_id"))
	if err != nil {
		return err
	}
	return f.each(ctx, func(i int) error {
		f.list[i] = &fleetAgent{name: fmt.Sprintf("%s-%d", fleetHost, i+1), opened: make(chan time.Time, 1)}
		_, _, err := f.stage.API.AddNode(ctx, testenv.NodeSpec{Name: f.list[i].name, InternalIP: "192.0.2.1", BootID: string(boot[:len(boot)-1])})
		return err
	})
}

// patchAll patches every node once, as fast as one client can.
func (f *agents) patchAll(ctx context.Context) error {
	var group errgroup.Group
	group.SetLimit(floodAtOnce)
	for _, a := range f.list {
		group.Go(func() error {
			_, err := f.stage.nodes.CoreV1().Nodes().Patch(ctx, a.name, types.MergePatchType,
				[]byte(`{"metadata":{"annotations":{"bench.holdfast.dev/patched":"true"}}}`), metav1.PatchOptions{})
			return err
		})
	}
	return group.Wait()
}

// start starts the watch of the host, and the agents.
func (f *agents) start(ctx context.Context, group *errgroup.Group) error {
	watched, err := host.New(host.Options{Root: f.stage.Host(fleetHost)})
	if err != nil {
		return err
	}
	group.Go(func() error { return watched.Watch(ctx, f.bells.ring) })
	return f.each(ctx, func(i int) error {
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

// each does something for every agent, for a few at a time.
func (f *agents) each(ctx context.Context, do func(i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(preparing)
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

func (f *agents) throttled() (answers int64) {
	for _, a := range f.list {
		answers += a.throttled.Load()
	}
	return answers
}
