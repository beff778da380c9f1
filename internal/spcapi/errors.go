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
)

// longestPause bounds what a Retry-After header can ask for.
const longestPause = time.Hour

// StatusError is an answer of the API other than success.
type StatusError struct {
	Code int
	// Detail is the API's own explanation, empty if it gave none.
	Detail string
	// RetryAfter is how long the API asks to be left alone, 0 if it does not say.
	RetryAfter time.Duration
}

// Error says what the status means for the person who set Holdfast up.
func (e *StatusError) Error() string {
	text := fmt.Sprintf("the SPC API answered %d %s", e.Code, http.StatusText(e.Code))
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
		text += "; give the URL at which the API itself answers"
	case e.Code == http.StatusTooManyRequests, e.Code >= http.StatusInternalServerError:
		text += "; it is asked again later"
	default:
		text += "; is the URL that of the API?"
	}
	return text
}

// refusal makes an error of an answer that is none of success.
func refusal(r *http.Response, token string) error {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxDetail))
	if err != nil {
		body = nil // the status says enough
	}
	detail := explanation(body)
	if to := r.Header.Get("Location"); detail == "" && to != "" {
		detail = "it sends to " + to
	}
	return &StatusError{Code: r.StatusCode, Detail: clip(blank(detail, token)), RetryAfter: retryAfter(r.Header, time.Now())}
}

// explanation returns what the API itself says in the body of an error: {"detail":…}, or a list of texts per field.
func explanation(body []byte) string {
	var answer map[string]any
	if json.Unmarshal(body, &answer) != nil {
		return ""
	}
	if detail, is := answer["detail"].(string); is {
		return detail
	}
	if len(answer) == 0 {
		return ""
	}
	text, err := json.Marshal(answer)
	if err != nil {
		return ""
	}
	return string(text)
}

// clip keeps a stranger's text to a length that fits a log.
func clip(s string) string {
	const most = 300
	s = strings.Join(strings.Fields(strings.ToValidUTF8(s, "\uFFFD")), " ")
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// retryAfter reads the header of RFC 9110 §10.2.3 in both its forms, seconds and a date.
func retryAfter(h http.Header, now time.Time) time.Duration {
	text := h.Get("Retry-After")
	pause := time.Duration(0)
	if seconds, err := strconv.ParseInt(text, 10, 32); err == nil {
		pause = time.Duration(seconds) * time.Second
	} else if at, err := http.ParseTime(text); err == nil {
		pause = at.Sub(now)
	}
	return min(max(pause, 0), longestPause)
}

// redacted is err without the token, should anything on the way have quoted it.
func redacted(err error, token string) error {
	if err == nil || token == "" || !strings.Contains(err.Error(), token) {
		return err
	}
	return errors.New(blank(err.Error(), token))
}

func blank(text, token string) string {
	if token == "" {
		return text
	}
	return strings.ReplaceAll(text, token, "<the token>")
}
