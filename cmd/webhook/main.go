// Command webhook is Holdfast's part beside the API server: it judges deletions of Nodes in every replica, and in the
// one that leads it settles what was allowed and publishes the SPC inventory. `holdfast-webhook --help` says the rest.
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

	// The image holds this program and nothing else: these are the authorities by which it knows the SPC API, where the
	// system has none.
	_ "golang.org/x/crypto/x509roots/fallback"

	"github.com/holdfast-dev/holdfast/internal/buildinfo"
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
	cfg, err := parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(out, usage())
		return 0
	case err == nil && cfg.version:
		fmt.Fprintln(out, "holdfast webhook "+buildinfo.Version(version))
		return 0
	case err == nil:
		err = run(ctx, cfg, errOut)
	}
	var misuse usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &misuse):
		fmt.Fprintf(errOut, "webhook: %v\nRun `holdfast-webhook --help` to see what can be said.\n", err)
		return 2
	}
	fmt.Fprintf(errOut, "webhook: %v\n", err)
	return 1
}

// version is that of the images, with the commit; the Makefile has the linker write it. Any other build knows what the Go
// toolchain recorded.
var version string
