// Command agent is Holdfast's part on every node: it protects the node while it holds etcd, holds it until its network
// works, and labels it with its SPC record. `agent --help` says the rest.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
)

// usageError is a mistake on the command line: what was given, and what to give instead.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

func misused(format string, args ...any) error { return usageError{fmt.Sprintf(format, args...)} }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// command runs one command line and returns its exit status: 0 for success, 1 for failure, 2 for a mistake in the line.
func command(ctx context.Context, args []string, out, errOut io.Writer) int {
	err := dispatch(ctx, args, out, errOut)
	var misuse usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &misuse):
		fmt.Fprintf(errOut, "agent: %v\nRun `agent --help` to see what can be said.\n", err)
		return 2
	}
	fmt.Fprintf(errOut, "agent: %v\n", err)
	return 1
}

func dispatch(ctx context.Context, args []string, out, errOut io.Writer) error {
	if len(args) == 0 {
		fmt.Fprint(errOut, usage())
		return misused("say what to do: run, inspect or version")
	}
	name, rest := args[0], args[1:]
	switch name {
	case "run":
		cfg, err := parse(rest)
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprint(out, usage())
			return nil
		}
		if err != nil {
			return err
		}
		return run(ctx, cfg, errOut)
	case "inspect":
		return inspect(ctx, rest, out, errOut)
	case "version", "--version", "-version":
		fmt.Fprintln(out, "holdfast agent "+version())
		return nil
	case "help", "--help", "-help", "-h":
		fmt.Fprint(out, usage())
		return nil
	}
	return misused("there is no command %q; say run, inspect or version", name)
}

// version is what the Go toolchain recorded of the build.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	revision, modified := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = " " + s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = " with changes"
		}
	}
	return info.Main.Version + revision + modified + " " + info.GoVersion
}
