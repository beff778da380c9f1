package cli_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/operator/cli"
)

// TestClosedPipe: a command whose output is not read any more, as with `| head`, ends by itself.
// Otherwise break-glass would leave the webhook stopped.
func TestClosedPipe(t *testing.T) {
	const child = "HOLDFAST_TEST_CHILD"
	if os.Getenv(child) != "" {
		os.Exit(cli.Run(func(_ context.Context, _ []string, out, _ io.Writer) int {
			if _, err := fmt.Fprintln(out, "a line"); err == nil {
				return 1
			}
			return 7
		}))
	}
	reader, writer, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, reader.Close())
	defer func() { require.NoError(t, writer.Close()) }()
	command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestClosedPipe$")
	command.Env, command.Stdout = append(os.Environ(), child+"=1"), writer
	require.EqualError(t, command.Run(), "exit status 7")
}
