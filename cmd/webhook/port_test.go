package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/internal/operator/cli"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/internal/testenv/pki"
)

// testSlowPosts has 50 clients that send large bodies, a little more than 1 MB/s each. The
// replica must keep below the memory limit of its pod, and answer the API server in time.
func testSlowPosts(t *testing.T, f *fixture) {
	const clients, maxMemory = 50, 200 << 20
	f.startReady(t, []string{"--observer-wait=400ms"})
	f.addNode(t, "etcd-of-posts", etcdLabel())
	f.addNode(t, "worker-of-posts", nil)
	replica := f.replicas[0]
	for name, post := range map[string]slowPost{
		"7 MiB, declared":      {size: 7 << 20, isDeclared: true},
		"7 MiB, not declared":  {size: 7 << 20},
		"largest body allowed": {size: 3 << 20, isDeclared: true},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			var posts errgroup.Group
			for range clients {
				posts.Go(func() error {
					for ctx.Err() == nil {
						post.send(ctx, replica)
						_ = loop.Wait(ctx, 500*time.Millisecond, nil) // A handshake takes more CPU than a post.
					}
					return nil
				})
			}
			memory, rejected := replica.load(t)
			peak, enough := memory, rejected+clients
			require.Eventually(t, func() bool { // until the clients are at work
				memory, rejected = replica.load(t)
				peak = max(peak, memory)
				return rejected >= enough || peak > maxMemory
			}, 3*soon, 100*time.Millisecond)
			f.requireVerdicts(t)
			memory, _ = replica.load(t)
			peak = max(peak, memory)
			stop()
			require.NoError(t, posts.Wait())
			t.Logf("memory %d MiB", peak>>20)
			require.Less(t, peak, maxMemory)
			require.True(t, replica.Running())
		})
	}
}

// requireVerdicts makes dry-run deletions, half of a node with etcd and half of a worker. Each must
// get the answer of the webhook. On a busy machine the API server can be too slow for some
// verdicts, but not for most.
func (f *fixture) requireVerdicts(t *testing.T) {
	t.Helper()
	const rounds = 5
	verdicts := 0
	dry := metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}
	for range rounds {
		require.NoError(t, f.Client().CoreV1().Nodes().Delete(t.Context(), "worker-of-posts", dry))
		err := f.Client().CoreV1().Nodes().Delete(t.Context(), "etcd-of-posts", dry)
		if apierrors.IsForbidden(err) {
			verdicts++
		} else if !isLate(err) {
			require.ErrorContains(t, err, `admission webhook "etcd-nodes.holdfast.dev" denied the request`)
		}
	}
	require.Greater(t, verdicts, rounds/2)
}

// load returns the memory in bytes that the Go runtime of the process holds, and how many requests
// it has not reviewed. The resident memory would include the memory of the race detector.
func (w *webhookProcess) load(t *testing.T) (memory, rejected int) {
	t.Helper()
	text := w.fetchMetrics(t)
	value := func(name string) int { // 0 if there is none
		found := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (\S+)$`).FindStringSubmatch(text)
		if found == nil {
			return 0
		}
		value, err := strconv.ParseFloat(found[1], 64)
		require.NoError(t, err)
		return int(value)
	}
	for _, reason := range []string{"TooLarge", "TooSlow", "Busy"} {
		rejected += value(`holdfast_webhook_requests_rejected_total{reason="` + reason + `"}`)
	}
	return value("go_memstats_sys_bytes") - value("go_memstats_heap_released_bytes"), rejected
}

// A slowPost is a request without the last byte of its body.
type slowPost struct {
	size       int
	isDeclared bool // with Content-Length
}

// send sends the request and keeps the connection until the server closes it or ctx ends.
func (p slowPost) send(ctx context.Context, replica *webhookProcess) {
	conn, err := replica.dial(ctx)
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }() // the server has closed it in most cases
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	length, start := fmt.Sprintf("Content-Length: %d", p.size), ""
	if !p.isDeclared {
		length, start = "Transfer-Encoding: chunked", fmt.Sprintf("%x\r\n", p.size)
	}
	_, err = fmt.Fprintf(conn, "POST /validate-etcd-node HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n%s", length, start)
	part := bytes.Repeat([]byte{' '}, 64<<10)
	for left := p.size - 1; left > 0 && err == nil; left -= len(part) {
		if _, err = conn.Write(part[:min(left, len(part))]); err == nil {
			err = loop.Wait(ctx, 50*time.Millisecond, nil)
		}
	}
	_, _ = io.Copy(io.Discard, conn) // until the end of the connection
}

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

// F14: any client of the webhook could cause a grant.
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
		port := cli.Port{Handler: handler, Drain: drainTime, Log: slog.New(slog.DiscardHandler)}
		return port.Serve(ctx, tls.NewListener(listener, config))
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
