// The demo shows the main features of Holdfast on real servers: a kube-apiserver, an etcd
// cluster of three members outside Kubernetes, the agent on each node and two replicas of the
// webhook. It needs no Docker and no root, and stops every process that it started.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-dev/holdfast/internal/testenv/hostnet"
)

func main() {
	keep := flag.Bool("keep", false, "after the last step, keep everything running until Ctrl-C")
	verbose := flag.Bool("v", false, "print each command with its output")
	record := flag.String("record", "", "write the metrics of all programs, compressed, into this file")
	flag.Parse()
	if !*keep { // the commands to try then reach the servers from another terminal
		if status, done := hostnet.Isolate(); done {
			os.Exit(status)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, *keep, *verbose, *record); err != nil {
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		stop()
		os.Exit(1)
	}
}

// run runs all steps and returns an error if a step was not as expected.
func run(ctx context.Context, out io.Writer, keep, verbose bool, record string) (err error) {
	begun := time.Now()
	d, err := newDemo(out, verbose, record != "")
	if err != nil {
		return err
	}
	stopRecording, err := d.startRecording(ctx, record)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, stopRecording())
		err = errors.Join(err, d.close(context.WithoutCancel(ctx), err == nil))
	}()
	sections := []func(context.Context) error{
		d.startCluster, d.install, d.explainProtection, d.identifyMachines, d.deleteWorker,
		d.deleteLearner, d.deleteEtcdNodes, d.holdNewNode,
	}
	if record != "" {
		sections = append(sections, d.causeSeries)
	}
	for _, section := range sections {
		if err := section(ctx); err != nil {
			if ctx.Err() != nil {
				return errors.New("interrupted; all processes have been stopped")
			}
			d.printDetails()
			return err
		}
	}
	err = d.summarize(time.Since(begun))
	if keep {
		d.waitForInterrupt(ctx)
	} else {
		d.printNextSteps()
	}
	return err
}

// A stepPrinter prints one line for each step that is as expected. It prints the details of a
// step, which are commands with their output, only if the step failed or verbose is set.
type stepPrinter struct {
	out           io.Writer
	verbose       bool
	steps, passed int
	details       strings.Builder
}

// section prints a heading.
func (p *stepPrinter) section(title string) {
	fmt.Fprintf(p.out, "\n%s\n", title)
}

// note prints what the demo does.
func (p *stepPrinter) note(format string, args ...any) {
	fmt.Fprintf(p.out, "        %s\n", fmt.Sprintf(format, args...))
}

// show adds a command and its output to the details of the next step.
func (p *stepPrinter) show(command, output string) {
	fmt.Fprintf(&p.details, "\n        $ %s\n", command)
	for line := range strings.Lines(strings.TrimRight(output, "\n")) {
		fmt.Fprintf(&p.details, "        | %s\n", strings.TrimRight(line, "\n"))
	}
	if p.verbose {
		p.printDetails()
	}
}

// step prints whether a step was as expected.
func (p *stepPrinter) step(ok bool, expected, got string) {
	p.steps++
	if ok {
		p.passed++
		p.details.Reset()
		fmt.Fprintf(p.out, "  ok    %s\n", expected)
		return
	}
	fmt.Fprintf(p.out, "  FAIL  %s\n        got: %s\n", expected, got)
	p.printDetails()
}

// printDetails prints the commands since the last step.
func (p *stepPrinter) printDetails() {
	fmt.Fprint(p.out, p.details.String())
	p.details.Reset()
}

// summarize prints the result, and returns an error if a step failed.
func (p *stepPrinter) summarize(took time.Duration) error {
	fmt.Fprintf(p.out, "\ndemo: %d of %d steps as expected, %s\n", p.passed, p.steps, took.Round(time.Second))
	if p.passed != p.steps {
		return fmt.Errorf("%d steps were not as expected; see the lines marked FAIL", p.steps-p.passed)
	}
	return nil
}

// excerpt returns the lines that contain one of the words.
func excerpt(text string, words ...string) string {
	var kept strings.Builder
	for line := range strings.Lines(text) {
		for _, word := range words {
			if strings.Contains(line, word) {
				kept.WriteString(line)
				break
			}
		}
	}
	return kept.String()
}

// requireContains returns an error if text does not contain words.
func requireContains(text, words string) error {
	if strings.Contains(text, words) {
		return nil
	}
	return fmt.Errorf("%q is not in %q", words, firstLine(text))
}

// firstLine returns the first line of text, cut to a length that fits a terminal.
func firstLine(text string) string {
	first, rest, _ := strings.Cut(strings.TrimSpace(text), "\n")
	const maxLength = 160
	if len(first) > maxLength {
		first = first[:maxLength] + "…"
	}
	if rest != "" {
		first += " […]"
	}
	return first
}

// countCordoned describes how many nodes of a table are cordoned.
func countCordoned(nodes string) string {
	return fmt.Sprintf("%d cordoned", strings.Count(nodes, "SchedulingDisabled"))
}
