package spcserver

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Failures are the ways in which the API, or what stands before it, is known or to be feared to fail, by name.
func Failures() map[string]http.HandlerFunc {
	detail := func(code int, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { refuse(w, code, text) }
	}
	body := func(kind, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			_, _ = io.WriteString(w, text)
		}
	}
	const asJSON = "application/json"
	return map[string]http.HandlerFunc{
		"400": detail(http.StatusBadRequest, "JSON parse error - Expecting property name enclosed in double quotes: line 1 column 72 (char 71)"),
		"401": detail(http.StatusUnauthorized, "User inactive or deleted."),
		"403": detail(http.StatusForbidden, "You do not have permission to perform this action."),
		"404": detail(http.StatusNotFound, "Not found."),
		"405": detail(http.StatusMethodNotAllowed, `Method "GET" not allowed.`),
		"429": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "120")
			refuse(w, http.StatusTooManyRequests, "Request was throttled. Expected available in 120 seconds.")
		},
		"500": detail(http.StatusInternalServerError, "A server error occurred."),
		"503": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", time.Now().Add(5*time.Minute).UTC().Format(http.TimeFormat))
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, "<html><body>Service Unavailable</body></html>")
		},
		"html":      body("text/html; charset=utf-8", "<!doctype html><html><title>Welcome</title></html>"),
		"null":      body(asJSON, "null"),
		"object":    body(asJSON, `{"pk":504,"name":"a cluster where a list of nodes should be"}`),
		"empty":     body(asJSON, ""),
		"strings":   body(asJSON, `["a","b"]`),
		"types":     body(asJSON, `[{"pk":1,"cluster":504,"instance_id":7,"state":"running"}]`),
		"no pk":     body(asJSON, `[{"cluster":504,"instance_id":"a","state":"running"}]`),
		"truncated": body(asJSON, `[{"pk":1,"instance_id":"a","state":"running"},{"pk":2,"instan`),
		"cut off": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "4096")
			_, _ = io.WriteString(w, `[{"pk":1,"instance_id":"a","state":"running"}`)
		},
		"50 MB": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", asJSON)
			_, _ = io.WriteString(w, "[")
			for i := 1; i <= 50<<10; i++ {
				if i > 1 {
					_, _ = io.WriteString(w, ",")
				}
				if _, err := io.WriteString(w, `{"pk":`+strconv.Itoa(i)+`,"instance_id":"a","state":"running","name":"`+strings.Repeat("x", 970)+`"}`); err != nil {
					return // the client has given up
				}
			}
			_, _ = io.WriteString(w, "]")
		},
		"redirect": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "https://elsewhere.example/login")
			w.WriteHeader(http.StatusFound)
		},
		// It repeats what it was sent, as debug pages do.
		"echo": func(w http.ResponseWriter, r *http.Request) {
			refuse(w, http.StatusUnauthorized, "no such token: "+r.Header.Get("Authorization"))
		},
	}
}

// Slow takes as long as the client is patient.
func Slow(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
