package etcdprobe

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/pkg/printable"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// endpoint is the URL of a server and the credential to use there.
type endpoint struct {
	url        string
	credential evidence.Credential
}

func (e endpoint) usesTLS() bool {
	u, err := url.Parse(e.url)
	return err == nil && (u.Scheme == "https" || u.Scheme == "unixs")
}

// pairEndpoints combines each TLS URL with each credential. URLs without TLS need no
// credential. If there are no credentials, it returns TLS endpoints with the system's roots
// alone, so that the resulting error names the missing certificate.
func pairEndpoints(urls []string, credentials []evidence.Credential) []endpoint {
	if len(credentials) == 0 {
		credentials = []evidence.Credential{{Origin: "no client certificate"}}
	}
	var endpoints []endpoint
	for _, u := range urls {
		if !(endpoint{url: u}).usesTLS() {
			endpoints = append(endpoints, endpoint{url: u})
			continue
		}
		for _, c := range credentials {
			endpoints = append(endpoints, endpoint{url: u, credential: c})
		}
	}
	return endpoints
}

const (
	// maxIdleTime is the time after which an unused connection is closed. Agents observe every
	// minute; a connection unused for five minutes belongs to a removed member or to a
	// credential that is no longer configured.
	maxIdleTime = 5 * time.Minute
	// maxConnAge is the time after which a connection is no longer reused. A server verifies a
	// client certificate only in the handshake. Only a new connection shows that a certificate
	// was revoked or that its CA is no longer trusted.
	maxConnAge = 10 * time.Minute
	// electionDelay is the time before a call that failed during an election is repeated.
	electionDelay = 100 * time.Millisecond
)

// connPool keeps the connections of successful calls for reuse. Each connection serves one
// call at a time. A connection is closed after any failure, because gRPC would return the
// old error while it backs off.
//
// connPool dials with gRPC and not with etcd's client. That client waits for an unreachable
// endpoint until the deadline (client/v3/options.go, WaitForReady), which hides the cause,
// and it retries up to a hundred times.
type connPool struct {
	timeout  time.Duration
	hostRoot hostfs.Root
	// countOutcome is called with the outcome of every call.
	countOutcome func(probeOutcome)

	mu     sync.Mutex // guards idle and closed
	idle   map[endpoint][]*pooledConn
	closed bool
}

// pooledConn is a connection to one server. Only one caller uses it at a time.
type pooledConn struct {
	endpoint         endpoint
	conn             *grpc.ClientConn
	credential       loadedCredential
	dialed, lastUsed time.Time
}

func newConnPool(timeout time.Duration, hostRoot hostfs.Root, countOutcome func(probeOutcome)) *connPool {
	return &connPool{timeout: timeout, hostRoot: hostRoot, countOutcome: countOutcome, idle: map[endpoint][]*pooledConn{}}
}

// call runs request on a connection to one server, within the deadline of ctx. It repeats the
// request once on a new connection if a reused one has broken, and once after a delay if the
// cluster is electing a leader.
func (p *connPool) call(ctx context.Context, e endpoint, request func(context.Context, *grpc.ClientConn) error) error {
	c, reused, err := p.acquire(e)
	if err != nil {
		return err
	}
	err = request(ctx, c.conn)
	if reused && status.Code(err) == codes.Unavailable && !isElectionError(err) {
		closeConn(c)
		if c, err = dial(e, c.credential, p.timeout); err != nil {
			p.countOutcome(outcomeFailed)
			return err
		}
		err = request(ctx, c.conn)
	}
	if isElectionError(err) && loop.Wait(ctx, electionDelay, nil) == nil {
		err = request(ctx, c.conn)
	}
	if err != nil {
		closeConn(c)
		failure := newProbeError(tlsRejection(ctx, e, c.credential, err), p.timeout, c.credential.warning())
		if status.Code(err) != codes.Canceled { // canceled: another probe has succeeded already
			p.countOutcome(failure.outcome)
		}
		return failure
	}
	p.countOutcome(outcomeAnswered)
	p.release(c)
	return nil
}

// acquire returns an idle connection to an endpoint, or a new one. It reuses a connection
// only if it is ready and younger than maxConnAge, the credential's files are unchanged, and
// the client certificate is still valid.
func (p *connPool) acquire(e endpoint) (c *pooledConn, reused bool, err error) {
	var known loadedCredential
	p.mu.Lock()
	closed := p.closed
	if last := len(p.idle[e]) - 1; last >= 0 {
		c, reused, p.idle[e] = p.idle[e][last], true, p.idle[e][:last]
		known = c.credential
	}
	p.mu.Unlock()
	if closed {
		return nil, false, errors.New("the prober is closed")
	}
	credential, err := loadCredential(p.hostRoot, e, known)
	if reused && err == nil && credential.config == known.config && credential.warning() == "" &&
		time.Since(c.dialed) < maxConnAge && c.conn.GetState() == connectivity.Ready {
		return c, true, nil
	}
	if reused {
		closeConn(c)
	}
	if err != nil {
		p.countOutcome(outcomeUnreadable)
		return nil, false, &probeError{message: printable.Line(err.Error()), outcome: outcomeUnreadable}
	}
	if c, err = dial(e, credential, p.timeout); err != nil {
		p.countOutcome(outcomeFailed)
	}
	return c, false, err
}

// release makes a connection available for reuse, and closes all connections that have been
// idle for more than maxIdleTime.
func (p *connPool) release(c *pooledConn) {
	c.lastUsed = time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		closeConn(c)
		return
	}
	p.idle[c.endpoint] = append(p.idle[c.endpoint], c)
	for e, idle := range p.idle {
		p.idle[e] = slices.DeleteFunc(idle, func(other *pooledConn) bool {
			stale := c.lastUsed.Sub(other.lastUsed) > maxIdleTime
			if stale {
				closeConn(other)
			}
			return stale
		})
		if len(p.idle[e]) == 0 {
			delete(p.idle, e)
		}
	}
}

func (p *connPool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for e, idle := range p.idle {
		for _, c := range idle {
			closeConn(c)
		}
		delete(p.idle, e)
	}
}

// dial returns a new connection object. gRPC connects with the first request.
func dial(e endpoint, credential loadedCredential, timeout time.Duration) (*pooledConn, error) {
	u, err := url.Parse(e.url)
	if err != nil {
		return nil, fmt.Errorf("parsing %q: %w", e.url, err)
	}
	address := "passthrough:///" + u.Host
	if u.Scheme == "unix" || u.Scheme == "unixs" {
		address = "unix:" + u.Host + u.Path
	}
	transport := insecure.NewCredentials()
	if credential.config != nil {
		transport = credentials.NewTLS(credential.config)
	}
	conn, err := grpc.NewClient(address, append(answerLimits(),
		grpc.WithTransportCredentials(transport),
		grpc.WithNoProxy(), // HTTPS_PROXY is for the internet; the proxy would see etcd's traffic
		grpc.WithDisableServiceConfig(),
		// Longer than any request, so that a hanging server always yields DeadlineExceeded.
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: 2 * timeout}),
	)...)
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", e.url, err)
	}
	return &pooledConn{endpoint: e, conn: conn, credential: credential, dialed: time.Now()}, nil
}

func closeConn(c *pooledConn) { _ = c.conn.Close() } // fails only if it is already closed
