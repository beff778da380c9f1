// Package spcserver emulates the StackPointCloud API for tests and the demo, as far as
// autoscalers and Holdfast use it.
//
// A [Server] is an http.Handler with the lists and errors of the API. [Server.Advance]
// moves its machines through their states from draft to deleted. The API itself is no
// longer available. docs/spc.md lists the sources of its behaviour.
package spcserver

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
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
		stuck    map[int64]bool
		failure  http.HandlerFunc
		requests int
		logs     []map[string]any
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

// apiRoute is one path of the API. {name} matches one segment, and handle gets the matching
// segments in order. It is called with the state locked.
type apiRoute struct {
	method, path string
	handle       func(w http.ResponseWriter, r *http.Request, args []string)
}

func (s *Server) routes() []apiRoute {
	const cluster = "orgs/{o}/clusters/{c}"
	return []apiRoute{
		{http.MethodGet, "rest-auth/user/", s.getUser},
		{http.MethodGet, "userprofile/{name}", s.getUser},
		{http.MethodGet, "orgs", s.listOrganizations},
		{http.MethodGet, "orgs/{o}", s.getOrganization},
		{http.MethodGet, "orgs/{o}/clusters", s.listClusters},
		{http.MethodGet, cluster, s.getCluster},
		{http.MethodGet, cluster + "/nodes", s.listNodes},
		{http.MethodGet, cluster + "/nodes/{n}", s.withItem(s.findNode, s.getNode)},
		{http.MethodDelete, cluster + "/nodes/{n}", s.withItem(s.findNode, s.deleteNode)},
		{http.MethodGet, cluster + "/nodes/{n}/can_delete", s.withItem(s.findNode, s.canDelete)},
		{http.MethodPost, cluster + "/add_node", s.postNode},
		{http.MethodGet, cluster + "/nodepools", s.listPools},
		{http.MethodPost, cluster + "/nodepools", s.postPool},
		{http.MethodGet, cluster + "/nodepools/{p}", s.withItem(s.findPool, s.getPool)},
		{http.MethodPost, cluster + "/nodepools/{p}", s.withItem(s.findPool, s.updatePool)},
		{http.MethodDelete, cluster + "/nodepools/{p}", s.withItem(s.findPool, s.deletePool)},
		{http.MethodPost, cluster + "/nodepools/{p}/add", s.withItem(s.findPool, s.postPoolNodes)},
		{http.MethodGet, cluster + "/logs", s.listLogs},
		{http.MethodPost, cluster + "/buildlogs", s.postLog},
		{http.MethodGet, cluster + "/volumes", s.listVolumes},
	}
}

// ServeHTTP answers as the API did. The errors are the texts of Django REST Framework with
// knox's tokens.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if failure := s.countRequest(); failure != nil {
		failure(w, r)
		return
	}
	if problem := s.authError(r.Header.Get("Authorization")); problem != "" {
		w.Header().Set("WWW-Authenticate", "Bearer")
		writeError(w, http.StatusUnauthorized, problem)
		return
	}
	s.state.Lock()
	defer s.state.Unlock()
	known := false
	for _, to := range s.routes() {
		args, ok := matchPath(to.path, r.URL.Path)
		known = known || ok
		switch {
		case !ok || to.method != r.Method:
		case len(args) > 0 && strings.HasPrefix(to.path, "orgs/") && args[0] != s.Organization,
			len(args) > 1 && args[1] != s.Cluster:
			writeError(w, http.StatusNotFound, "Not found.")
			return
		default:
			to.handle(w, r, args)
			return
		}
	}
	if known {
		writeError(w, http.StatusMethodNotAllowed, `Method "`+r.Method+`" not allowed.`)
		return
	}
	writeError(w, http.StatusNotFound, "Not found.")
}

// countRequest counts a request and returns the handler that Fail has set.
func (s *Server) countRequest() http.HandlerFunc {
	s.state.Lock()
	defer s.state.Unlock()
	s.state.requests++
	return s.state.failure
}

// authError returns knox's error for an Authorization header, or "".
func (s *Server) authError(header string) string {
	kind, token, _ := strings.Cut(header, " ")
	switch {
	case !strings.EqualFold(kind, "bearer"):
		return "Authentication credentials were not provided."
	case token == "":
		return "Invalid token header. No credentials provided."
	case strings.Contains(token, " "):
		return "Invalid token header. Token string should not contain spaces."
	case token != s.Token:
		return "Invalid token."
	}
	return ""
}

// matchPath reports whether a path matches, and returns the segments for {name}.
func matchPath(pattern, path string) (args []string, ok bool) {
	want, have := strings.Split(pattern, "/"), strings.Split(strings.TrimPrefix(path, "/"), "/")
	if len(want) != len(have) {
		return nil, false
	}
	for i, segment := range want {
		switch {
		case strings.HasPrefix(segment, "{") && have[i] != "":
			args = append(args, have[i])
		case segment != have[i]:
			return nil, false
		}
	}
	return args, true
}

func writeError(w http.ResponseWriter, code int, detail string) {
	writeJSON(w, code, map[string]string{"detail": detail})
}

func writeJSON(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}

// parseID returns the number in a path, or 0 if it is not valid. The API's numbers are
// above 0.
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

// Flood answers with 50 MB, and does not announce the size.
func Flood(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, "[")
	rest := `,"instance_id":"a","state":"running","name":"` + strings.Repeat("x", 970) + `"}`
	for i := 1; i <= 50<<10; i++ {
		if i > 1 {
			_, _ = io.WriteString(w, ",")
		}
		if _, err := io.WriteString(w, `{"pk":`+strconv.Itoa(i)+rest); err != nil {
			return // the client has closed the connection
		}
	}
	_, _ = io.WriteString(w, "]")
}

// Hang answers nothing until the client closes the connection.
func Hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
