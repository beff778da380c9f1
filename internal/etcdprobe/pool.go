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
)

const (
	// idleLife is how long an unused connection is kept: agents look every minute, and what no look has used for five
	// belongs to a member that is gone or to a credential that is no longer named.
	idleLife = 5 * time.Minute
	// longestLife is how long a connection is used at all. Servers judge a certificate when a connection is made and never
	// again: one that was revoked, or whose authority is no longer trusted, is found out by the next.
	longestLife = 10 * time.Minute
	// electionPause is waited before a question that met an election is asked again.
	electionPause = 100 * time.Millisecond
)

// pool keeps the connections that worked. It hands one out to one caller at a time; a connection that failed in any way is
// closed and never handed out again, since gRPC would answer from its memory of the failure while it backs off.
//
// It dials with gRPC itself and not with etcd's client: that one waits for a dead endpoint until the deadline
// (client/v3/options.go, WaitForReady) and so hides why it is dead, and it retries up to a hundred times.
type pool struct {
	timeout time.Duration
	// count is told what became of every question.
	count func(outcome)

	mu     sync.Mutex // guards idle and closed
	idle   map[target][]*session
	closed bool
}

// session is a connection to one server that the holder alone uses.
type session struct {
	target target
	conn   *grpc.ClientConn
	// print is the fingerprint of the credential's files when it was made.
	print          fingerprint
	made, lastUsed time.Time
}

func newPool(timeout time.Duration, count func(outcome)) *pool {
	return &pool{timeout: timeout, count: count, idle: map[target][]*session{}}
}

// call asks one server. What fails on a kept connection because that had died meanwhile is asked again on a new one, and
// what met an election is asked again after it, both inside the deadline of the context.
func (p *pool) call(ctx context.Context, t target, ask func(context.Context, *grpc.ClientConn) error) error {
	files, err := load(t)
	if err != nil {
		p.count(unreadable)
		return &failure{words: oneLine(err.Error()), outcome: unreadable, cause: err}
	}
	s, kept, err := p.take(t, files)
	if err != nil {
		p.count(failed)
		return err
	}
	err = ask(ctx, s.conn)
	if kept && status.Code(err) == codes.Unavailable && !election(err) {
		closeConn(s)
		if s, err = dial(t, files, p.timeout); err != nil {
			p.count(failed)
			return err
		}
		err = ask(ctx, s.conn)
	}
	if election(err) && wait(ctx, electionPause) {
		err = ask(ctx, s.conn)
	}
	if err != nil {
		closeConn(s)
		why := explain(verdict(ctx, t, files, err), p.timeout, files.warning)
		if status.Code(err) != codes.Canceled { // it was not needed any more
			p.count(why.outcome)
		}
		return why
	}
	p.count(answered)
	p.give(s)
	return nil
}

// take returns the kept connection of a target, or a new one. A kept one is used only if it is up and not too old, and its
// certificates are still the ones on the disk and would still do.
func (p *pool) take(t target, files loaded) (s *session, kept bool, err error) {
	p.mu.Lock()
	closed := p.closed
	if held := p.idle[t]; len(held) > 0 {
		s, kept = held[len(held)-1], true
		p.idle[t] = held[:len(held)-1]
	}
	p.mu.Unlock()
	if closed {
		return nil, false, errors.New("the prober has been closed")
	}
	if kept && s.print == files.print && files.warning == "" && time.Since(s.made) < longestLife && s.conn.GetState() == connectivity.Ready {
		return s, true, nil
	}
	if kept {
		closeConn(s)
	}
	s, err = dial(t, files, p.timeout)
	return s, false, err
}

// give keeps a connection for the next look, and drops those that have not been used for long.
func (p *pool) give(s *session) {
	s.lastUsed = time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		closeConn(s)
		return
	}
	p.idle[s.target] = append(p.idle[s.target], s)
	for t, held := range p.idle {
		p.idle[t] = slices.DeleteFunc(held, func(other *session) bool {
			stale := s.lastUsed.Sub(other.lastUsed) > idleLife
			if stale {
				closeConn(other)
			}
			return stale
		})
		if len(p.idle[t]) == 0 {
			delete(p.idle, t)
		}
	}
}

func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for t, held := range p.idle {
		for _, s := range held {
			closeConn(s)
		}
		delete(p.idle, t)
	}
}

// dial makes a connection object; gRPC connects with the first question.
func dial(t target, files loaded, timeout time.Duration) (*session, error) {
	u, err := url.Parse(t.url)
	if err != nil {
		return nil, fmt.Errorf("parsing %q: %w", t.url, err)
	}
	address := "passthrough:///" + u.Host
	if u.Scheme == "unix" || u.Scheme == "unixs" {
		address = "unix:" + u.Host + u.Path
	}
	security := insecure.NewCredentials()
	if files.config != nil {
		security = credentials.NewTLS(files.config)
	}
	conn, err := grpc.NewClient(address,
		grpc.WithTransportCredentials(security),
		grpc.WithNoProxy(), // a proxy of the environment is meant for the internet, and would see etcd's traffic
		grpc.WithDisableServiceConfig(),
		// Longer than any question, so that silence is always told as the question's deadline.
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: 2 * timeout}),
	)
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", t.url, err)
	}
	return &session{target: t, conn: conn, print: files.print, made: time.Now()}, nil
}

func closeConn(s *session) { _ = s.conn.Close() } // the only error is that it is closed already

// wait returns true after a while, false if the context ends before.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
