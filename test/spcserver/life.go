package spcserver

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/pkg/spc"
)

// Step moves every machine one state on in its life: draft, building, provisioned (here it gets its addresses and its name
// at the cloud), running; deleting, deleted, gone.
func (s *Server) Step() {
	s.state.Lock()
	defer s.state.Unlock()
	left := s.state.nodes[:0]
	for _, r := range s.state.nodes {
		if !s.state.stuck[r.PK] {
			s.step(&r)
		}
		if r.State != "" {
			left = append(left, r)
		}
	}
	s.state.nodes = left
}

func (s *Server) step(r *spc.Record) {
	switch r.State {
	case "draft":
		r.State = "building"
	case "building":
		r.State = "provisioned"
		r.PrivateIP = or(r.PrivateIP, fmt.Sprintf("10.138.%d.%d", r.PK>>8&255, r.PK&255))
		r.PublicIP = or(r.PublicIP, fmt.Sprintf("203.0.%d.%d", r.PK>>8&255, r.PK&255))
		r.ProviderNodeID = or(r.ProviderNodeID, fmt.Sprintf("i-%017x", r.PK))
	case "provisioned":
		r.State = "running"
	case "deleting":
		r.State = "deleted"
	case "deleted":
		r.State = ""
	}
}

// Stick leaves a machine in the state in which it is, as failures of SPC's builds mostly did, until it is called with
// false. A machine that is deleted goes all the same.
func (s *Server) Stick(pk int64, stuck bool) {
	s.state.Lock()
	defer s.state.Unlock()
	if s.state.stuck == nil {
		s.state.stuck = map[int64]bool{}
	}
	s.state.stuck[pk] = stuck
}

// Break marks a machine as failed, in its state and by its flag.
func (s *Server) Break(pk int64) {
	s.state.Lock()
	defer s.state.Unlock()
	if at := s.find(pk); at >= 0 {
		s.state.nodes[at].State, s.state.nodes[at].IsFailed = "failed", true
	}
}

// Add makes machines in state draft, as a POST to add_node does, and returns them.
func (s *Server) Add(count int, like spc.Record) []spc.Record {
	s.state.Lock()
	defer s.state.Unlock()
	return s.add(count, like)
}

func (s *Server) add(count int, like spc.Record) []spc.Record {
	var made []spc.Record
	next := int64(1000)
	for _, r := range s.state.nodes {
		next = max(next, r.PK)
	}
	for range count {
		next++
		r := like
		r.PK, r.Cluster, r.State, r.IsFailed = next, number(s.Cluster), "draft", false
		r.Role = or(r.Role, "worker")
		r.InstanceID = fmt.Sprintf("%s-%s-%d", s.instance(), r.Role, next)
		r.Created = time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")
		made = append(made, r)
	}
	s.state.nodes = append(slices.Clip(s.state.nodes), made...)
	return made
}

// find returns where a machine is in the list, -1 if it is not. The caller holds the mutex.
func (s *Server) find(pk int64) int {
	return slices.IndexFunc(s.state.nodes, func(r spc.Record) bool { return r.PK == pk })
}

func (s *Server) findPool(pk int64) int {
	return slices.IndexFunc(s.state.pools, func(p spc.Pool) bool { return p.PK == pk })
}

// initial says that a machine is the cluster's first master, which the API does not delete.
func (s *Server) initial(at int) bool {
	first := slices.IndexFunc(s.state.nodes, func(r spc.Record) bool { return strings.EqualFold(r.Role, "master") })
	return at == first
}
