package spcserver

import (
	"cmp"
	"fmt"
	"maps"
	"strconv"

	"github.com/holdfast-dev/holdfast/pkg/spc"
)

// Advance moves every machine to its next state: draft, building, provisioned, running. A machine
// gets its addresses and its cloud ID when it is provisioned.
func (s *Server) Advance() {
	s.state.Lock()
	defer s.state.Unlock()
	for i := range s.state.nodes {
		r := &s.state.nodes[i]
		switch r.State {
		case "draft":
			r.State = "building"
		case "building":
			r.State = "provisioned"
			r.PrivateIP, r.PublicIP = fmt.Sprintf("10.138.0.%d", r.PK&255), fmt.Sprintf("203.0.113.%d", r.PK&255)
			r.ProviderNodeID = fmt.Sprintf("i-%017x", r.PK)
		case "provisioned":
			r.State = "running"
		}
	}
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

func (s *Server) nodesJSON() []map[string]any {
	list := []map[string]any{}
	for _, r := range s.state.nodes {
		list = append(list, s.nodeJSON(r))
	}
	return list
}

func (s *Server) poolsJSON() []map[string]any {
	list := []map[string]any{}
	for _, p := range s.state.pools {
		list = append(list, s.poolJSON(p))
	}
	return list
}

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
