package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// table collects the results.
type table struct {
	out  io.Writer
	rows []row
}

// row is one line. Without a target it is for information.
type row struct {
	what, median, p99, ratio, target string
	missed                           bool
}

// note tells what is being done.
func (t *table) note(format string, args ...any) { fmt.Fprintf(t.out, "… "+format+"\n", args...) }

// add puts a line into the table and shows it at once.
func (t *table) add(r row) {
	t.rows = append(t.rows, r)
	fmt.Fprintf(t.out, "  %s: %s %s %s %s\n", r.what, r.median, r.p99, r.ratio, r.outcome())
}

func (r row) outcome() string {
	switch {
	case r.target == "":
		return ""
	case r.missed:
		return "MISSED"
	}
	return "ok"
}

// print prints all lines, and returns how many targets were missed.
func (t *table) print() int {
	missed := 0
	w := tabwriter.NewWriter(t.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nwhat\tmedian\tp99\tratio\ttarget\t")
	for _, r := range t.rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", r.what, r.median, r.p99, r.ratio, r.target, r.outcome())
		if r.missed {
			missed++
		}
	}
	_ = w.Flush() // to a terminal or a buffer: nobody could be told
	return missed
}

// times are how long the same thing took, again and again.
type times []time.Duration

// quantile returns the least time that a share of all does not exceed.
func (d times) quantile(share float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(d))
	return sorted[min(len(sorted)-1, int(share*float64(len(sorted))))]
}

func (d times) median() time.Duration { return d.quantile(0.5) }
func (d times) p99() time.Duration    { return d.quantile(0.99) }

// row is a line about these times.
func (d times) row(what string) row {
	return row{what: fmt.Sprintf("%s (n=%d)", what, len(d)), median: ms(d.median()), p99: ms(d.p99())}
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }
