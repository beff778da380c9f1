package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	ordinaryPairs = 1000
	realPairs     = 200
	floodSize     = 1000
	floodAtOnce   = 64
	// ordinaryRatio limits the 99th percentile, as a multiple of that of an empty webhook.
	ordinaryRatio = 1.5
)

// measureOrdinary compares deletions of nodes without etcd with deletions that an empty webhook
// reviews, alternately. It measures dry runs, which take the same path through the API server
// and both webhooks except for the write to etcd, and real deletions.
func measureOrdinary(ctx context.Context, b *benchCluster, t *resultTable) error {
	for _, kind := range []struct {
		what   string
		dryRun bool
		pairs  int
	}{
		{"dry run", true, ordinaryPairs}, {"real", false, realPairs},
	} {
		count := 1
		if !kind.dryRun {
			count = kind.pairs
		}
		judged, err := b.createWorkers(ctx, "worker-judged", count, nil)
		if err != nil {
			return err
		}
		empty, err := b.createWorkers(ctx, "worker-empty", count, map[string]string{emptyLabel: "true"})
		if err != nil {
			return err
		}
		var with, without durations
		for i := range kind.pairs {
			for _, one := range []struct {
				name  string
				taken *durations
			}{{judged[i%count], &with}, {empty[i%count], &without}} {
				took, err := b.delete(ctx, one.name, kind.dryRun)
				if err != nil {
					return fmt.Errorf("deleting node %s: %w", one.name, err)
				}
				*one.taken = append(*one.taken, took)
			}
		}
		t.add(without.row("deletion reviewed by an empty webhook, " + kind.what))
		r, ratio := with.row("deletion of a node without etcd, "+kind.what), float64(with.p99())/float64(without.p99())
		r.ratio = fmt.Sprintf("p99 ×%.2f (median ×%.2f)", ratio, float64(with.median())/float64(without.median()))
		r.target, r.missed = "p99 ≤ ×1.5", ratio > ordinaryRatio
		t.add(r)
		if kind.dryRun {
			if err := b.deleteAll(ctx, append(judged, empty...)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *benchCluster) deleteAll(ctx context.Context, names []string) error {
	for _, name := range names {
		if _, err := b.delete(ctx, name, false); err != nil {
			return fmt.Errorf("deleting node %s: %w", name, err)
		}
	}
	return nil
}

// measureFlood deletes 1,000 nodes without etcd, 64 at a time.
func measureFlood(ctx context.Context, b *benchCluster, t *resultTable) error {
	t.progress("creating %d nodes", floodSize)
	names, err := b.createWorkers(ctx, "worker-flood", floodSize, nil)
	if err != nil {
		return err
	}
	taken, failed := make(durations, len(names)), make([]error, len(names))
	var clients errgroup.Group
	clients.SetLimit(floodAtOnce)
	begun := time.Now()
	for i, name := range names {
		clients.Go(func() error {
			taken[i], failed[i] = b.delete(ctx, name, false)
			return nil
		})
	}
	_ = clients.Wait() // the functions return no error
	rate := float64(len(names)) / time.Since(begun).Seconds()
	errs := 0
	for i, err := range failed {
		if err != nil {
			errs++
			t.progress("deleting node %s: %v", names[i], err)
		}
	}
	r := taken.row(fmt.Sprintf("%d deletions of nodes without etcd, %d at a time, %.0f per second",
		floodSize, floodAtOnce, rate))
	r.ratio, r.target, r.missed = fmt.Sprintf("%d errors", errs), "0 errors", errs > 0
	t.add(r)
	return nil
}
