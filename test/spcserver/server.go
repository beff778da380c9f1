// Package spcserver emulates the StackPointCloud API for tests and the demo, as far as Holdfast
// uses it.
//
// A [Server] is an http.Handler with the lists and errors of the API. [Server.Advance] moves its
// machines through their states. The API itself is no longer available.
package spcserver

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/pkg/spc"
)

// Server is an http.Handler with one organization, one cluster and one token.
type Server struct {
	Token                 string
	Organization, Cluster string
	// Generation is the form of the API's node object. The zero value is the latest one.
	Generation Generation

	state struct {
		sync.Mutex
		nodes    []spc.Record
		pools    []spc.Pool
		failure  http.HandlerFunc
		requests int
	}
}

// SetNodes replaces the cluster's machines, without those in state deleted, which the API
// does not list.
func (s *Server) SetNodes(nodes ...spc.Record) {
	s.state.Lock()
	defer s.state.Unlock()
	s.state.nodes = slices.DeleteFunc(slices.Clone(nodes), func(r spc.Record) bool { return r.State == "deleted" })
}

// Nodes returns the cluster's machines.
func (s *Server) Nodes() []spc.Record {
	s.state.Lock()
	defer s.state.Unlock()
	return slices.Clone(s.state.nodes)
}

// SetPools replaces the cluster's node pools.
func (s *Server) SetPools(pools ...spc.Pool) {
	s.state.Lock()
	defer s.state.Unlock()
	s.state.pools = slices.Clone(pools)
}

// Fail makes h answer every request until Fail(nil). Failures returns suitable handlers.
func (s *Server) Fail(h http.HandlerFunc) {
	s.state.Lock()
	defer s.state.Unlock()
	s.state.failure = h
}

// Requests returns the number of requests so far.
func (s *Server) Requests() int {
	s.state.Lock()
	defer s.state.Unlock()
	return s.state.requests
}

// ServeHTTP answers as the API did. The errors are the texts of Django REST Framework with
// knox's tokens.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if failure := s.countRequest(); failure != nil {
		failure(w, r)
		return
	}
	if r.Header.Get("Authorization") != "Bearer "+s.Token {
		writeError(w, http.StatusUnauthorized, "Invalid token.")
		return
	}
	s.state.Lock()
	defer s.state.Unlock()
	cluster := "/orgs/" + s.Organization + "/clusters/" + s.Cluster
	switch path := r.URL.Path; {
	case path == cluster:
		writeJSON(w, http.StatusOK, s.clusterJSON())
	case path == cluster+"/nodes":
		writeJSON(w, http.StatusOK, s.nodesJSON())
	case path == cluster+"/nodepools" && s.Generation != Form2016:
		writeJSON(w, http.StatusOK, s.poolsJSON())
	default:
		writeError(w, http.StatusNotFound, "Not found.")
	}
}

// countRequest counts a request and returns the handler that Fail has set.
func (s *Server) countRequest() http.HandlerFunc {
	s.state.Lock()
	defer s.state.Unlock()
	s.state.requests++
	return s.state.failure
}

func writeError(w http.ResponseWriter, code int, detail string) {
	writeJSON(w, code, map[string]string{"detail": detail})
}

func writeJSON(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}

// parseID returns a number of the API, or 0 if it is not valid.
func parseID(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// Failures returns handlers that fail like the API or a proxy in front of it, by name.
func Failures() map[string]http.HandlerFunc {
	detail := func(code int, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { writeError(w, code, text) }
	}
	body := func(kind, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			_, _ = io.WriteString(w, text)
		}
	}
	const asJSON = "application/json"
	return map[string]http.HandlerFunc{
		"400": detail(http.StatusBadRequest,
			"JSON parse error - Expecting property name enclosed in double quotes: line 1 column 72 (char 71)"),
		"401": detail(http.StatusUnauthorized, "User inactive or deleted."),
		"403": detail(http.StatusForbidden, "You do not have permission to perform this action."),
		"404": detail(http.StatusNotFound, "Not found."),
		"405": detail(http.StatusMethodNotAllowed, `Method "GET" not allowed.`),
		"429": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "120")
			writeError(w, http.StatusTooManyRequests, "Request was throttled. Expected available in 120 seconds.")
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
			w.Header().Set("Content-Length", strconv.Itoa(50<<20))
			_, _ = io.WriteString(w, "[")
		},
		"redirect": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "https://elsewhere.example/login")
			w.WriteHeader(http.StatusFound)
		},
		// The response quotes the request, as debug pages do.
		"echo": func(w http.ResponseWriter, r *http.Request) {
			writeError(w, http.StatusUnauthorized, "no such token: "+r.Header.Get("Authorization"))
		},
	}
}

// Hang answers nothing until the client closes the connection.
func Hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
