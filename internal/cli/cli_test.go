package cli_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/cli"
)

func TestExitCode(t *testing.T) {
	for name, test := range map[string]struct {
		err    error
		code   int
		output string
	}{
		"success":   {nil, 0, ""},
		"exit code": {cli.ExitWith(10), 10, ""},
		"failure":   {errors.New("no such host"), 1, "agent: no such host\n"},
		"usage error": {
			cli.UsageErrorf("--tick=%s is bad", "x"),
			2,
			"agent: --tick=x is bad\nRun `agent --help` for usage.\n",
		},
		"wrapped": {
			fmt.Errorf("flags: %w", cli.UsageErrorf("bad")),
			2,
			"agent: flags: bad\nRun `agent --help` for usage.\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var output bytes.Buffer
			require.Equal(t, test.code, cli.ExitCode(&output, "agent", "agent --help", test.err))
			require.Equal(t, test.output, output.String())
		})
	}
}

func TestParseFlags(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		err  string
	}{
		"valid":        {[]string{"--name=x"}, ""},
		"unknown flag": {[]string{"--nam=x"}, "flag provided but not defined: -nam"},
		"argument":     {[]string{"x"}, `unexpected argument "x"; agent run has flags only, such as --name=NAME`},
		"help":         {[]string{"--help"}, flag.ErrHelp.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			set := cli.NewFlagSet("agent run")
			set.String("name", "", "")
			err := cli.ParseFlags(set, test.args, "--name=NAME")
			if test.err == "" {
				require.NoError(t, err)
				return
			}
			require.EqualError(t, err, test.err)
			require.Equal(t, name == "help", errors.Is(err, flag.ErrHelp))
		})
	}
}

func TestLogFlags(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want cli.LogOptions
		err  string
	}{
		"defaults":       {nil, cli.LogOptions{Level: slog.LevelInfo, JSON: true}, ""},
		"text":           {[]string{"--log-level=debug", "--log-format=text"}, cli.LogOptions{Level: slog.LevelDebug}, ""},
		"unknown level":  {[]string{"--log-level=loud"}, cli.LogOptions{}, "debug, info, warn or error"},
		"unknown format": {[]string{"--log-format=xml"}, cli.LogOptions{}, "json or text"},
	} {
		t.Run(name, func(t *testing.T) {
			var flags cli.LogFlags
			set := cli.NewFlagSet("agent")
			flags.AddTo(set)
			require.NoError(t, cli.ParseFlags(set, test.args, ""))
			got, err := flags.Options()
			if test.err != "" {
				require.ErrorContains(t, err, test.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.want, got)
			var output bytes.Buffer
			got.NewLogger(&output).Info("agent starting")
			require.Equal(t, got.JSON, strings.HasPrefix(output.String(), "{"), output.String())
		})
	}
}

func TestVersion(t *testing.T) {
	require.Equal(t, "v1.0.0+abc "+runtime.Version(), cli.Version("v1.0.0+abc"))
	require.Contains(t, cli.Version(""), runtime.Version())
}
