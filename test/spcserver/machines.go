package spcserver

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/pkg/spc"
)

// Advance moves every machine to its next state: draft, building, provisioned, running;
// deleting, deleted, removed. A machine gets its addresses and its cloud ID when it is
// provisioned.
func (s *Server) Advance() {
	s.state.Lock()
	defer s.state.Unlock()
	left := s.state.nodes[:0]
	for _, r := range s.state.nodes {
		if !s.state.stuck[r.PK] {
			s.advance(&r)
		}
		if r.State != "" {
			left = append(left, r)
		}
	}
	s.state.nodes = left
}

func (s *Server) advance(r *spc.Record) {
	switch r.State {
	case "draft":
		r.State = "building"
	case "building":
		r.State = "provisioned"
		r.PrivateIP = cmp.Or(r.PrivateIP, fmt.Sprintf("10.138.%d.%d", r.PK>>8&255, r.PK&255))
		r.PublicIP = cmp.Or(r.PublicIP, fmt.Sprintf("203.0.%d.%d", r.PK>>8&255, r.PK&255))
		r.ProviderNodeID = cmp.Or(r.ProviderNodeID, fmt.Sprintf("i-%017x", r.PK))
	case "provisioned":
		r.State = "running"
	case "deleting":
		r.State = "deleted"
	case "deleted":
		r.State = ""
	}
}

// SetStuck keeps a machine in its state, as most failures of SPC's builds did, until it is
// called with false. A stuck machine can be deleted.
func (s *Server) SetStuck(pk int64, stuck bool) {
	s.state.Lock()
	defer s.state.Unlock()
	if s.state.stuck == nil {
		s.state.stuck = map[int64]bool{}
	}
	s.state.stuck[pk] = stuck
}

// MarkFailed sets the state and the failure flag of a machine.
func (s *Server) MarkFailed(pk int64) {
	s.state.Lock()
	defer s.state.Unlock()
	if at := s.findNode(pk); at >= 0 {
		s.state.nodes[at].State, s.state.nodes[at].IsFailed = "failed", true
	}
}

// AddNodes adds machines in state draft, as a POST to add_node does, and returns them.
func (s *Server) AddNodes(count int, like spc.Record) []spc.Record {
	s.state.Lock()
	defer s.state.Unlock()
	return s.addNodes(count, like)
}

func (s *Server) addNodes(count int, like spc.Record) []spc.Record {
	var made []spc.Record
	next := int64(1000)
	for _, r := range s.state.nodes {
		next = max(next, r.PK)
	}
	for range count {
		next++
		r := like
		r.PK, r.Cluster, r.State, r.IsFailed = next, parseID(s.Cluster), "draft", false
		r.Role = cmp.Or(r.Role, "worker")
		r.InstanceID = fmt.Sprintf("%s-%s-%d", s.instanceID(), r.Role, next)
		r.Created = time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")
		made = append(made, r)
	}
	s.state.nodes = append(slices.Clip(s.state.nodes), made...)
	return made
}

// findNode returns the position of a machine in the list, or -1. The caller holds the
// mutex.
func (s *Server) findNode(pk int64) int {
	return slices.IndexFunc(s.state.nodes, func(r spc.Record) bool { return r.PK == pk })
}

func (s *Server) findPool(pk int64) int {
	return slices.IndexFunc(s.state.pools, func(p spc.Pool) bool { return p.PK == pk })
}

// isInitialMaster reports whether a machine is the cluster's first master, which the API
// does not delete.
func (s *Server) isInitialMaster(at int) bool {
	return at == slices.IndexFunc(s.state.nodes, func(r spc.Record) bool { return strings.EqualFold(r.Role, "master") })
}

// Generation is a form of the API's node object.
type Generation int

// The generations, the latest first.
const (
	// Form2019 is the form in the documentation and SDK of 2019 and 2020.
	Form2019 Generation = iota
	// Form201712 is the form in the documentation of December 2017.
	Form201712
	// Form201710 is the form in the SDK of October 2017.
	Form201710
	// Form2016 is the first form. It has no pools, and no group before October of that year.
	Form2016
)

// Generations returns all generations.
func Generations() []Generation { return []Generation{Form2019, Form201712, Form201710, Form2016} }

// nodeJSON returns a record in the server's generation.
func (s *Server) nodeJSON(r spc.Record) map[string]any {
	created := cmp.Or(r.Created, "2016-09-27T22:09:57.091286Z")
	shown := map[string]any{
		"pk": r.PK, "cluster": cmp.Or(r.Cluster, parseID(s.Cluster)), "instance_id": r.InstanceID, "role": r.Role,
		"private_ip": r.PrivateIP, "public_ip": r.PublicIP, "platform": "coreos", "image": "coreos-stable",
		"location": r.Location, "size": r.Size, "state": r.State, "created": created, "updated": created,
		"group_name": r.GroupName,
	}
	if s.Generation == Form2016 {
		shown["name"] = ""
		return shown
	}
	maps.Copy(shown, map[string]any{
		"pool": nil, "pool_name": r.PoolName, "channel": "stable", "provider_subnet_id": "", "provider_subnet_cidr": "",
	})
	if r.Pool != 0 {
		shown["pool"] = r.Pool
	}
	if s.Generation <= Form201712 {
		shown["is_failed"] = r.IsFailed
	}
	if s.Generation == Form2019 {
		etcdState := map[bool]string{true: "kube_etcd", false: "none"}[r.Role == "master"]
		maps.Copy(shown, map[string]any{
			"provider_node_id": r.ProviderNodeID, "etcd_state": etcdState, "root_disk_size": 50,
			"gpu_instance_size": "", "gpu_core_count": nil, "zone": r.Zone,
		})
	}
	return shown
}

// poolJSON returns a node pool. Its cpu and memory are texts.
func (s *Server) poolJSON(p spc.Pool) map[string]any {
	shown := map[string]any{
		"pk": p.PK, "cluster": parseID(s.Cluster), "name": p.Name, "instance_id": p.InstanceID, "instance_size": p.Size,
		"platform": "coreos", "channel": "stable", "zone": "", "provider_subnet_id": "", "provider_subnet_cidr": "",
		"node_count": p.NodeCount, "autoscaled": p.Autoscaled, "min_count": p.MinCount, "max_count": p.MaxCount, "labels": "",
		"role": cmp.Or(p.Role, "worker"), "state": cmp.Or(p.State, "active"), "is_default": false,
		"root_disk_size": p.RootDiskSize,
	}
	if p.CPU != 0 {
		shown["cpu"], shown["memory"] = fmt.Sprint(p.CPU), fmt.Sprint(p.Memory)
	}
	return shown
}

// clusterJSON returns the cluster in the API's short form.
func (s *Server) clusterJSON() map[string]any {
	masters, workers := 0, 0
	for _, r := range s.state.nodes {
		if r.Role == "master" {
			masters++
		} else {
			workers++
		}
	}
	return map[string]any{
		"pk": parseID(s.Cluster), "name": "Misty Fire", "org": parseID(s.Organization), "instance_id": s.instanceID(),
		"provider": "aws", "region": "us-west-2", "zone": "us-west-2a", "state": "running", "is_failed": false,
		"node_count": masters + workers, "master_count": masters, "worker_count": workers, "platform": "coreos",
		"channel": "stable", "etcd_type": "classic", "solutions": []any{}, "created": "2016-09-27T22:09:57.091286Z",
	}
}

// instanceID returns the cluster's instance ID. The instance IDs of its machines begin with
// it.
func (s *Server) instanceID() string { return "spc" + strconv.FormatInt(parseID(s.Cluster), 36) }
