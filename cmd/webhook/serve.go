package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
)

// shutdownBudget is how long answers that are under way may take when the webhook ends: reviews have 8 s.
const shutdownBudget = 9 * time.Second

// serve answers on the listener until ctx ends, and then until what is under way has been answered. The requests'
// contexts do not end with ctx, so that a review is not cut off.
func serve(ctx context.Context, listener net.Listener, handler http.Handler, log *slog.Logger) error {
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      20 * time.Second,
		IdleTimeout:       90 * time.Second,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelInfo),
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
		budget, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownBudget)
		defer cancel()
		if err := server.Shutdown(budget); err != nil {
			return fmt.Errorf("waiting for the last answers on %s: %w", listener.Addr(), errors.Join(err, server.Close()))
		}
		return context.Cause(running)
	})
	return group.Wait()
}

// tlsConfig serves the certificate and, if it was asked to, demands one of the API server.
//
// It speaks HTTP/1.1 only: over HTTP/2 an API server would send all its reviews through one connection to one replica,
// and go on sending them into it for most of a minute after that replica's machine has died.
func tlsConfig(cfg config, certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)) *tls.Config {
	base := &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}, GetCertificate: certificate}
	if cfg.clientCAFile == "" {
		return base
	}
	demanding := base.Clone()
	demanding.ClientAuth = tls.RequireAndVerifyClientCert
	demanding.VerifyConnection = func(state tls.ConnectionState) error { return checkName(cfg.clientName, state) }
	// The file is read for each connection, so that a rotated authority needs no restart.
	base.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		pool, err := readPool(cfg.clientCAFile)
		if err != nil {
			return nil, fmt.Errorf("reading the authority of client certificates: %w", err)
		}
		each := demanding.Clone()
		each.ClientCAs = pool
		return each, nil
	}
	return base
}

// checkName says whether the client is the one that the certificate must name. An empty name lets any client of the
// authority in.
func checkName(name string, state tls.ConnectionState) error {
	if name == "" {
		return nil
	}
	if len(state.PeerCertificates) == 0 {
		return errors.New("the client sent no certificate")
	}
	leaf := state.PeerCertificates[0]
	if leaf.Subject.CommonName == name || hasDNSName(leaf, name) {
		return nil
	}
	return fmt.Errorf("the client certificate is for %q, want --client-name=%q", leaf.Subject.CommonName, name)
}

func hasDNSName(c *x509.Certificate, name string) bool {
	for _, n := range c.DNSNames {
		if n == name {
			return true
		}
	}
	return false
}

// health answers /healthz always, since a process that waits for the API server gains nothing by being restarted, and
// /readyz by what ready says.
func health(ready func() error) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}
