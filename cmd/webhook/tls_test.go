package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/internal/cli"
	"github.com/holdfast-dev/holdfast/internal/testenv/pki"
)

func issue(t *testing.T, ca *pki.CA, o pki.CertOptions) tls.Certificate {
	t.Helper()
	pair, err := ca.Issue(o)
	require.NoError(t, err)
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	require.NoError(t, err)
	return cert
}

func servingOptions() pki.CertOptions {
	return pki.CertOptions{CommonName: "webhook", Hosts: []string{"webhook.example"}, Server: true}
}

func newCA(t *testing.T) *pki.CA {
	t.Helper()
	ca, err := pki.NewCA("kube-apiserver")
	require.NoError(t, err)
	return ca
}

func TestClientCertificates(t *testing.T) {
	ca, other, serving := newCA(t), newCA(t), newCA(t)
	server := issue(t, serving, servingOptions())
	valid := issue(t, ca, pki.CertOptions{CommonName: "apiserver", Client: true})
	byDNSName := issue(t, ca, pki.CertOptions{CommonName: "x", Hosts: []string{"apiserver"}, Client: true})
	wrongName := issue(t, ca, pki.CertOptions{CommonName: "kubelet", Client: true})
	wrongCA := issue(t, other, pki.CertOptions{CommonName: "apiserver", Client: true})
	notForClients := issue(t, ca, pki.CertOptions{CommonName: "apiserver", Hosts: []string{"apiserver"}, Server: true})

	for name, test := range map[string]struct {
		required bool
		name     string
		sent     []tls.Certificate
		allowed  bool
	}{
		"not required, not sent":    {allowed: true},
		"required, not sent":        {required: true},
		"required, sent":            {required: true, sent: []tls.Certificate{valid}, allowed: true},
		"any name":                  {required: true, sent: []tls.Certificate{wrongName}, allowed: true},
		"other authority":           {required: true, sent: []tls.Certificate{wrongCA}},
		"not for clients":           {required: true, sent: []tls.Certificate{notForClients}},
		"common name":               {required: true, name: "apiserver", sent: []tls.Certificate{valid}, allowed: true},
		"DNS name":                  {required: true, name: "apiserver", sent: []tls.Certificate{byDNSName}, allowed: true},
		"other name":                {required: true, name: "apiserver", sent: []tls.Certificate{wrongName}},
		"name from other authority": {required: true, name: "apiserver", sent: []tls.Certificate{wrongCA}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config{clientName: test.name}
			if test.required {
				cfg.clientCAFile = filepath.Join(t.TempDir(), "ca.crt")
				require.NoError(t, ca.Write(cfg.clientCAFile))
			}
			err := sendRequest(t, tlsConfig(cfg, returnCertificate(server)), serving, test.sent)
			require.Equal(t, test.allowed, err == nil, "%v", err)
		})
	}
}

func TestClientCARotation(t *testing.T) {
	before, after, serving := newCA(t), newCA(t), newCA(t)
	server := issue(t, serving, servingOptions())
	sent := []tls.Certificate{issue(t, after, pki.CertOptions{CommonName: "apiserver", Client: true})}
	cfg := config{clientCAFile: filepath.Join(t.TempDir(), "ca.crt")}
	require.NoError(t, before.Write(cfg.clientCAFile))
	serverConfig := tlsConfig(cfg, returnCertificate(server))
	require.Error(t, sendRequest(t, serverConfig, serving, sent))
	require.NoError(t, os.WriteFile(cfg.clientCAFile, nil, 0o600))
	require.Error(t, sendRequest(t, serverConfig, serving, sent), "allowed although the authority is unreadable")
	require.NoError(t, after.Write(cfg.clientCAFile))
	require.NoError(t, sendRequest(t, serverConfig, serving, sent))
}

func returnCertificate(cert tls.Certificate) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &cert, nil }
}

// sendRequest sends one request with client certificates to a server with this configuration.
func sendRequest(t *testing.T, config *tls.Config, serving *pki.CA, sent []tls.Certificate) error {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error {
		handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
		server := cli.NewServer(handler, slog.New(slog.DiscardHandler))
		return cli.Serve(ctx, server, tls.NewListener(listener, config), drainTime)
	})
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(serving.PEM()))
	transport := &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs: roots, ServerName: "webhook.example", Certificates: sent, MinVersion: tls.VersionTLS13,
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+listener.Addr().String(), http.NoBody)
	require.NoError(t, err)
	response, requestErr := transport.RoundTrip(request)
	if requestErr == nil {
		require.NoError(t, response.Body.Close())
	}
	transport.CloseIdleConnections()
	cancel()
	require.ErrorIs(t, g.Wait(), context.Canceled)
	return requestErr
}

func countAuthorities() {
	roots, err := x509.SystemCertPool()
	if err != nil {
		panic(err)
	}
	fmt.Fprint(os.Stdout, len(roots.Subjects())) //nolint:staticcheck // The fallback's are complete, unlike a platform's.
}

// TestFallbackAuthorities has no certificates on the system, as in the image. The process
// must still know the certificate authorities of the SPC API.
func TestFallbackAuthorities(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	child := exec.CommandContext(t.Context(), self, asCounter)
	child.Env = []string{"SSL_CERT_FILE=/nonexistent", "SSL_CERT_DIR=/nonexistent"}
	out, err := child.Output()
	require.NoError(t, err)
	var count int
	_, err = fmt.Sscan(string(out), &count)
	require.NoError(t, err)
	require.Greater(t, count, 50)
}
