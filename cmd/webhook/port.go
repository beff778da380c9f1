package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/internal/operator/cli"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
)

// ready returns an error with the reason if the replica cannot answer reviews.
func (r *replica) ready(sigterm context.Context) error {
	ended := r.ended.Load()
	switch {
	case sigterm.Err() != nil:
		return errors.New("the webhook is stopping")
	case ended == nil:
		return errors.New("waiting for the API server")
	case (*ended)() != nil:
		return fmt.Errorf("a part of the webhook has ended: %w", (*ended)())
	case !r.isSynced.Load():
		return errors.New("the caches of Nodes and EtcdClusters have not synced yet")
	}
	if err := r.servingCert.Ready(); err != nil {
		return err
	}
	if !r.isOpen.Load() {
		return errors.New("the port for reviews is not open yet")
	}
	return nil
}

// answerReviews opens the port on which the API server requests reviews as soon as the replica can
// answer them, and answers them until sigterm ends. Before, the port is closed: a Service uses
// another replica if a connection is refused, but not if a handshake or a review fails.
//
// The API server needs a moment to use another replica, so answerReviews takes new reviews for
// lingerTime after sigterm, and returns when the last one is answered. The context parts must live
// as long: it ends only if a part fails that reviews need. The Service then learns that the replica
// is not ready, and answerReviews takes new reviews for failureLingerTime. They are decided from
// live reads: the caches may have stopped.
func (r *replica) answerReviews(sigterm, parts context.Context) error {
	starting, cancel := withEnd(parts, sigterm, 0)
	defer cancel()
	if !r.store.WaitForSync(starting) {
		return context.Cause(starting)
	}
	r.isSynced.Store(true)
	if err := loop.Await(starting, "the serving certificate", r.servingCert.Loaded()); err != nil {
		return err
	}
	mux := http.NewServeMux()
	if err := r.reviews.Mount(mux); err != nil {
		return err
	}
	port := cli.Port{
		Flag: "--listen", Address: r.listen, Handler: closeConnections(starting, mux),
		TLS: tlsConfig(r.config, r.servingCert.GetCertificate), Drain: drainTime, Log: r.log,
	}
	listener, err := port.Listen(starting)
	if err != nil {
		return err
	}
	r.isOpen.Store(true)
	failing, cancel := withEnd(context.WithoutCancel(sigterm), parts, failureLingerTime)
	defer cancel()
	lingering, cancel := withEnd(failing, sigterm, lingerTime)
	defer cancel()
	return port.Serve(lingering, listener)
}

// closeConnections closes each connection after its next answer, once ctx has ended. Then few
// connections are idle when the server closes them: a request that is sent in that moment fails.
func closeConnections(ctx context.Context, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if ctx.Err() != nil {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// withEnd returns a context that ends when ctx ends, or when delay has passed since end ended.
func withEnd(ctx, end context.Context, delay time.Duration) (context.Context, context.CancelFunc) {
	merged, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(end, func() {
		time.AfterFunc(delay, func() { cancel(context.Cause(end)) })
	})
	return merged, func() {
		stop()
		cancel(nil)
	}
}

// tlsConfig serves the certificate. With --client-ca-file it requires a client
// certificate of the API server.
//
// It speaks HTTP/1.1 only. With HTTP/2 an API server sends all reviews over one
// connection to one replica, and keeps using that connection for most of a minute after
// the replica's machine has died.
func tlsConfig(cfg config, certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)) *tls.Config {
	base := &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}, GetCertificate: certificate}
	if cfg.clientCAFile == "" {
		return base
	}
	// Read the file for each connection, so that a rotated authority needs no restart.
	base.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		pool, err := readCertPool(cfg.clientCAFile)
		if err != nil {
			return nil, fmt.Errorf("reading the authority of client certificates: %w", err)
		}
		perConnection := base.Clone()
		perConnection.ClientAuth, perConnection.ClientCAs = tls.RequireAndVerifyClientCert, pool
		perConnection.VerifyConnection = func(state tls.ConnectionState) error {
			return checkClientName(cfg.clientName, state)
		}
		return perConnection, nil
	}
	return base
}

// checkClientName returns an error unless the certificate of the client, which is verified, has the
// name. If the name is empty, every certificate of the authority is valid.
func checkClientName(name string, state tls.ConnectionState) error {
	leaf := state.PeerCertificates[0]
	if name == "" || leaf.Subject.CommonName == name || slices.Contains(leaf.DNSNames, name) {
		return nil
	}
	return fmt.Errorf("the client certificate has the name %q instead of --client-name=%q", leaf.Subject.CommonName, name)
}

func readCertPool(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, errors.New("the file contains no certificate")
	}
	return pool, nil
}
