// The demo runs Holdfast's main job on real parts and tells it as it happens: a real kube-apiserver, a real etcd of three
// members outside it, the built agent once per node and the built webhook twice. It needs no Docker and no root, and
// leaves no process behind.
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
)

func main() {
	keep := flag.Bool("keep", false, "after the story leave everything running until Ctrl-C, and say how to reach it")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *keep, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		stop()
		os.Exit(1)
	}
}

// run tells the story and returns an error if anything in it was not as expected.
func run(ctx context.Context, keep bool, out io.Writer) (err error) {
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
				return errors.New("interrupted; everything that was started has been stopped")
			}
			return err
		}
	}
	if keep {
		w.invite(ctx)
	}
	return s.end()
}
