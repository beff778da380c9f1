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
)

// ordinary compares deletions of nodes without etcd with those that an empty webhook answers, in turn. A dry run takes the
// same way through the API server and both webhooks, up to the write to etcd; real deletions are measured too.
func ordinary(ctx context.Context, s *stage, t *table) error {
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
		judged, err := s.workers(ctx, "worker-judged", count, nil)
		if err != nil {
			return err
		}
		empty, err := s.workers(ctx, "worker-empty", count, map[string]string{emptyLabel: "true"})
		if err != nil {
			return err
		}
		var with, without times
		for i := range kind.pairs {
			for _, one := range []struct {
				name  string
				taken *times
			}{{judged[i%count], &with}, {empty[i%count], &without}} {
				took, err := s.delete(ctx, one.name, kind.dryRun)
				if err != nil {
					return fmt.Errorf("deleting node %s: %w", one.name, err)
				}
				*one.taken = append(*one.taken, took)
			}
		}
		t.add(without.row("deletion answered by an empty webhook, " + kind.what))
		r, ratio := with.row("deletion of a node without etcd, "+kind.what), float64(with.p99())/float64(without.p99())
		r.ratio = fmt.Sprintf("p99 ×%.2f (median ×%.2f)", ratio, float64(with.median())/float64(without.median()))
		r.target, r.missed = "p99 ≤ ×2", ratio > 2
		t.add(r)
		if kind.dryRun {
			if err := s.clear(ctx, append(judged, empty...)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *stage) clear(ctx context.Context, names []string) error {
	for _, name := range names {
		if _, err := s.delete(ctx, name, false); err != nil {
			return fmt.Errorf("deleting node %s: %w", name, err)
		}
	}
	return nil
}

// flood deletes a thousand nodes without etcd, 64 at once.
func flood(ctx context.Context, s *stage, t *table) error {
	t.note("creating %d nodes", floodSize)
	names, err := s.workers(ctx, "worker-flood", floodSize, nil)
	if err != nil {
		return err
	}
	taken, failed := make(times, len(names)), make([]error, len(names))
	var clients errgroup.Group
	clients.SetLimit(floodAtOnce)
	begun := time.Now()
	for i, name := range names {
		clients.Go(func() error {
			taken[i], failed[i] = s.delete(ctx, name, false)
			return nil
		})
	}
	_ = clients.Wait() // nothing above returns an error
	rate := float64(len(names)) / time.Since(begun).Seconds()
	errs := 0
	for i, err := range failed {
		if err != nil {
			errs++
			t.note("deleting node %s: %v", names[i], err)
		}
	}
	r := taken.row(fmt.Sprintf("%d deletions of nodes without etcd, %d at once, %.0f a second", floodSize, floodAtOnce, rate))
	r.ratio, r.target, r.missed = fmt.Sprintf("%d errors", errs), "0 errors", errs > 0
	t.add(r)
	return nil
}
