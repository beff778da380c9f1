// Package spcserver is a conforming server of the part of the StackPointCloud API that Holdfast reads, for tests and the
// demo. The API itself is no longer to be had; docs/decisions.md says where its behaviour was taken from.
package spcserver

import (
	"encoding/json"
	"net/http"
	"slices"
	"sync"

	"github.com/holdfast-dev/holdfast/pkg/spc"
)

// Server is an http.Handler with one organization, one cluster and one token.
type Server struct {
	Token                 string
	Organization, Cluster string

	state struct {
		sync.Mutex
		nodes    []spc.Record
		failure  http.HandlerFunc
		requests int
	}
}

// SetNodes replaces the cluster's machines. Those in state deleted are not listed, as in the API.
func (s *Server) SetNodes(nodes ...spc.Record) {
	s.state.Lock()
	defer s.state.Unlock()
	s.state.nodes = slices.DeleteFunc(slices.Clone(nodes), func(r spc.Record) bool { return r.State == "deleted" })
}

// Fail makes every request end in h, until it is called with nil.
func (s *Server) Fail(h http.HandlerFunc) {
	s.state.Lock()
	defer s.state.Unlock()
	s.state.failure = h
}

// Requests is how many requests have come.
func (s *Server) Requests() int {
	s.state.Lock()
	defer s.state.Unlock()
	return s.state.requests
}

// ServeHTTP answers GET /orgs/{org}/clusters/{cluster}/nodes as the API did, errors included (Django REST Framework's
// texts with knox's tokens).
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.state.Lock()
	s.state.requests++
	failure, nodes := s.state.failure, s.state.nodes
	s.state.Unlock()
	path := "/orgs/" + s.Organization + "/clusters/" + s.Cluster + "/nodes"
	switch {
	case failure != nil:
		failure(w, r)
	case r.Header.Get("Authorization") == "":
		w.Header().Set("WWW-Authenticate", "Bearer")
		answer(w, http.StatusUnauthorized, map[string]string{"detail": "Authentication credentials were not provided."})
	case r.Header.Get("Authorization") != "Bearer "+s.Token:
		w.Header().Set("WWW-Authenticate", "Bearer")
		answer(w, http.StatusUnauthorized, map[string]string{"detail": "Invalid token."})
	case r.URL.Path != path:
		answer(w, http.StatusNotFound, map[string]string{"detail": "Not found."})
	case r.Method != http.MethodGet:
		answer(w, http.StatusMethodNotAllowed, map[string]string{"detail": `Method "` + r.Method + `" not allowed.`})
	default:
		answer(w, http.StatusOK, append([]spc.Record{}, nodes...))
	}
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}
