package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/internal/testenv"
)

func issue(t *testing.T, ca *testenv.CA, o testenv.CertOptions) tls.Certificate {
	t.Helper()
	pair, err := ca.Issue(o)
	require.NoError(t, err)
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	require.NoError(t, err)
	return cert
}

func newCA(t *testing.T) *testenv.CA {
	t.Helper()
	ca, err := testenv.NewCA("kube-apiserver")
	require.NoError(t, err)
	return ca
}

func TestClientCertificates(t *testing.T) {
	ca, other, serving := newCA(t), newCA(t), newCA(t)
	server := issue(t, serving, testenv.CertOptions{CommonName: "webhook", Hosts: []string{"webhook.example"}, Server: true})
	right := issue(t, ca, testenv.CertOptions{CommonName: "apiserver", Client: true})
	byDNS := issue(t, ca, testenv.CertOptions{CommonName: "x", Hosts: []string{"apiserver"}, Client: true})
	wrongName := issue(t, ca, testenv.CertOptions{CommonName: "kubelet", Client: true})
	wrongCA := issue(t, other, testenv.CertOptions{CommonName: "apiserver", Client: true})
	notForClients := issue(t, ca, testenv.CertOptions{CommonName: "apiserver", Hosts: []string{"apiserver"}, Server: true})

	for name, c := range map[string]struct {
		demand bool
		name   string
		client []tls.Certificate
		works  bool
	}{
		"nothing demanded, none sent":      {client: nil, works: true},
		"demanded, none sent":              {demand: true},
		"demanded and sent":                {demand: true, client: []tls.Certificate{right}, works: true},
		"any name of the authority":        {demand: true, client: []tls.Certificate{wrongName}, works: true},
		"another authority":                {demand: true, client: []tls.Certificate{wrongCA}},
		"not for clients":                  {demand: true, client: []tls.Certificate{notForClients}},
		"named by common name":             {demand: true, name: "apiserver", client: []tls.Certificate{right}, works: true},
		"named by DNS name":                {demand: true, name: "apiserver", client: []tls.Certificate{byDNS}, works: true},
		"another name":                     {demand: true, name: "apiserver", client: []tls.Certificate{wrongName}},
		"the name under another's signing": {demand: true, name: "apiserver", client: []tls.Certificate{wrongCA}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config{clientName: c.name}
			if c.demand {
				cfg.clientCAFile = filepath.Join(t.TempDir(), "ca.crt")
				require.NoError(t, ca.Write(cfg.clientCAFile))
			}
			err := call(t, tlsConfig(cfg, serves(server)), serving, c.client)
			require.Equal(t, c.works, err == nil, "%v", err)
		})
	}
}

func TestClientAuthorityIsReadAnew(t *testing.T) {
	before, after, serving := newCA(t), newCA(t), newCA(t)
	server := issue(t, serving, testenv.CertOptions{CommonName: "webhook", Hosts: []string{"webhook.example"}, Server: true})
	sent := []tls.Certificate{issue(t, after, testenv.CertOptions{CommonName: "apiserver", Client: true})}
	cfg := config{clientCAFile: filepath.Join(t.TempDir(), "ca.crt")}
	require.NoError(t, before.Write(cfg.clientCAFile))
	rules := tlsConfig(cfg, serves(server))
	require.Error(t, call(t, rules, serving, sent))
	require.NoError(t, os.WriteFile(cfg.clientCAFile, nil, 0o600))
	require.Error(t, call(t, rules, serving, sent), "an authority that cannot be read lets nobody in")
	require.NoError(t, after.Write(cfg.clientCAFile))
	require.NoError(t, call(t, rules, serving, sent))
}

func serves(cert tls.Certificate) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &cert, nil }
}

// call makes one request over TLS to a server with these rules.
func call(t *testing.T, rules *tls.Config, serving *testenv.CA, sent []tls.Certificate) error {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error {
		return serve(ctx, tls.NewListener(listener, rules), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), slog.New(slog.DiscardHandler))
	})
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(serving.PEM()))
	transport := &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs: roots, ServerName: "webhook.example", Certificates: sent, MinVersion: tls.VersionTLS13,
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+listener.Addr().String(), http.NoBody)
	require.NoError(t, err)
	response, failed := transport.RoundTrip(request)
	if failed == nil {
		require.NoError(t, response.Body.Close())
	}
	transport.CloseIdleConnections()
	cancel()
	require.ErrorIs(t, g.Wait(), context.Canceled)
	return failed
}

func TestServeAnswersWhatIsUnderWay(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	begun, finish := make(chan struct{}), make(chan struct{})
	var g errgroup.Group
	g.Go(func() error {
		return serve(ctx, listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			close(begun)
			select {
			case <-finish:
			case <-r.Context().Done():
				http.Error(w, "cut off", http.StatusInternalServerError)
			}
		}), slog.New(slog.DiscardHandler))
	})
	g.Go(func() error {
		code, text := fetch(t, "http://"+listener.Addr().String())
		require.Equal(t, http.StatusOK, code, text)
		return nil
	})
	<-begun
	cancel()
	require.Eventually(t, func() bool {
		conn, err := net.DialTimeout("tcp", listener.Addr().String(), time.Second)
		if err != nil {
			return true
		}
		require.NoError(t, conn.Close())
		return false
	}, soon, 10*time.Millisecond, "no new request is taken")
	close(finish)
	require.ErrorIs(t, g.Wait(), context.Canceled)
}

func TestHealthBeforeTheAPIServerIsThere(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(kubeconfig, []byte(`{apiVersion: v1, kind: Config, current-context: c,
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}], contexts: [{name: c, context: {cluster: c}}]}`), 0o600))
	health := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	cfg, err := parse([]string{"--kubeconfig=" + kubeconfig, "--listen=127.0.0.1:0", "--metrics-listen=", "--health-listen=" + health})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return run(ctx, cfg, io.Discard) })
	require.Eventually(t, func() bool {
		code, text := fetch(t, "http://"+health+"/readyz")
		return code == http.StatusServiceUnavailable && text == "waiting for the API server\n"
	}, soon, 10*time.Millisecond)
	code, _ := fetch(t, "http://"+health+"/healthz")
	require.Equal(t, http.StatusOK, code)
	cancel()
	require.NoError(t, g.Wait())
}
