package nodenet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-dev/holdfast/pkg/printable"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

const (
	// probeTimeout limits one probe with all its steps.
	probeTimeout = 3 * time.Second
	// maxProblemLength limits the text of an error, which can contain an answer of the server.
	maxProblemLength = 200
)

// Probe connects to the endpoint of a gate once. It returns nil if the gate is open: the server
// answers a GET request with a 2xx status, or accepts a connection if the endpoint has no URL.
// It does not follow redirects. Like the kubelet, it does not verify a server's certificate.
//
// The text of its error is the same for the same cause: it has no ports of the client.
func Probe(ctx context.Context, e readiness.Endpoint) error { return probe(ctx, e, probeTimeout) }

func probe(ctx context.Context, e readiness.Endpoint, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	connect := probeConnection
	if e.URL != nil {
		connect = probeStatus
	}
	err := connect(ctx, e)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer within %s", timeout)
	}
	return errors.New(probeProblem(err))
}

func probeConnection(ctx context.Context, e readiness.Endpoint) error {
	connection, err := new(net.Dialer).DialContext(ctx, "tcp", e.Address)
	if err != nil {
		return err
	}
	return connection.Close()
}

func probeStatus(ctx context.Context, e readiness.Endpoint) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, e.URL.String(), http.NoBody)
	if err != nil {
		return err
	}
	request.Header.Set("User-Agent", "holdfast-agent")
	transport := &http.Transport{ // without a proxy, which would answer in place of the server
		DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // Nothing secret is sent.
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // the body does not matter
	if response.StatusCode >= 200 && response.StatusCode <= 299 {
		return nil
	}
	status := strings.TrimSpace(fmt.Sprintf("%d %s", response.StatusCode, http.StatusText(response.StatusCode)))
	if response.StatusCode >= 300 && response.StatusCode <= 399 {
		return fmt.Errorf("it answers %s, and redirects are not followed", status)
	}
	return fmt.Errorf("it answers %s", status)
}

// probeProblem returns the cause of a failed probe as one short line.
func probeProblem(err error) string {
	var errno syscall.Errno
	var name *net.DNSError
	var operation *net.OpError
	text := err.Error()
	switch {
	// Which of these occurs first depends on the time at which the server closes the connection.
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "it closed the connection without an answer"
	case errors.As(err, &errno):
		return errno.Error()
	case errors.As(err, &name):
		return fmt.Sprintf("cannot resolve %s: %s", name.Name, name.Err)
	case errors.As(err, &operation):
		text = operation.Err.Error()
	}
	return printable.Clip(text, maxProblemLength)
}
