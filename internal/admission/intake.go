package admission

import (
	"container/list"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// Any client that reaches the port can send requests. These limits keep a replica within the
// memory of its pod. A review is as large as a Node, 10 to 100 KB.
const (
	// maxBody is the API server's own limit for the body of a request.
	maxBody = 3 << 20
	// maxWaitingConns and maxWaitingBytes limit the requests that have not arrived completely. If
	// these have sent too much, one of them has sent more than 64 KiB.
	maxWaitingConns = 256
	maxWaitingBytes = maxWaitingConns * 64 << 10
	// maxReviewBytes limits the requests that one entry reviews at the same time. Each counts with
	// its size, at least with minReviewCost.
	maxReviewBytes = 8 << 20
	minReviewCost  = 64 << 10
)

// Reasons of requests that are rejected without a review.
const (
	tooLarge = "TooLarge"
	tooSlow  = "TooSlow"
	busy     = "Busy"
)

// An intake limits the connections that wait for a request, or for the rest of one. It accepts
// every new connection. If too many wait, it closes the one that has waited longest: a request of
// an API server arrives within milliseconds. If they have sent too much, it closes the one that
// has sent most: a request of an API server is small. So other clients cannot displace an API
// server, however many they are.
type intake struct {
	maxConns int
	maxBytes int64
	rejected *prometheus.CounterVec

	mu       sync.Mutex // guards the fields below
	waiting  *list.List // of *waitingConn; the first has waited longest
	elements map[net.Conn]*list.Element
	bytes    int64                 // of all that wait
	closed   map[net.Conn]struct{} // by reject, and not yet by the server
}

type waitingConn struct {
	conn  net.Conn
	bytes int64
}

func newIntake(rejected *prometheus.CounterVec) *intake {
	for _, reason := range []string{tooLarge, tooSlow, busy} {
		rejected.WithLabelValues(reason)
	}
	return &intake{
		maxConns: maxWaitingConns, maxBytes: maxWaitingBytes, rejected: rejected,
		waiting: list.New(), elements: map[net.Conn]*list.Element{}, closed: map[net.Conn]struct{}{},
	}
}

// setState has the signature of http.Server.ConnState. An open connection begins to wait again.
// The server reports a connection that reject has closed as active once more if a part of a
// request has arrived on it.
func (i *intake) setState(conn net.Conn, state http.ConnState) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.remove(conn)
	if state == http.StateClosed || state == http.StateHijacked {
		delete(i.closed, conn)
		return
	}
	if _, isClosed := i.closed[conn]; isClosed {
		return
	}
	i.elements[conn] = i.waiting.PushBack(&waitingConn{conn: conn})
	i.enforceLimits()
}

// addBytes counts a part of a body.
func (i *intake) addBytes(conn net.Conn, n int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if element, isWaiting := i.elements[conn]; isWaiting {
		received(element).bytes += int64(n)
		i.bytes += int64(n)
		i.enforceLimits()
	}
}

// complete ends the wait of a connection whose request has arrived.
func (i *intake) complete(conn net.Conn) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.remove(conn)
}

func (i *intake) remove(conn net.Conn) {
	element, isWaiting := i.elements[conn]
	if !isWaiting {
		return
	}
	delete(i.elements, conn)
	i.bytes -= received(element).bytes
	i.waiting.Remove(element)
}

// enforceLimits closes connections until the limits are met.
func (i *intake) enforceLimits() {
	for i.waiting.Len() > i.maxConns {
		i.reject(i.waiting.Front())
	}
	for i.bytes > i.maxBytes {
		most := i.waiting.Front()
		for element := most.Next(); element != nil; element = element.Next() {
			if received(element).bytes > received(most).bytes {
				most = element
			}
		}
		i.reject(most)
	}
}

func received(element *list.Element) *waitingConn {
	return element.Value.(*waitingConn) //nolint:forcetypeassert // The list contains nothing else.
}

