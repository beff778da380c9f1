package admission

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admission/v1"

	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// paddedReview returns the review of a deletion with a length in bytes.
func paddedReview(t *testing.T, length int) []byte {
	t.Helper()
	raw, err := json.Marshal(deletionReview(etcdNode(), nil))
	require.NoError(t, err)
	return append(raw, bytes.Repeat([]byte{' '}, length-len(raw))...)
}

// A reply is a response of the server without a review.
type reply struct {
	status  int
	header  http.Header
	isClose bool // the server closes the connection
	text    string
}

// send posts a body and returns the reply. Without a declared length the body is chunked.
func (f *fixture) send(path string, body []byte, isDeclared bool) reply {
	f.t.Helper()
	reader := io.Reader(bytes.NewReader(body))
	if !isDeclared {
		reader = io.MultiReader(reader)
	}
	request, err := http.NewRequestWithContext(f.t.Context(), http.MethodPost, f.url+path, reader)
	require.NoError(f.t, err)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	require.NoError(f.t, err)
	text, err := io.ReadAll(response.Body)
	require.NoError(f.t, err)
	require.NoError(f.t, response.Body.Close())
	return reply{
		status: response.StatusCode, header: response.Header, isClose: response.Close, text: string(text),
	}
}

func (f *fixture) rejected(reason string) int {
	f.t.Helper()
	families, err := f.registry.Gather()
	require.NoError(f.t, err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == "holdfast_webhook_requests_rejected_total" && m.GetLabel()[0].GetValue() == reason {
				return int(m.GetCounter().GetValue())
			}
		}
	}
	return 0
}

func TestBodyLimit(t *testing.T) {
	for _, path := range []string{EtcdNodePath, NodePath} {
		for _, isDeclared := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s declared=%v", path, isDeclared), func(t *testing.T) {
				f := newFixture(t)
				f.decision = quorum.Decision{Allowed: true, Reason: quorum.NothingToProtect}
				require.Equal(t, http.StatusOK, f.send(path, paddedReview(t, 3<<20), isDeclared).status)
				require.Len(t, f.requests, 1)
				rejected := f.send(path, paddedReview(t, 3<<20+1), isDeclared)
				require.Equal(t, http.StatusRequestEntityTooLarge, rejected.status)
				require.Contains(t, rejected.text, "larger than 3145728 bytes")
				require.Len(t, f.requests, 1)
				require.Equal(t, 1, f.rejected("TooLarge"))
			})
		}
	}
}

// TestBusyEntry fills one entry with reviews that do not end. The entry must answer the next
// review at once, and the other entry must review as usual.
func TestBusyEntry(t *testing.T) {
	decision := quorum.Decision{Reason: quorum.QuorumWouldBeLost, Message: "no"}
	dry := func(r *admissionv1.AdmissionRequest) { *r.DryRun = true } // without an event
	for _, path := range []string{EtcdNodePath, NodePath, EvictionPath} {
		t.Run(path, func(t *testing.T) {
			f := newFixture(t)
			sent := deletionReview(etcdNode(), dry)
			if path == EvictionPath {
				sent = evictionReview(dry)
			}
			began, finish := make(chan struct{}), make(chan struct{})
			var running errgroup.Group
			defer func() {
				close(finish)
				require.NoError(t, running.Wait())
			}()
			blocked := func(context.Context, quorum.Request) (quorum.Decision, error) {
				began <- struct{}{}
				<-finish
				return decision, nil
			}
			atOnce := func(context.Context, quorum.Request) (quorum.Decision, error) { return decision, nil }
			f.handler.reviewer = fakeReviewer{labelled: blocked, unlabelled: atOnce} // a drain is labelled
			other := NodePath
			if path == NodePath {
				f.handler.reviewer, other = fakeReviewer{labelled: atOnce, unlabelled: blocked}, EtcdNodePath
			}
			const most = maxReviewBytes / minReviewCost
			for range most {
				running.Go(func() error {
					answer := f.post(path, sent)
					if answer.Allowed || answer.Result.Message != "no" {
						return fmt.Errorf("the answer is %v", answer)
					}
					return nil
				})
				<-began
			}
			require.Equal(t, "no", f.post(other, deletionReview(etcdNode(), dry)).Result.Message)

			rejected := f.send(path, paddedReview(t, 10<<10), true)
			if path != NodePath {
				var review admissionv1.AdmissionReview
				require.NoError(t, json.Unmarshal([]byte(rejected.text), &review))
				require.EqualValues(t, "review-1", review.Response.UID)
				require.Contains(t, review.Response.Result.Message, "Try again")
				if path == EtcdNodePath {
					require.EqualValues(t, 1, review.Response.Result.Details.RetryAfterSeconds)
					review.Response.Result.Details.RetryAfterSeconds = 0
				}
				requireRetriable(t, review.Response)
			} else {
				require.Equal(t, http.StatusTooManyRequests, rejected.status)
				require.Equal(t, "1", rejected.header.Get("Retry-After"))
				require.True(t, rejected.isClose, "the API server would try the same replica again")
			}
			require.Equal(t, 1, f.rejected("Busy"))
		})
	}
}

// TestLargeReviewsAreBusy has fewer reviews than an entry reviews at once. Their size counts too.
func TestLargeReviewsAreBusy(t *testing.T) {
	f := newFixture(t)
	began, finish := make(chan struct{}), make(chan struct{})
	var running errgroup.Group
	defer func() {
		close(finish)
		require.NoError(t, running.Wait())
	}()
	f.handler.reviewer = fakeReviewer{labelled: func(context.Context, quorum.Request) (quorum.Decision, error) {
		began <- struct{}{}
		<-finish
		return quorum.Decision{}, nil
	}}
	for range 2 {
		running.Go(func() error {
			f.send(EtcdNodePath, paddedReview(t, maxBody), true)
			return nil
		})
		<-began
	}
	require.Contains(t, f.send(EtcdNodePath, paddedReview(t, maxBody), true).text, "Try again")
}

