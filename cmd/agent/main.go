// Command agent is Holdfast's part on every node: it protects the node while it holds etcd, holds it until its network
// works, and labels it with its SPC record. `holdfast-agent --help` says the rest.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"k8s.io/klog/v2"

	"github.com/holdfast-dev/holdfast/internal/buildinfo"
)

// usageError is a mistake on the command line: what was given, and what to give instead.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

func misused(format string, args ...any) error { return usageError{fmt.Sprintf(format, args...)} }

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code := program{out: os.Stdout, errOut: os.Stderr, bridge: klog.SetSlogLogger}.command(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// gcPercent is half of Go's own: an agent keeps little and makes little garbage, so that a smaller heap costs it nothing.
const gcPercent = 50

// program is what a command line runs in.
type program struct {
	out, errOut io.Writer
	// bridge makes the libraries that log through klog log through this logger. They have one for the whole process,
	// which is therefore main's to set.
	bridge func(*slog.Logger)
}

// command runs one command line and returns its exit status: 0 for success, 1 for failure, 2 for a mistake in the line.
func (p program) command(ctx context.Context, args []string) int {
	err := p.dispatch(ctx, args)
	var misuse usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &misuse):
		fmt.Fprintf(p.errOut, "agent: %v\nRun `holdfast-agent --help` to see what can be said.\n", err)
		return 2
	}
	fmt.Fprintf(p.errOut, "agent: %v\n", err)
	return 1
}

func (p program) dispatch(ctx context.Context, args []string) error {
	if len(args) == 0 {
		fmt.Fprint(p.errOut, usage())
		return misused("say what to do: run, inspect or version")
	}
	name, rest := args[0], args[1:]
	switch name {
	case "run":
		cfg, err := parse(rest)
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprint(p.out, usage())
			return nil
		}
		if err != nil {
			return err
		}
		log := logger(cfg, p.errOut).With("node", cfg.node)
		p.bridge(log.With("library", "client-go"))
		return run(ctx, cfg, log)
	case "inspect":
		return inspect(ctx, rest, p.out, p.errOut)
	case "version", "--version", "-version":
		fmt.Fprintln(p.out, "holdfast agent "+buildinfo.Version(version))
		return nil
	case "help", "--help", "-help", "-h":
		fmt.Fprint(p.out, usage())
		return nil
	}
	return misused("there is no command %q; say run, inspect or version", name)
}

// version is that of the images, with the commit; the Makefile has the linker write it. Any other build knows what the Go
// toolchain recorded.
var version string
