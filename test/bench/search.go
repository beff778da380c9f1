package main

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
)

// measureSearch measures one search of a tree of files for data of etcd, and the same walk with
// filepath.WalkDir. FILES is the number of files.
func measureSearch(ctx context.Context, _ *benchCluster, t *resultTable) error {
	out, err := goBenchmark(ctx, "./internal/node/datasearch", "BenchmarkSearch", "3x")
	if err != nil {
		return err
	}
	found := map[string]searchCost{}
	for _, m := range regexp.MustCompile(`(?m)^BenchmarkSearch/(\S+?)-\d+\s+\d+\s+(\d+) ns/op\s+([0-9.]+) MB/op\s+`+
		`([0-9.]+) cpu-ms/op\s+(\d+) directories\s+([0-9.]+) peak-MiB`).FindAllStringSubmatch(out, -1) {
		var c searchCost
		c.nanoseconds, _ = strconv.ParseFloat(m[2], 64) // the pattern matches numbers only
		c.megabytes, _ = strconv.ParseFloat(m[3], 64)
		c.cpu, _ = strconv.ParseFloat(m[4], 64)
		c.directories, c.peak = m[5], m[6]
		found[m[1]] = c
	}
	for _, state := range []string{"cached", "cold"} {
		search, ok := found["search/"+state]
		walk, isThere := found["walkdir/"+state]
		if !ok || !isThere {
			continue // dropping the caches needs root
		}
		t.add(resultRow{
			what:   fmt.Sprintf("search of %s directories, %s, to WalkDir of %s", search.directories, state, walk.directories),
			median: fmt.Sprintf("%.0f ms, %.0f MB read", search.nanoseconds/1e6, search.megabytes),
			p99:    fmt.Sprintf("%.0f ms of CPU, %s MiB at most", search.cpu, search.peak),
		}.judged(search.nanoseconds/walk.nanoseconds, 1.5))
	}
	if len(found) == 0 {
		return fmt.Errorf("reading the benchmark of internal/node/datasearch: %q", out)
	}
	return nil
}

// searchCost is the cost of one search or walk.
type searchCost struct {
	nanoseconds, megabytes, cpu float64
	directories, peak           string
}
