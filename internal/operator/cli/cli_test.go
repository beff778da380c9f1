package cli_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/internal/operator/cli"
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
			require.Equal(t, test.code, cli.ReportError(&output, "agent", "agent --help", test.err))
			require.Equal(t, test.output, output.String())
		})
	}
}

func TestParseFlags(t *testing.T) {
	step := func(refused string) func(*string) error {
		return func(value *string) error {
			if *value == refused {
				return errors.New("not " + refused)
			}
			return nil
		}
	}
	for name, test := range map[string]struct {
		args []string
		err  string
	}{
		"valid":        {[]string{"--name=x"}, ""},
		"unknown flag": {[]string{"--nam=x"}, "flag provided but not defined: -nam"},
		"argument":     {[]string{"x"}, `unexpected argument "x"; agent run has flags only, such as --name=NAME`},
		"first step":   {[]string{"--name=y"}, "not y"},
		"second step":  {[]string{"--name=z"}, "not z"},
		"help":         {[]string{"--help"}, flag.ErrHelp.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			set := cli.NewFlagSet("agent run")
			var value string
			set.StringVar(&value, "name", "", "")
			err := cli.ParseFlags(set, test.args, "--name=NAME", &value, step("y"), step("z"))
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
			require.NoError(t, cli.ParseFlags(set, test.args, "", &flags))
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

// TestServe ends the context while a request is being answered, which the server waits for or not.
func TestServe(t *testing.T) {
	for drain, want := range map[time.Duration]error{
		time.Minute: context.Canceled, time.Millisecond: context.DeadlineExceeded,
	} {
		t.Run(drain.String(), func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			began, finish := make(chan struct{}), make(chan struct{})
			handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				close(began)
				select {
				case <-finish:
				case <-r.Context().Done():
					http.Error(w, "cut off", http.StatusInternalServerError)
				}
			})
			var server, client errgroup.Group
			server.Go(func() error {
				return cli.Port{Handler: handler, Drain: drain, Log: slog.New(slog.DiscardHandler)}.Serve(ctx, listener)
			})
			client.Go(func() error {
				response, err := http.Get("http://" + listener.Addr().String())
				if err != nil {
					return err
				}
				if response.StatusCode != http.StatusOK {
					return errors.New(response.Status)
				}
				return response.Body.Close()
			})
			<-began
			cancel()
			if drain == time.Millisecond {
				require.Error(t, client.Wait())
				require.ErrorIs(t, server.Wait(), want)
				return
			}
			require.Eventually(t, func() bool {
				conn, err := net.DialTimeout("tcp", listener.Addr().String(), time.Second)
				if err != nil {
					return true
				}
				require.NoError(t, conn.Close())
				return false
			}, 30*time.Second, 10*time.Millisecond, "the server still takes requests")
			close(finish)
			require.NoError(t, client.Wait())
			require.ErrorIs(t, server.Wait(), want)
		})
	}
}

func TestCheckHandler(t *testing.T) {
	for _, test := range []struct {
		err    error
		status int
		body   string
	}{
		{nil, http.StatusOK, "ok\n"},
		{errors.New("not yet"), http.StatusServiceUnavailable, "not yet\n"},
	} {
		recorder := httptest.NewRecorder()
		cli.CheckHandler(func() error { return test.err })(recorder, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
		body, err := io.ReadAll(recorder.Body)
		require.NoError(t, err)
		require.Equal(t, test.status, recorder.Code)
		require.Equal(t, test.body, string(body))
	}
}
