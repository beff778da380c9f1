package spcserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"github.com/holdfast-dev/holdfast/pkg/spc"
)

func (s *Server) user(w http.ResponseWriter, _ *http.Request, _ []string) {
	answer(w, http.StatusOK, map[string]any{
		"pk": 1, "username": "owner", "email": "owner@example.org", "first_name": "", "last_name": "",
		"org_memberships": []any{map[string]any{"org": map[string]any{"pk": number(s.Organization), "name": "Misty Fire"}, "role": "Owner"}},
	})
}

func (s *Server) organizations(w http.ResponseWriter, _ *http.Request, _ []string) {
	answer(w, http.StatusOK, []any{map[string]any{"pk": number(s.Organization), "name": "Misty Fire"}})
}

func (s *Server) organization(w http.ResponseWriter, _ *http.Request, _ []string) {
	answer(w, http.StatusOK, map[string]any{"pk": number(s.Organization), "name": "Misty Fire"})
}

func (s *Server) clusters(w http.ResponseWriter, _ *http.Request, _ []string) {
	s.state.Lock()
	defer s.state.Unlock()
	answer(w, http.StatusOK, []any{s.shownCluster()})
}

func (s *Server) cluster(w http.ResponseWriter, _ *http.Request, _ []string) {
	s.state.Lock()
	defer s.state.Unlock()
	answer(w, http.StatusOK, s.shownCluster())
}

func (s *Server) listNodes(w http.ResponseWriter, _ *http.Request, _ []string) {
	s.state.Lock()
	defer s.state.Unlock()
	answer(w, http.StatusOK, s.shown(s.state.nodes))
}

// shown are records as the API shows them: all that are under way or running; those that have gone are not listed.
func (s *Server) shown(records []spc.Record) []map[string]any {
	list := []map[string]any{}
	for _, r := range records {
		if r.State != "deleted" {
			list = append(list, s.node(r))
		}
	}
	return list
}

// one answers about the record that the path names, which handle is given the place of, with the state locked.
func (s *Server) one(find func(int64) int, handle func(http.ResponseWriter, *http.Request, int)) func(http.ResponseWriter, *http.Request, []string) {
	return func(w http.ResponseWriter, r *http.Request, args []string) {
		s.state.Lock()
		defer s.state.Unlock()
		at := find(number(args[2]))
		if at < 0 {
			refuse(w, http.StatusNotFound, "Not found.")
			return
		}
		handle(w, r, at)
	}
}

func (s *Server) getNode(w http.ResponseWriter, _ *http.Request, at int) {
	answer(w, http.StatusOK, s.node(s.state.nodes[at]))
}

const essential = "Initial master node is essential to the cluster and can't be removed."

func (s *Server) canDelete(w http.ResponseWriter, _ *http.Request, at int) {
	if s.initial(at) {
		refuse(w, http.StatusBadRequest, essential)
		return
	}
	answer(w, http.StatusOK, map[string]bool{"eligible": true})
}

func (s *Server) deleteNode(w http.ResponseWriter, _ *http.Request, at int) {
	if s.initial(at) {
		refuse(w, http.StatusBadRequest, essential)
		return
	}
	s.state.nodes[at].State = "deleting"
	delete(s.state.stuck, s.state.nodes[at].PK)
	w.WriteHeader(http.StatusNoContent)
}

// addition is the body of the two ways to add machines.
type addition struct {
	Count int    `json:"node_count"`
	Size  string `json:"size"`
	Group string `json:"group"`
	Role  string `json:"role"`
	Pool  int64  `json:"node_pool"`
}

// read decodes a body, or answers that it cannot.
func read(w http.ResponseWriter, r *http.Request, into any) bool {
	if err := json.NewDecoder(r.Body).Decode(into); err != nil {
		refuse(w, http.StatusBadRequest, fmt.Sprintf("JSON parse error - %v", err))
		return false
	}
	return true
}

func (s *Server) addNode(w http.ResponseWriter, r *http.Request, _ []string) {
	var asked addition
	if !read(w, r, &asked) {
		return
	}
	s.state.Lock()
	defer s.state.Unlock()
	s.make(w, asked, -1)
}

func (s *Server) addToPool(w http.ResponseWriter, r *http.Request, at int) {
	var asked addition
	if read(w, r, &asked) {
		s.make(w, asked, at)
	}
}

func (s *Server) make(w http.ResponseWriter, asked addition, pool int) {
	if asked.Count <= 0 {
		answer(w, http.StatusBadRequest, map[string][]string{"node_count": {"A valid integer is required."}})
		return
	}
	like := spc.Record{Role: asked.Role, GroupName: asked.Group, Size: asked.Size}
	if pool < 0 {
		pool = s.findPool(asked.Pool)
	}
	if pool >= 0 {
		p := &s.state.pools[pool]
		like.Pool, like.PoolName, like.Size = p.PK, p.Name, or(asked.Size, p.Size)
		if p.Autoscaled {
			like.GroupName = p.Group()
		}
		p.NodeCount += asked.Count
	}
	answer(w, http.StatusCreated, s.shown(s.add(asked.Count, like)))
}

func (s *Server) listPools(w http.ResponseWriter, _ *http.Request, _ []string) {
	if s.Generation == Form2016 {
		refuse(w, http.StatusNotFound, "Not found.")
		return
	}
	s.state.Lock()
	defer s.state.Unlock()
	list := []map[string]any{}
	for _, p := range s.state.pools {
		list = append(list, s.pool(p))
	}
	answer(w, http.StatusOK, list)
}

func (s *Server) getPool(w http.ResponseWriter, _ *http.Request, at int) {
	answer(w, http.StatusOK, s.pool(s.state.pools[at]))
}

func (s *Server) createPool(w http.ResponseWriter, r *http.Request, _ []string) {
	var p spc.Pool
	if !read(w, r, &p) {
		return
	}
	s.state.Lock()
	defer s.state.Unlock()
	p.PK = 1
	for _, other := range s.state.pools {
		p.PK = max(p.PK, other.PK+1)
	}
	p.InstanceID, p.State = fmt.Sprintf("%s-pool-%d", s.instance(), p.PK), "draft"
	s.state.pools = append(s.state.pools, p)
	answer(w, http.StatusAccepted, s.pool(p))
}

func (s *Server) updatePool(w http.ResponseWriter, r *http.Request, at int) {
	p := s.state.pools[at]
	if read(w, r, &p) {
		p.PK, p.InstanceID = s.state.pools[at].PK, s.state.pools[at].InstanceID
		s.state.pools[at] = p
		answer(w, http.StatusOK, s.pool(p))
	}
}

func (s *Server) deletePool(w http.ResponseWriter, _ *http.Request, at int) {
	s.state.pools = slices.Delete(s.state.pools, at, at+1)
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) listLogs(w http.ResponseWriter, _ *http.Request, _ []string) {
	s.state.Lock()
	defer s.state.Unlock()
	answer(w, http.StatusOK, append([]map[string]any{}, s.state.logs...))
}

func (s *Server) addLog(w http.ResponseWriter, r *http.Request, _ []string) {
	var line map[string]any
	if !read(w, r, &line) {
		return
	}
	s.state.Lock()
	defer s.state.Unlock()
	s.state.logs = append(s.state.logs, line)
	answer(w, http.StatusOK, line)
}

func (s *Server) volumes(w http.ResponseWriter, _ *http.Request, _ []string) {
	answer(w, http.StatusOK, []any{})
}
