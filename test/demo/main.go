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
