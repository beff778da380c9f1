package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
)

// NewServer returns a server with time limits for slow clients.
func NewServer(handler http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       5 * time.Second,
		WriteTimeout:      20 * time.Second,
		// client-go closes idle connections after 90 s. A request that meets the server's own
		// close fails.
		IdleTimeout:    2 * time.Minute,
		MaxHeaderBytes: 64 << 10,
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelInfo),
	}
}

// Serve answers requests on a listener until ctx ends. It then takes no new request, and
// waits for the requests that are being answered, at most for the time drain. Their
// contexts do not end with ctx.
func Serve(ctx context.Context, server *http.Server, listener net.Listener, drain time.Duration) error {
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serving on %s: %w", listener.Addr(), err)
		}
		return nil
	})
	group.Go(func() error {
		<-running.Done()
		budget, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
		defer cancel()
		if err := server.Shutdown(budget); err != nil {
			return fmt.Errorf("waiting for requests on %s: %w", listener.Addr(), errors.Join(err, server.Close()))
		}
		return context.Cause(running)
	})
	return group.Wait()
}

// CheckHandler answers ok, or status 503 with the error of the check.
func CheckHandler(check func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if err := check(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	}
}
