package cli_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/internal/cli"
)

func serve(ctx context.Context, listener net.Listener, handler http.Handler, drain time.Duration) error {
	return cli.Serve(ctx, cli.NewServer(handler, slog.New(slog.DiscardHandler)), listener, drain)
}

// TestServe ends the context while a request is being answered.
func TestServe(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
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
	server.Go(func() error { return serve(ctx, listener, handler, time.Minute) })
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
	require.ErrorIs(t, server.Wait(), context.Canceled)
}

func TestServeDrainTimeout(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	began := make(chan struct{})
	handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { close(began); <-r.Context().Done() })
	var server, client errgroup.Group
	server.Go(func() error { return serve(ctx, listener, handler, time.Millisecond) })
	client.Go(func() error {
		response, err := http.Get("http://" + listener.Addr().String())
		if err == nil {
			err = response.Body.Close()
		}
		return err
	})
	<-began
	cancel()
	require.Error(t, client.Wait())
	require.ErrorIs(t, server.Wait(), context.DeadlineExceeded)
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
