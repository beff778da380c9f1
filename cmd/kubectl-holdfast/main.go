// Command kubectl-holdfast is a plugin of kubectl: `kubectl holdfast`. It shows what Holdfast
// knows, asks the webhook whether nodes may go, and does what operators otherwise do with patches.
// See `kubectl holdfast --help`.
package main

import (
	"context"
	"io"
	"os"

	"github.com/holdfast-dev/holdfast/internal/operator/cli"
	"github.com/holdfast-dev/holdfast/internal/operator/plugin"
)

// version is set by the linker.
var version string

func main() { os.Exit(cli.Run(execute)) }

// execute runs one command line and returns the exit code.
func execute(ctx context.Context, args []string, out, errOut io.Writer) int {
	return plugin.Execute(ctx, plugin.Streams{In: os.Stdin, Out: out, ErrOut: errOut}, cli.Version(version), args)
}
