// The bench measures what Holdfast promises about speed, on the real parts: a kube-apiserver with the shipped manifests, etcd
// with TLS, the built agents and webhooks. Every ratio is made from two measurements of one run, so that it says as much on
// a slow machine as on a fast one.
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
)

func main() {
	only := flag.String("only", "", "measure these alone, comma-separated: "+strings.Join(names(), ", "))
	strict := flag.Bool("strict", false, "fail if a target was missed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *only, *strict, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		stop()
		os.Exit(1)
	}
}

// measurement is one thing to measure.
type measurement struct {
	name string
	// members is how many members the etcd has that it needs, one to a node; 0 means that a cluster without etcd nodes
	// will do, alone that it needs none at all.
	members int
	measure func(context.Context, *stage, *table) error
}

// alone is the number of members of a measurement that needs no cluster.
const alone = -1

// measurements are in the order of their stages, since a stage takes half a minute to set up.
func measurements() []measurement {
	return []measurement{
		{"look", alone, look},
		{"release", 0, release},
		{"memory", 0, memory},
		{"fleet", 0, fleet},
		{"idle", 3, idle},
		{"ordinary", 3, ordinary},
		{"flood", 3, flood},
		{"verdict", 3, verdict},
		{"hung", 3, hung},
		{"seven", 7, verdict},
		{"burst", 7, burst},
	}
}

func names() []string {
	var all []string
	for _, m := range measurements() {
		all = append(all, m.name)
	}
	return all
}

// run measures what was asked for and prints the table.
func run(ctx context.Context, only string, strict bool, out io.Writer) error {
	wanted := strings.FieldsFunc(only, func(r rune) bool { return r == ',' || r == ' ' })
	for _, name := range wanted {
		if !slices.Contains(names(), name) {
			return fmt.Errorf("there is no measurement %q, only %s", name, strings.Join(names(), ", "))
		}
	}
	t := &table{out: out}
	if err := measureAll(ctx, wanted, t); err != nil {
		if ctx.Err() != nil {
			return errors.New("interrupted; everything that was started has been stopped")
		}
		return err
	}
	if missed := t.print(); missed > 0 && strict {
		return fmt.Errorf("%d targets were missed", missed)
	}
	return nil
}

func measureAll(ctx context.Context, wanted []string, t *table) (err error) {
	var s *stage
	defer func() {
		if s != nil {
			err = errors.Join(err, s.Close(context.WithoutCancel(ctx), err == nil))
		}
	}()
	for _, m := range measurements() {
		if len(wanted) > 0 && !slices.Contains(wanted, m.name) {
			continue
		}
		if m.members != alone && (s == nil || s.members != m.members) {
			if s != nil {
				old := s
				s = nil
				if err := old.Close(ctx, true); err != nil {
					return err
				}
			}
			if s, err = newStage(ctx, m.members, t); err != nil {
				return err
			}
		}
		t.note("measuring %s", m.name)
		if err := m.measure(ctx, s, t); err != nil {
			return fmt.Errorf("measuring %s: %w", m.name, err)
		}
	}
	return nil
}
