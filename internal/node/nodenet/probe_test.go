package nodenet

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// endpoint returns the endpoint of a gate.
func endpoint(t *testing.T, gate string) readiness.Endpoint {
	t.Helper()
	policy := readiness.Policy{Force: []string{gate}}
	require.NoError(t, policy.Validate())
	require.Len(t, policy.Endpoints(), 1)
	return policy.Endpoints()[0]
}

// listen returns the address of a server that passes each connection to serve. The connections
// stay open until the test ends.
func listen(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	var open []net.Conn
	go func() {
		defer close(done)
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			open = append(open, connection)
			serve(connection)
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close() // ends the goroutine
		<-done
		for _, connection := range open {
			_ = connection.Close() // serve may have closed it
		}
	})
	return listener.Addr().String()
}

// closedAddress returns an address on which no server listens.
func closedAddress(t *testing.T) string {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	return listener.Addr().String()
}

// longLimit is enough for each answer, also on a busy machine.
const longLimit = 30 * time.Second

func TestProbe(t *testing.T) {
	var requests []string
	status := func(w http.ResponseWriter, r *http.Request) {
		requests = append(requests, r.Method+" "+r.URL.RequestURI())
		switch r.URL.Path {
		case "/healthz":
			w.WriteHeader(http.StatusNoContent)
		case "/moved":
			http.Redirect(w, r, "/healthz", http.StatusFound)
		case "/teapot":
			w.WriteHeader(599)
		default:
			http.Error(w, "BGP is not up\nsecret", http.StatusServiceUnavailable)
		}
	}
	plain := httptest.NewServer(http.HandlerFunc(status))
	t.Cleanup(plain.Close)
	secure := httptest.NewUnstartedServer(http.HandlerFunc(status))
	secure.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	http, https := strings.Replace(plain.URL, "//", "", 1), strings.Replace(secure.URL, "//", "", 1)

	silent := listen(t, func(net.Conn) {})
	closing := listen(t, func(c net.Conn) {
		buffer := make([]byte, 4096)
		_, _ = c.Read(buffer) // else the close resets the connection
		_ = c.Close()
	})
	foreign := listen(t, func(c net.Conn) {
		_, _ = c.Read(make([]byte, 4096))
		_, _ = io.WriteString(c, "SSH-2.0-\x1b[31m"+strings.Repeat("x", 5000)+"\r\n")
		_ = c.Close()
	})
	for name, c := range map[string]struct{ gate, problem string }{
		"2xx":              {http + "/healthz?brief=true", ""},
		"503":              {http + "/readiness", "it answers 503 Service Unavailable"},
		"status of no RFC": {http + "/teapot", "it answers 599"},
		"redirect":         {http + "/moved", "it answers 302 Found, and redirects are not followed"},
		"HTTPS":            {https + "/healthz", ""},
		"HTTPS, 503":       {https + "/readiness", "it answers 503 Service Unavailable"},
		"HTTP for HTTPS":   {"https:" + strings.TrimPrefix(http, "http:") + "/", "tls: first record does not look like"},
		"HTTPS for HTTP":   {"http:" + strings.TrimPrefix(https, "https:") + "/", "it answers 400 Bad Request"},
		"no server":        {"http:" + closedAddress(t) + "/", "connection refused"},
		"never answers":    {"http:" + silent + "/", "no answer within 200ms"},
		"TLS, no answer":   {"https:" + silent + "/", "no answer within 200ms"},
		"closes":           {"http:" + closing + "/", "it closed the connection without an answer"},
		"another protocol": {"http:" + foreign + "/", "malformed HTTP"},
		"unknown host":     {"tcp:name.invalid:80", "cannot resolve name.invalid: "},
		"TCP":              {"tcp:" + silent, ""},
		"TCP, no server":   {"tcp:" + closedAddress(t), "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			limit := longLimit
			if strings.HasPrefix(c.problem, "no answer") {
				limit = 200 * time.Millisecond
			}
			err := probe(t.Context(), endpoint(t, c.gate), limit)
			if c.problem == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.problem)
			require.NotContains(t, err.Error(), "secret", "the text of an answer is not repeated")
			require.NotContains(t, err.Error(), "->", "the port of the client differs each time")
			require.NotContains(t, err.Error(), "\x1b")
			require.LessOrEqual(t, len(err.Error()), maxProblemLength+len("…"))
		})
	}
	require.Contains(t, requests, "GET /healthz?brief=true")
}

// TestProbeIsStable: the same cause has the same text, or the condition of the Node would be
// written after each probe.
func TestProbeIsStable(t *testing.T) {
	resetting := listen(t, func(c net.Conn) {
		tcp, ok := c.(*net.TCPConn)
		if ok && tcp.SetLinger(0) == nil {
			_ = tcp.Close()
		}
	})
	const closed = "it closed the connection without an answer"
	for _, c := range []struct{ gate, problem string }{
		{"http:" + resetting + "/", closed},
		{"https:" + resetting + "/", closed},
		{"tcp:" + closedAddress(t), "connection refused"},
	} {
		for range 6 {
			require.EqualError(t, probe(t.Context(), endpoint(t, c.gate), longLimit), c.problem)
		}
	}
	for _, errno := range []syscall.Errno{syscall.ECONNRESET, syscall.EPIPE} {
		require.Equal(t, closed, probeProblem(&net.OpError{Op: "write", Err: errno}))
	}
}

func TestProbeEndsWithContext(t *testing.T) {
	silent := listen(t, func(net.Conn) {})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, Probe(ctx, endpoint(t, "http:"+silent+"/")))
}
