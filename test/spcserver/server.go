// Package spcserver is a conforming server of the StackPointCloud API as far as autoscalers and Holdfast use it, for tests
// and the demo: its lists, its errors, and the life of a machine from draft to deleted. The API itself is no longer to be
// had; docs/spc.md says where its behaviour was taken from.
package spcserver

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/holdfast-dev/holdfast/pkg/spc"
)

// Server is an http.Handler with one organization, one cluster and one token.
type Server struct {
	Token                 string
	Organization, Cluster string
	// Generation is which of the API's four forms of the node object is served; the zero value is the latest.
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

// SetNodes replaces the cluster's machines. Those in state deleted are not listed, as in the API.
func (s *Server) SetNodes(nodes ...spc.Record) {
	s.state.Lock()
	defer s.state.Unlock()
	s.state.nodes = slices.DeleteFunc(slices.Clone(nodes), func(r spc.Record) bool { return r.State == "deleted" })
}

// Nodes returns the cluster's machines as they are.
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

// Fail makes every request end in h, until it is called with nil. Failures has those that the API is known for.
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

// route is one path of the API; {name} matches any one segment, which handle gets in order.
type route struct {
	method, path string
	handle       func(w http.ResponseWriter, r *http.Request, args []string)
}

func (s *Server) routes() []route {
	const cluster = "orgs/{o}/clusters/{c}"
	return []route{
		{http.MethodGet, "rest-auth/user/", s.user},
		{http.MethodGet, "userprofile/{name}", s.user},
		{http.MethodGet, "orgs", s.organizations},
		{http.MethodGet, "orgs/{o}", s.organization},
		{http.MethodGet, "orgs/{o}/clusters", s.clusters},
		{http.MethodGet, cluster, s.cluster},
		{http.MethodGet, cluster + "/nodes", s.listNodes},
		{http.MethodGet, cluster + "/nodes/{n}", s.one(s.find, s.getNode)},
		{http.MethodDelete, cluster + "/nodes/{n}", s.one(s.find, s.deleteNode)},
		{http.MethodGet, cluster + "/nodes/{n}/can_delete", s.one(s.find, s.canDelete)},
		{http.MethodPost, cluster + "/add_node", s.addNode},
		{http.MethodGet, cluster + "/nodepools", s.listPools},
		{http.MethodPost, cluster + "/nodepools", s.createPool},
		{http.MethodGet, cluster + "/nodepools/{p}", s.one(s.findPool, s.getPool)},
		{http.MethodPost, cluster + "/nodepools/{p}", s.one(s.findPool, s.updatePool)},
		{http.MethodDelete, cluster + "/nodepools/{p}", s.one(s.findPool, s.deletePool)},
		{http.MethodPost, cluster + "/nodepools/{p}/add", s.one(s.findPool, s.addToPool)},
		{http.MethodGet, cluster + "/logs", s.listLogs},
		{http.MethodPost, cluster + "/buildlogs", s.addLog},
		{http.MethodGet, cluster + "/volumes", s.volumes},
	}
}

// ServeHTTP answers as the API did, errors included (Django REST Framework's texts with knox's tokens).
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.state.Lock()
	s.state.requests++
	failure := s.state.failure
	s.state.Unlock()
	if failure != nil {
		failure(w, r)
		return
	}
	if problem := s.unauthorized(r.Header.Get("Authorization")); problem != "" {
		w.Header().Set("WWW-Authenticate", "Bearer")
		refuse(w, http.StatusUnauthorized, problem)
		return
	}
	known := false
	for _, to := range s.routes() {
		args, is := match(to.path, r.URL.Path)
		known = known || is
		switch {
		case !is || to.method != r.Method:
		case len(args) > 0 && strings.HasPrefix(to.path, "orgs/") && args[0] != s.Organization,
			len(args) > 1 && args[1] != s.Cluster:
			refuse(w, http.StatusNotFound, "Not found.")
			return
		default:
			to.handle(w, r, args)
			return
		}
	}
	if known {
		refuse(w, http.StatusMethodNotAllowed, `Method "`+r.Method+`" not allowed.`)
		return
	}
	refuse(w, http.StatusNotFound, "Not found.")
}

// unauthorized is knox's answer to a header, empty if it is good.
func (s *Server) unauthorized(header string) string {
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

func match(pattern, path string) (args []string, is bool) {
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

func refuse(w http.ResponseWriter, code int, detail string) {
	answer(w, code, map[string]string{"detail": detail})
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}

// number reads a path's number; the API's numbers are above 0.
func number(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