func (i *intake) reject(element *list.Element) {
	conn := received(element).conn
	i.remove(conn)
	i.closed[conn] = struct{}{}
	closeAtOnce(conn)
	i.rejected.WithLabelValues(tooSlow).Inc()
}

// closeAtOnce closes a connection without the message that ends TLS, which could block.
func closeAtOnce(conn net.Conn) {
	if wrapped, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = wrapped.NetConn()
	}
	_ = conn.Close() // the server reads from it, and gets the error as well
}

// connKey is the key of a request's connection in its context.
type connKey struct{}

// LimitConnections makes a server close the connections of slow clients if they are too many. The
// server must serve the entries of this Handler only.
func (h *Handler) LimitConnections(server *http.Server) {
	server.ConnState = h.intake.setState
	server.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, conn)
	}
}

// readBody returns the body of a request that has arrived completely.
func (i *intake) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.ContentLength > maxBody {
		return nil, &http.MaxBytesError{Limit: maxBody}
	}
	conn, _ := r.Context().Value(connKey{}).(net.Conn) // nil without LimitConnections
	body, err := io.ReadAll(countingReader{http.MaxBytesReader(w, r.Body, maxBody), func(n int) { i.addBytes(conn, n) }})
	if err == nil {
		i.complete(conn)
	}
	return body, err
}

// A countingReader reports how much was read.
type countingReader struct {
	io.Reader

	add func(n int)
}

// Read reads and reports.
func (r countingReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.add(n)
	return n, err
}

// rejectBody answers a request whose body could not be read.
func (i *intake) rejectBody(w http.ResponseWriter, err error) {
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		i.rejected.WithLabelValues(tooLarge).Inc()
		w.Header().Set("Connection", "close")
		http.Error(w, fmt.Sprintf("holdfast reviews no request that is larger than %d bytes, "+
			"which is the limit of the API server", maxBody), http.StatusRequestEntityTooLarge)
	case errors.Is(err, os.ErrDeadlineExceeded):
		i.rejected.WithLabelValues(tooSlow).Inc()
		http.Error(w, "the request did not arrive in time", http.StatusRequestTimeout)
	default:
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
}

// busyMessage is the answer to a review above the limit of the entry.
const busyMessage = "holdfast is busy with other reviews. Try again in a second."

// refuseBusy refuses a review at the entry that fails closed. Programs that use client-go repeat
// the deletion by themselves after the time in the answer.
func refuseBusy(w http.ResponseWriter, body []byte) { writeBusy(w, body, 1) }

// refuseBusyEviction refuses a review at the entry for evictions. Programs that drain nodes repeat
// the eviction by themselves. A time in the answer would make client-go repeat it within the call.
func refuseBusyEviction(w http.ResponseWriter, body []byte) { writeBusy(w, body, 0) }

func writeBusy(w http.ResponseWriter, body []byte, retryAfterSeconds int32) {
	var review struct {
		Request struct {
			UID types.UID `json:"uid"`
		} `json:"request"`
	}
	if err := json.Unmarshal(body, &review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	// An error means that the client has gone.
	_ = json.NewEncoder(w).Encode(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "AdmissionReview"},
		Response: &admissionv1.AdmissionResponse{
			UID: review.Request.UID, AuditAnnotations: map[string]string{"reason": busy},
			Result: &metav1.Status{
				Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests,
				Message: busyMessage, Details: &metav1.StatusDetails{
					Causes: []metav1.StatusCause{{Type: quorum.Reason(busy).Cause()}}, RetryAfterSeconds: retryAfterSeconds,
				},
			},
		},
	})
}

// deferBusy asks the API server to repeat a review at the entry that fails open, over a new
// connection and so perhaps to another replica. The API server does so until its own timeout, and
// then allows the deletion.
func deferBusy(w http.ResponseWriter, _ []byte) {
	w.Header().Set("Connection", "close")
	w.Header().Set("Retry-After", "1")
	http.Error(w, busyMessage, http.StatusTooManyRequests)
}