// newLimitedServer serves the fixture's Handler, and closes connections above these limits. It
// reports the states of connections as the intake gets them.
func (f *fixture) newLimitedServer(conns int, size int64, states chan<- connState) string {
	f.t.Helper()
	f.decision = quorum.Decision{Reason: quorum.QuorumWouldBeLost, Message: "no"}
	f.handler.intake.maxConns, f.handler.intake.maxBytes = conns, size
	mux := http.NewServeMux()
	require.NoError(f.t, f.handler.Mount(mux))
	server := httptest.NewUnstartedServer(mux)
	f.handler.LimitConnections(server.Config)
	setState := server.Config.ConnState
	server.Config.ConnState = func(conn net.Conn, state http.ConnState) {
		setState(conn, state)
		states <- connState{conn.RemoteAddr().String(), state}
	}
	server.Start()
	f.t.Cleanup(server.Close)
	f.url = server.URL
	return server.Listener.Addr().String()
}

// A connState is a state that the server has reported of the connection from an address.
type connState struct {
	address string
	state   http.ConnState
}

func waitForState(t *testing.T, states <-chan connState, conn net.Conn, state http.ConnState) {
	t.Helper()
	for want := (connState{conn.LocalAddr().String(), state}); ; {
		select {
		case got := <-states:
			if got == want {
				return
			}
		case <-time.After(time.Minute):
			require.FailNow(t, "the server has not read from the connection")
		}
	}
}

// isClosed waits until the server closes the connection, and returns false if it has not.
func isClosed(t *testing.T, conn net.Conn, within time.Duration) bool {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(within)))
	_, err := conn.Read(make([]byte, 1))
	timeout, ok := err.(net.Error) //nolint:errorlint // It is the connection's own error.
	return !ok || !timeout.Timeout()
}

// TestWaitingConnections opens more connections than may wait for a request. The server must
// close the oldest ones and answer reviews on new ones.
func TestWaitingConnections(t *testing.T) {
	for name, tt := range map[string]struct {
		request string
		state   http.ConnState // after the server has read the request
	}{
		"no request":    {"", http.StateNew},
		"half a header": {"POST " + EtcdNodePath + " HTTP/1.1\r\nHost", http.StateNew},
		"no body": {
			"POST " + EtcdNodePath + " HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n", http.StateActive,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			states := make(chan connState, 100)
			address := f.newLimitedServer(4, maxWaitingBytes, states)
			var open []net.Conn
			for range 6 {
				conn, err := net.Dial("tcp", address)
				require.NoError(t, err)
				t.Cleanup(func() { _ = conn.Close() }) // the server has closed some
				_, err = io.WriteString(conn, tt.request)
				require.NoError(t, err)
				// The server reads from connections in any order. The next one must be later for it.
				waitForState(t, states, conn, tt.state)
				open = append(open, conn)
			}
			require.True(t, isClosed(t, open[0], 10*time.Second))
			require.True(t, isClosed(t, open[1], 10*time.Second))
			for _, conn := range open[2:] {
				require.False(t, isClosed(t, conn, 50*time.Millisecond))
			}
			http.DefaultClient.CloseIdleConnections()
			require.Equal(t, "no", f.post(EtcdNodePath, deletionReview(etcdNode(), nil)).Result.Message)
			require.Equal(t, 3, f.rejected("TooSlow"))
		})
	}
}

// TestRejectedConnection reports a connection as active that the intake has closed, as a server
// does that reads a part of a request on it. It must not take the place of another.
func TestRejectedConnection(t *testing.T) {
	f := newFixture(t)
	intake := f.handler.intake
	intake.maxConns = 2
	conns := make([]net.Conn, 3)
	for i := range conns {
		conns[i], _ = net.Pipe()
		intake.setState(conns[i], http.StateNew)
	}
	intake.setState(conns[0], http.StateActive)
	require.Equal(t, 1, f.rejected("TooSlow"))
	intake.setState(conns[0], http.StateClosed)
	require.Empty(t, intake.closed)
	require.Equal(t, 2, intake.waiting.Len())
}

// TestWaitingBytes has clients that send most of a body. The server must close the one that has
// sent most, and not an older connection that has sent less.
func TestWaitingBytes(t *testing.T) {
	f := newFixture(t)
	address := f.newLimitedServer(100, 1<<20, make(chan connState, 100))
	var open []net.Conn
	for _, size := range []int{0, 100_000, 500_000, 300_000, 300_000} {
		conn, err := net.Dial("tcp", address)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() }) // the server has closed one
		_, err = io.WriteString(conn, "POST "+EtcdNodePath+" HTTP/1.1\r\nHost: x\r\nContent-Length: 600000\r\n\r\n"+
			strings.Repeat(" ", size))
		require.NoError(t, err)
		open = append(open, conn)
	}
	require.True(t, isClosed(t, open[2], 10*time.Second))
	for _, i := range []int{0, 1, 3, 4} {
		require.False(t, isClosed(t, open[i], 50*time.Millisecond))
	}
	require.Equal(t, "no", f.post(EtcdNodePath, deletionReview(etcdNode(), nil)).Result.Message)
	require.Equal(t, 1, f.rejected("TooSlow"))
}
