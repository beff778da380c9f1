package admission

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Any client that reaches the port can send requests. These limits keep a replica within the
// memory of its pod. A review is as large as a Node, 10 to 100 KB, and arrives within milliseconds.
const (
	// maxBody is the API server's own limit for the body of a request.
	maxBody = 3 << 20
	// usualBody is the size above which a body is large, as is one without a declared size. The
	// entries read maxLargeBodies of these at the same time.
	usualBody      = 256 << 10
	maxLargeBodies = 4
	// maxReviewBytes limits the requests that one entry reviews at the same time. Each counts with
	// its size, at least with minReviewCost.
	maxReviewBytes = 8 << 20
	minReviewCost  = 64 << 10
	// maxObjectReviews limits the reviews of one object at an entry of kubelets.
	maxObjectReviews = 4
)

// Reasons of requests that are rejected without a review.
const (
	tooLarge = "TooLarge"
	tooSlow  = "TooSlow"
	busy     = "Busy"
)

// errBusy is returned for a large body while others are read.
var errBusy = errors.New("too many large requests")

// readBody returns the body of a request that has arrived completely. The server limits the time.
func (h *Handler) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.ContentLength > maxBody {
		return nil, &http.MaxBytesError{Limit: maxBody}
	}
	if r.ContentLength < 0 || r.ContentLength > usualBody {
		if !h.largeBodies.TryAcquire(1) {
			return nil, errBusy
		}
		defer h.largeBodies.Release(1)
	}
	return io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
}

func (h *Handler) rejectBody(w http.ResponseWriter, err error) {
	var large *http.MaxBytesError
	switch {
	case errors.Is(err, errBusy):
		h.metrics.rejected.WithLabelValues(busy).Inc()
		deferBusy(w)
	case errors.As(err, &large):
		h.metrics.rejected.WithLabelValues(tooLarge).Inc()
		w.Header().Set("Connection", "close")
		http.Error(w, fmt.Sprintf("holdfast reviews no request that is larger than %d bytes, "+
			"which is the limit of the API server", maxBody), http.StatusRequestEntityTooLarge)
	case errors.Is(err, os.ErrDeadlineExceeded):
		h.metrics.rejected.WithLabelValues(tooSlow).Inc()
		http.Error(w, "the request did not arrive in time", http.StatusRequestTimeout)
	default:
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
}

// busyMessage is the answer to a review above the limit of the entry.
const busyMessage = "holdfast is busy with other reviews. Try again in a second."

// rejectBusy answers a request above the limit of the entry. One that fails closed refuses. It
// names the time after which programs that use client-go repeat the request within the call. For an
// eviction it names none: programs that drain nodes repeat it by themselves.
func (e entry) rejectBusy(w http.ResponseWriter, body []byte) {
	if e.fallback.allows {
		deferBusy(w)
		return
	}
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
	response := refuse(http.StatusTooManyRequests, busy, busyMessage).response(false).AdmissionResponse
	response.UID = review.Request.UID
	if !e.fallback.isRetriable {
		response.Result.Details.RetryAfterSeconds = 1
	}
	// An error means that the client has gone.
	_ = json.NewEncoder(w).Encode(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "AdmissionReview"},
		Response: &response,
	})
}

// deferBusy asks the API server to repeat a request over a new connection, and so perhaps to
// another replica. The API server does so until its own timeout. At the entry that fails open it
// then allows the deletion.
func deferBusy(w http.ResponseWriter) {
	w.Header().Set("Connection", "close")
	w.Header().Set("Retry-After", "1")
	http.Error(w, busyMessage, http.StatusTooManyRequests)
}

// objectReviews counts the reviews in progress by object. The zero value is ready for use.
type objectReviews struct {
	mu    sync.Mutex
	count map[string]int
}

// begin reports whether another review of the object may begin. If it may, end must be called after
// it.
func (o *objectReviews) begin(object string) (end func(), isFree bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.count[object] >= maxObjectReviews {
		return nil, false
	}
	if o.count == nil {
		o.count = map[string]int{}
	}
	o.count[object]++
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.count[object]--; o.count[object] == 0 {
			delete(o.count, object)
		}
	}, true
}
