package spcserver

import (
	"maps"
	"strconv"

	"github.com/holdfast-dev/holdfast/pkg/spc"
)

// Generation is one of the forms that the API's node object has had.
type Generation int

// The generations, latest first.
const (
	// Form2019 is that of the documentation and SDK of 2019 and 2020.
	Form2019 Generation = iota
	// Form201712 is that of the documentation of December 2017.
	Form201712
	// Form201710 is that of the SDK of October 2017.
	Form201710
	// Form2016 is the first one: no pools, and no group before October of that year.
	Form2016
)

// Generations are all of them.
func Generations() []Generation { return []Generation{Form2019, Form201712, Form201710, Form2016} }

// node is a record as this generation shows it.
func (s *Server) node(r spc.Record) map[string]any {
	created := r.Created
	if created == "" {
		created = "2016-09-27T22:09:57.091286Z"
	}
	shown := map[string]any{
		"pk": r.PK, "cluster": or(r.Cluster, number(s.Cluster)), "instance_id": r.InstanceID, "role": r.Role,
		"private_ip": r.PrivateIP, "public_ip": r.PublicIP, "platform": "coreos", "image": "coreos-stable", "location": r.Location,
		"size": r.Size, "state": r.State, "created": created, "updated": created, "group_name": r.GroupName,
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
		maps.Copy(shown, map[string]any{
			"provider_node_id": r.ProviderNodeID, "etcd_state": map[bool]string{true: "kube_etcd", false: "none"}[r.Role == "master"],
			"root_disk_size": 50, "gpu_instance_size": "", "gpu_core_count": nil, "zone": r.Zone,
		})
	}
	return shown
}

// pool is a node pool as the API shows it.
func (s *Server) pool(p spc.Pool) map[string]any {
	return map[string]any{
		"pk": p.PK, "cluster": number(s.Cluster), "name": p.Name, "instance_id": p.InstanceID, "instance_size": p.Size,
		"platform": "coreos", "channel": "stable", "zone": "", "provider_subnet_id": "", "provider_subnet_cidr": "",
		"node_count": p.NodeCount, "autoscaled": p.Autoscaled, "min_count": p.MinCount, "max_count": p.MaxCount, "labels": "",
		"role": or(p.Role, "worker"), "state": or(p.State, "active"), "is_default": false,
	}
}

// shownCluster is the cluster in the API's short form.
func (s *Server) shownCluster() map[string]any {
	masters, workers := 0, 0
	for _, r := range s.state.nodes {
		if r.Role == "master" {
			masters++
		} else {
			workers++
		}
	}
	return map[string]any{
		"pk": number(s.Cluster), "name": "Misty Fire", "org": number(s.Organization), "instance_id": s.instance(), "provider": "aws",
		"region": "us-west-2", "zone": "us-west-2a", "state": "running", "is_failed": false, "node_count": masters + workers,
		"master_count": masters, "worker_count": workers, "platform": "coreos", "channel": "stable", "etcd_type": "classic",
		"solutions": []any{}, "created": "2016-09-27T22:09:57.091286Z",
	}
}

// instance is the cluster's own instance ID, with which those of its machines begin.
func (s *Server) instance() string { return "spc" + strconv.FormatInt(number(s.Cluster), 36) }

func or[T comparable](value, otherwise T) T {
	var none T
	if value == none {
		return otherwise
	}
	return value
}
