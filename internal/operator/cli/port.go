package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
)

// A Port is an address on which a program answers requests.
type Port struct {
	// Flag is the flag that sets the address. An empty address is no port.
	Flag, Address string
	Handler       http.Handler
	TLS           *tls.Config // nil for plain HTTP
	// Drain limits how long Serve waits for requests that are being answered.
	Drain time.Duration
	Log   *slog.Logger
}

// CheckAddress returns a usage error unless the value of a flag is an address with a port.
func CheckAddress(name, value, example string) error {
	if _, err := net.ResolveTCPAddr("tcp", value); err != nil || value == "" {
		return UsageErrorf("%s=%q is not an address with a port, such as %s", name, value, example)
	}
	return nil
}

// Run opens the port and answers requests until ctx ends.
func (p Port) Run(ctx context.Context) error {
	listener, err := p.Listen(ctx)
	if err != nil {
		return err
	}
	return p.Serve(ctx, listener)
}

// Listen opens the port.
func (p Port) Listen(ctx context.Context) (net.Listener, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", p.Address)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", p.Flag, err)
	}
	if p.TLS != nil {
		listener = tls.NewListener(listener, p.TLS)
	}
	return listener, nil
}

// Serve answers requests on a listener until ctx ends. It then takes no new request, and
// waits for the requests that are being answered, at most for the time Drain. Their
// contexts do not end with ctx.
func (p Port) Serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler: p.Handler,
		// The limits are for slow clients.
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       5 * time.Second,
		WriteTimeout:      20 * time.Second,
		// client-go closes idle connections after 90 s. A request that meets the server's own
		// close fails.
		IdleTimeout:    2 * time.Minute,
		MaxHeaderBytes: 64 << 10,
		ErrorLog:       slog.NewLogLogger(p.Log.Handler(), slog.LevelInfo),
	}
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serving on %s: %w", listener.Addr(), err)
		}
		return nil
	})
	group.Go(func() error {
		<-running.Done()
		budget, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.Drain)
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
