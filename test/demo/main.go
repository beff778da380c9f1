// The demo runs Holdfast's main job on real parts and tells it as it happens: a real kube-apiserver, a real etcd of three
// members outside it, the built agent once per node and the built webhook twice. It needs no Docker and no root, and
// leaves no process behind.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Stdout)
	if err != nil {
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		stop()
		os.Exit(1)
	}
}

// run tells the story and returns an error if anything in it was not as expected.
func run(ctx context.Context, out io.Writer) (err error) {
	s := &story{out: out}
	w, err := newWorld(out)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, w.close(context.WithoutCancel(ctx), err == nil))
	}()
	for _, scene := range []func(context.Context, *world, *story) error{
		clusterBefore, install, protected, machines, ordinary, learner, deletions, newNode,
	} {
		if err := scene(ctx, w, s); err != nil {
			if ctx.Err() != nil {
				return errors.New("interrupted; everything that was started is being stopped")
			}
			return err
		}
	}
	return s.end()
}
