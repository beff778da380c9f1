package spcapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/pkg/printable"
	"github.com/holdfast-dev/holdfast/pkg/spc"
)

const (
	// maxRecord limits the JSON of a record, in bytes. Its usual size is half a KiB. A whole response
	// would not fit into a Node's annotations.
	maxRecord = 4 << 10
	// maxRetryAfter limits the pause that a Retry-After header can request.
	maxRetryAfter = time.Hour
)

// decodeList reads a list entry by entry, so that a response is never in memory as a whole.
// A body that is not a complete list is an error: it must not count as an empty or a
// smaller cluster.
func decodeList[T any](body io.Reader, of string, check func(*T) error) ([]T, error) {
	d := json.NewDecoder(body)
	switch begin, err := d.Token(); {
	case err != nil:
		return nil, decodeError("list of "+of, err)
	case begin == nil:
		return nil, fmt.Errorf("the SPC API returned null instead of a list of %s", of)
	case begin != json.Delim('['):
		return nil, fmt.Errorf("the SPC API did not return a list of %s; check the URL", of)
	}
	found := []T{}
	for d.More() {
		var text json.RawMessage
		if err := d.Decode(&text); err != nil {
			return nil, decodeError("list of "+of, err)
		}
		var entry T
		err := json.Unmarshal(text, &entry)
		if err == nil {
			err = check(&entry)
		}
		found = append(found, entry)
		if err != nil {
			return nil, fmt.Errorf("entry %d of the SPC API's list of %s is invalid: %w", len(found), of, withoutGoTypes(err))
		}
	}
	if _, err := d.Token(); err != nil {
		return nil, decodeError("list of "+of, err)
	}
	return found, nil
}

// checkRecord returns an error if a record does not belong into the cluster's list. It sets
// the record's cluster.
func checkRecord(r *spc.Record, cluster int64) error {
	switch {
	case r.PK <= 0:
		return errors.New("it has no pk")
	case r.Cluster != 0 && r.Cluster != cluster:
		return fmt.Errorf("node_id %d belongs to cluster %d instead of %d", r.PK, r.Cluster, cluster)
	}
	r.Cluster = cluster
	if text, err := json.Marshal(r); err != nil || len(text) > maxRecord {
		return fmt.Errorf("node_id %d has %d bytes, more than %d", r.PK, len(text), maxRecord)
	}
	return nil
}

// decodeError explains why a response is not complete JSON.
func decodeError(what string, err error) error {
	var syntax *json.SyntaxError
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return errTooLarge
	case errors.Is(err, io.EOF):
		return fmt.Errorf("the SPC API returned an empty response instead of a %s", what)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("the SPC API's response ends in the middle of a %s", what)
	case errors.As(err, &syntax) && syntax.Offset <= 1:
		return fmt.Errorf("the SPC API returned neither a %s nor other JSON; check the URL, and for a login page or "+
			"a proxy", what)
	}
	return fmt.Errorf("reading the SPC API's %s: %w", what, withoutGoTypes(err))
}

// withoutGoTypes returns an error of encoding/json without the names of Go types.
func withoutGoTypes(err error) error {
	var mismatch *json.UnmarshalTypeError
	if errors.As(err, &mismatch) {
		kind, _, _ := strings.Cut(mismatch.Value, " ") // the value follows
		return fmt.Errorf("field %q is a %s", mismatch.Field, kind)
	}
	return err
}

// errTooLarge is returned for a response of more than maxBody bytes.
var errTooLarge = errors.New("the SPC API's response is larger than 32 MiB; check the URL")

// StatusError is an error response of the API.
type StatusError struct {
	Code int
	// Detail is the API's own explanation, or "".
	Detail string
	// RetryAfter is the pause that the API requests, or 0.
	RetryAfter time.Duration
}

// Error returns the status with advice for the operator.
func (e *StatusError) Error() string {
	text := fmt.Sprintf("the SPC API responded with %d %s", e.Code, http.StatusText(e.Code))
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	switch {
	case e.Code == http.StatusUnauthorized:
		text += "; put a valid token of an organization owner in the token file"
	case e.Code == http.StatusForbidden:
		text += "; the token must belong to an owner of the organization"
	case e.Code == http.StatusNotFound:
		text += "; check the organization and cluster numbers, and the URL"
	case e.Code/100 == 3:
		text += "; use the URL of the API itself"
	case e.Code == http.StatusTooManyRequests, e.Code >= http.StatusInternalServerError:
		text += "; Holdfast retries later"
	default:
		text += "; check the URL"
	}
	return text
}

// maxLogged limits a text of the API in a log, in bytes.
const maxLogged = 300

func newStatusError(r *http.Response, token string) error {
	body, _ := io.ReadAll(io.LimitReader(r.Body, maxDetail)) // the status is sufficient
	detail := errorDetail(body)
	if to := r.Header.Get("Location"); detail == "" && to != "" {
		detail = "redirect to " + to
	}
	return &StatusError{
		Code: r.StatusCode, Detail: printable.Clip(hideToken(detail, token), maxLogged), RetryAfter: retryAfter(r.Header,
			time.Now()),
	}
}

// errorDetail returns the API's explanation in the body of an error: {"detail":…}, or a
// list of texts for each field.
func errorDetail(body []byte) string {
	var response map[string]any
	if json.Unmarshal(body, &response) != nil || len(response) == 0 {
		return ""
	}
	if detail, ok := response["detail"].(string); ok {
		return detail
	}
	text, _ := json.Marshal(response) // what was JSON can be encoded
	return string(text)
}

// retryAfter parses the header of RFC 9110 §10.2.3 in both its forms, seconds and a date.
func retryAfter(h http.Header, now time.Time) time.Duration {
	text := h.Get("Retry-After")
	pause := time.Duration(0)
	if seconds, err := strconv.ParseInt(text, 10, 32); err == nil {
		pause = time.Duration(seconds) * time.Second
	} else if at, err := http.ParseTime(text); err == nil {
		pause = at.Sub(now)
	}
	return min(max(pause, 0), maxRetryAfter)
}

func hideToken(text, token string) string { return strings.ReplaceAll(text, token, "<the token>") }
