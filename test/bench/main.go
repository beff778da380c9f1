// The bench measures the speed of Holdfast on real servers: a kube-apiserver with the shipped
// manifests, etcd with TLS, and the built agents and webhooks. The targets are ratios, most of them
// to one bare patch of a Node, because absolute times differ threefold between machines. Both parts
// of a ratio are measured in turn in the same run, so that it is valid on slow and busy machines.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

func main() {
	only := flag.String("only", "",
		"comma-separated `names` of measurements, by default all: "+strings.Join(names(), ", "))
	strict := flag.Bool("strict", false, "exit with an error if a target is missed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *only, *strict, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		stop()
		os.Exit(1)
	}
}

// A measurement is one entry of the list of measurements.
type measurement struct {
	name string
	// members is the number of etcd members that the measurement needs, one per node. It is 0
	// for a cluster without etcd nodes, and noCluster if the measurement needs no cluster.
	members int
	// machines means that Holdfast runs with the components for Machines and NodeClaims.
	machines bool
	measure  func(context.Context, *benchCluster, *resultTable) error
}

// noCluster marks a measurement that needs no cluster.
const noCluster = -1

// measurements returns all measurements. Those with the same number of members are adjacent,
// because starting a cluster takes half a minute.
func measurements() []measurement {
	return []measurement{
		{name: "scan", members: noCluster, measure: measureScan},
		{name: "search", members: noCluster, measure: measureSearch},
		{name: "release", measure: measureRelease},
		{name: "memory", measure: measureMemory},
		{name: "fleet", measure: measureFleet},
		{name: "join", measure: measureJoin},
		{name: "rollout", measure: measureRollout},
		{name: "idle", members: 3, measure: measureIdle},
		{name: "ordinary", members: 3, measure: measureOrdinary},
		{name: "flood", members: 3, measure: measureFlood},
		{name: "verdict", members: 3, measure: measureVerdict},
		{name: "drain", members: 3, measure: measureDrain},
		{name: "hung", members: 3, measure: measureHung},
		{name: "scale", members: 5, machines: true, measure: measureScale},
		{name: "seven", members: 7, measure: measureVerdict},
		{name: "burst", members: 7, measure: measureBurst},
	}
}

func names() []string {
	var all []string
	for _, m := range measurements() {
		all = append(all, m.name)
	}
	return all
}

// run runs the selected measurements and prints the table.
func run(ctx context.Context, only string, strict bool, out io.Writer) error {
	wanted := strings.FieldsFunc(only, func(r rune) bool { return r == ',' || r == ' ' })
	for _, name := range wanted {
		if !slices.Contains(names(), name) {
			return fmt.Errorf("unknown measurement %q, want some of %s", name, strings.Join(names(), ", "))
		}
	}
	t := &resultTable{out: out}
	if err := measureAll(ctx, wanted, t); err != nil {
		if ctx.Err() != nil {
			return errors.New("interrupted; all processes have been stopped")
		}
		return err
	}
	if missed := t.print(); missed > 0 && strict {
		return fmt.Errorf("%d targets were missed", missed)
	}
	return nil
}

func measureAll(ctx context.Context, wanted []string, t *resultTable) (err error) {
	var b *benchCluster
	defer func() {
		if b != nil {
			err = errors.Join(err, b.Close(context.WithoutCancel(ctx), err == nil))
		}
	}()
	for _, m := range measurements() {
		if len(wanted) > 0 && !slices.Contains(wanted, m.name) {
			continue
		}
		if m.members != noCluster && (b == nil || b.members != m.members) {
			if b != nil {
				old := b
				b = nil
				if err := old.Close(ctx, true); err != nil {
					return err
				}
			}
			if b, err = newBenchCluster(ctx, m, t); err != nil {
				return err
			}
		}
		t.progress("measuring %s", m.name)
		if err := m.measure(ctx, b, t); err != nil {
			return fmt.Errorf("measuring %s: %w", m.name, err)
		}
	}
	return nil
}

// A table collects the results.
type resultTable struct {
	out  io.Writer
	rows []resultRow
}

// A row is one line of the table. It may have no ratio and no target.
type resultRow struct {
	what, median, p99, ratio, target string
	missed                           bool
}

// judged returns the row with a ratio and its limit.
func (r resultRow) judged(ratio, limit float64) resultRow {
	r.ratio, r.target, r.missed = fmt.Sprintf("×%.2f", ratio), fmt.Sprintf("≤ ×%g", limit), ratio > limit
	return r
}

// progress prints what the bench does.
func (t *resultTable) progress(format string, args ...any) {
	fmt.Fprintf(t.out, "… "+format+"\n", args...)
}

// add adds a row to the table and prints it.
func (t *resultTable) add(r resultRow) {
	t.rows = append(t.rows, r)
	fmt.Fprintf(t.out, "  %s: %s %s %s %s\n", r.what, r.ratio, r.outcome(), r.median, r.p99)
}

func (r resultRow) outcome() string {
	switch {
	case r.target == "":
		return ""
	case r.missed:
		return "MISSED"
	}
	return "ok"
}

// print prints all rows in at most 120 columns, the ratios first, and returns the number of missed
// targets.
func (t *resultTable) print() int {
	missed := 0
	w := tabwriter.NewWriter(t.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nratio\ttarget\t\twhat\tmedian\tp99")
	for _, r := range t.rows {
		writeCells(w, wrap(r.ratio, 15), wrap(r.target, 16), wrap(r.outcome(), 6), wrap(r.what, 43), wrap(r.median, 20),
			wrap(r.p99, 10))
		if r.missed {
			missed++
		}
	}
	_ = w.Flush() // a write error of a terminal or a buffer cannot be reported
	return missed
}

// writeCells writes a row of cells, each of several lines.
func writeCells(w io.Writer, cells ...[]string) {
	for line, isLast := 0, false; !isLast; line++ {
		isLast = true
		texts := make([]string, len(cells))
		for i, lines := range cells {
			if line < len(lines) {
				texts[i] = lines[line]
			}
			isLast = isLast && line >= len(lines)-1
		}
		fmt.Fprintln(w, strings.Join(texts, "\t"))
	}
}

// wrap breaks a text between words into lines of at most so many columns, if its words allow it.
func wrap(text string, columns int) []string {
	var lines []string
	for _, word := range strings.Fields(text) {
		last := len(lines) - 1
		if last >= 0 && len([]rune(lines[last]))+1+len([]rune(word)) <= columns {
			lines[last] += " " + word
			continue
		}
		lines = append(lines, word)
	}
	return lines
}

// durations are the durations of repeated operations.
type durations []time.Duration

// quantile returns the duration that the given share of the operations does not exceed.
func (d durations) quantile(share float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(d))
	return sorted[min(len(sorted)-1, int(share*float64(len(sorted))))]
}

func (d durations) median() time.Duration { return d.quantile(0.5) }
func (d durations) p99() time.Duration    { return d.quantile(0.99) }

// row returns a row with the median and the 99th percentile.
func (d durations) row(what string) resultRow {
	return resultRow{what: fmt.Sprintf("%s (n=%d)", what, len(d)), median: ms(d.median()), p99: ms(d.p99())}
}

// ratioTo returns the ratio of the medians.
func (d durations) ratioTo(base durations) float64 {
	return float64(d.median()) / float64(base.median())
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }
