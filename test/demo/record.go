package main

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/holdfast-dev/holdfast/test/fixture"
)

// recordEvery is the time between two scrapes.
const recordEvery = 2 * time.Second

// startRecording records the metrics of all programs into a file, until the function that it
// returns is called. Without a file name it does nothing.
func (d *demo) startRecording(ctx context.Context, name string) (stop func() error, err error) {
	if name == "" {
		return func() error { return nil }, nil
	}
	file, err := os.Create(name)
	if err != nil {
		return nil, fmt.Errorf("creating the file for the metrics: %w", err)
	}
	recording, cancel := context.WithCancel(ctx)
	out, ended := gzip.NewWriter(file), make(chan error, 1)
	go func() { ended <- d.RecordMetrics(recording, out, recordEvery) }()
	return func() error {
		cancel()
		return errors.Join(<-ended, out.Close(), file.Close())
	}, nil
}

// causeSeries causes what the demo is too short for, so that the recorded metrics show it: a held
// node, an agent that does not answer, and an etcd member that fails.
func (d *demo) causeSeries(ctx context.Context) error {
	d.section("Record the metrics")
	// The leader probes every 15 to 30 s.
	const node, short, long = "worker-3", 20 * time.Second, 40 * time.Second
	agent, member := d.Agent("etcd-3"), d.etcd.Member(3)
	for _, event := range []struct {
		what  string
		after time.Duration
		do    func() error
	}{
		{"worker-3 joins without a network", short, func() error {
			_, err := d.RegisterNode(ctx, node, thirdWorkerIP, false)
			return errors.Join(err, d.StartAgent(ctx, node))
		}},
		{"the network of worker-3 works", short, func() error {
			return errors.Join(d.setPodCIDR(ctx, node, secondWorkerCIDR), d.WriteCNI(node), d.WriteSubnetFile(node))
		}},
		{"the agent of etcd-3 hangs", long, agent.Pause},
		{"the agent of etcd-3 runs again", short, agent.Resume},
		{"etcd on etcd-3 fails", long, member.Kill},
		{"etcd on etcd-3 runs again", long, func() error { return member.Start(ctx) }},
	} {
		if err := errors.Join(event.do(), fixture.Wait(ctx, event.after)); err != nil {
			return fmt.Errorf("%s: %w", event.what, err)
		}
		d.note("%s", event.what)
	}
	return nil
}
