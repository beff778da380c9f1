package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
)

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
	withClientCA := base.Clone()
	withClientCA.ClientAuth = tls.RequireAndVerifyClientCert
	withClientCA.VerifyConnection = func(state tls.ConnectionState) error { return checkClientName(cfg.clientName, state) }
	// Read the file for each connection, so that a rotated authority needs no restart.
	base.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		pool, err := readCertPool(cfg.clientCAFile)
		if err != nil {
			return nil, fmt.Errorf("reading the authority of client certificates: %w", err)
		}
		perConnection := withClientCA.Clone()
		perConnection.ClientCAs = pool
		return perConnection, nil
	}
	return base
}

// checkClientName returns an error unless the client certificate has the name. If the
// name is empty, every certificate of the authority is valid.
func checkClientName(name string, state tls.ConnectionState) error {
	if name == "" {
		return nil
	}
	if len(state.PeerCertificates) == 0 {
		return errors.New("the client sent no certificate")
	}
	leaf := state.PeerCertificates[0]
	if leaf.Subject.CommonName == name || slices.Contains(leaf.DNSNames, name) {
		return nil
	}
	return fmt.Errorf("the client certificate has the name %q instead of --client-name=%q", leaf.Subject.CommonName, name)
}

// readCertPool reads the certificates in a file.
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
