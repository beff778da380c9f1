package spcserver

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"github.com/holdfast-dev/holdfast/pkg/spc"
)

func (s *Server) getUser(w http.ResponseWriter, _ *http.Request, _ []string) {
	writeJSON(w, http.StatusOK, map[string]any{
		"pk": 1, "username": "owner", "email": "owner@example.org", "first_name": "", "last_name": "",
		"org_memberships": []any{map[string]any{"org": s.organizationJSON(), "role": "Owner"}},
	})
}

func (s *Server) listOrganizations(w http.ResponseWriter, _ *http.Request, _ []string) {
	writeJSON(w, http.StatusOK, []any{s.organizationJSON()})
}

func (s *Server) getOrganization(w http.ResponseWriter, _ *http.Request, _ []string) {
	writeJSON(w, http.StatusOK, s.organizationJSON())
}

func (s *Server) organizationJSON() map[string]any {
	return map[string]any{"pk": parseID(s.Organization), "name": "Misty Fire"}
}

func (s *Server) listClusters(w http.ResponseWriter, _ *http.Request, _ []string) {
	writeJSON(w, http.StatusOK, []any{s.clusterJSON()})
}

func (s *Server) getCluster(w http.ResponseWriter, _ *http.Request, _ []string) {
	writeJSON(w, http.StatusOK, s.clusterJSON())
}

func (s *Server) listNodes(w http.ResponseWriter, _ *http.Request, _ []string) {
	writeJSON(w, http.StatusOK, s.nodesJSON(s.state.nodes))
}

// nodesJSON returns the records that the API lists, which are all but the deleted ones.
func (s *Server) nodesJSON(records []spc.Record) []map[string]any {
	list := []map[string]any{}
	for _, r := range records {
		if r.State != "deleted" {
			list = append(list, s.nodeJSON(r))
		}
	}
	return list
}

// withItem returns a handler that calls handle with the position of the object in the path.
func (s *Server) withItem(
	find func(int64) int, handle func(http.ResponseWriter, *http.Request, int),
) func(http.ResponseWriter, *http.Request, []string) {
	return func(w http.ResponseWriter, r *http.Request, args []string) {
		at := find(parseID(args[2]))
		if at < 0 {
			writeError(w, http.StatusNotFound, "Not found.")
			return
		}
		handle(w, r, at)
	}
}

func (s *Server) getNode(w http.ResponseWriter, _ *http.Request, at int) {
	writeJSON(w, http.StatusOK, s.nodeJSON(s.state.nodes[at]))
}

// essential is the API's error for the deletion of the first master.
const essential = "Initial master node is essential to the cluster and can't be removed."

func (s *Server) canDelete(w http.ResponseWriter, _ *http.Request, at int) {
	if s.isInitialMaster(at) {
		writeError(w, http.StatusBadRequest, essential)
		return
	}
	writeJSON(w, http.StatusOK, map[string]bool{"eligible": true})
}

func (s *Server) deleteNode(w http.ResponseWriter, _ *http.Request, at int) {
	if s.isInitialMaster(at) {
		writeError(w, http.StatusBadRequest, essential)
		return
	}
	s.state.nodes[at].State = "deleting"
	delete(s.state.stuck, s.state.nodes[at].PK)
	w.WriteHeader(http.StatusNoContent)
}

// addRequest is the body of both requests that add machines.
type addRequest struct {
	Count int    `json:"node_count"`
	Size  string `json:"size"`
	Group string `json:"group"`
	Role  string `json:"role"`
	Pool  int64  `json:"node_pool"`
}

// decodeBody decodes a body, or writes an error and returns false.
func decodeBody(w http.ResponseWriter, r *http.Request, into any) bool {
	if err := json.NewDecoder(r.Body).Decode(into); err != nil {
		writeError(w, http.StatusBadRequest, fmt.Sprintf("JSON parse error - %v", err))
		return false
	}
	return true
}

func (s *Server) postNode(w http.ResponseWriter, r *http.Request, _ []string) {
	var request addRequest
	if decodeBody(w, r, &request) {
		s.addMachines(w, request, -1)
	}
}

func (s *Server) postPoolNodes(w http.ResponseWriter, r *http.Request, at int) {
	var request addRequest
	if decodeBody(w, r, &request) {
		s.addMachines(w, request, at)
	}
}

func (s *Server) addMachines(w http.ResponseWriter, request addRequest, pool int) {
	if request.Count <= 0 {
		writeJSON(w, http.StatusBadRequest, map[string][]string{"node_count": {"A valid integer is required."}})
		return
	}
	like := spc.Record{Role: request.Role, GroupName: request.Group, Size: request.Size}
	if pool < 0 {
		pool = s.findPool(request.Pool)
	}
	if pool >= 0 {
		p := &s.state.pools[pool]
		like.Pool, like.PoolName, like.Size = p.PK, p.Name, cmp.Or(request.Size, p.Size)
		if p.Autoscaled {
			like.GroupName = p.Group()
		}
		p.NodeCount += request.Count
	}
	writeJSON(w, http.StatusCreated, s.nodesJSON(s.addNodes(request.Count, like)))
}

func (s *Server) listPools(w http.ResponseWriter, _ *http.Request, _ []string) {
	if s.Generation == Form2016 {
		writeError(w, http.StatusNotFound, "Not found.")
		return
	}
	list := []map[string]any{}
	for _, p := range s.state.pools {
		list = append(list, s.poolJSON(p))
	}
	writeJSON(w, http.StatusOK, list)
}

func (s *Server) getPool(w http.ResponseWriter, _ *http.Request, at int) {
	writeJSON(w, http.StatusOK, s.poolJSON(s.state.pools[at]))
}

func (s *Server) postPool(w http.ResponseWriter, r *http.Request, _ []string) {
	var p spc.Pool
	if !decodeBody(w, r, &p) {
		return
	}
	p.PK = 1
	for _, other := range s.state.pools {
		p.PK = max(p.PK, other.PK+1)
	}
	p.InstanceID, p.State = fmt.Sprintf("%s-pool-%d", s.instanceID(), p.PK), "draft"
	s.state.pools = append(s.state.pools, p)
	writeJSON(w, http.StatusAccepted, s.poolJSON(p))
}

func (s *Server) updatePool(w http.ResponseWriter, r *http.Request, at int) {
	p := s.state.pools[at]
	if decodeBody(w, r, &p) {
		p.PK, p.InstanceID = s.state.pools[at].PK, s.state.pools[at].InstanceID
		s.state.pools[at] = p
		writeJSON(w, http.StatusOK, s.poolJSON(p))
	}
}

func (s *Server) deletePool(w http.ResponseWriter, _ *http.Request, at int) {
	s.state.pools = slices.Delete(s.state.pools, at, at+1)
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) listLogs(w http.ResponseWriter, _ *http.Request, _ []string) {
	writeJSON(w, http.StatusOK, append([]map[string]any{}, s.state.logs...))
}

func (s *Server) postLog(w http.ResponseWriter, r *http.Request, _ []string) {
	var line map[string]any
	if !decodeBody(w, r, &line) {
		return
	}
	s.state.logs = append(s.state.logs, line)
	writeJSON(w, http.StatusOK, line)
}

func (s *Server) listVolumes(w http.ResponseWriter, _ *http.Request, _ []string) {
	writeJSON(w, http.StatusOK, []any{})
}
