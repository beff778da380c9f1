package main

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestHelp: the program describes itself, and ends.
func TestHelp(t *testing.T) {
	const child = "HOLDFAST_TEST_CHILD"
	if os.Getenv(child) != "" {
		os.Args = []string{"holdfast-guard", "--help"}
		main()
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestHelp$")
	command.Env = append(os.Environ(), child+"=1")
	out, err := command.CombinedOutput()
	require.NoError(t, err)
	require.Contains(t, string(out), "does nothing until SIGTERM")
}
