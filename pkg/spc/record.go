package spc

import (
	"strings"
	"time"
)

// Record is one machine as the SPC API returns it. It has the fields that all four
// generations of the API's node object share, and the later ones that identify a machine.
// The JSON names are the API's own.
type Record struct {
	PK      int64 `json:"pk"`
	Cluster int64 `json:"cluster"`
	// Pool is 0 for a master. The API has null there.
	Pool           int64  `json:"pool,omitempty"`
	PoolName       string `json:"pool_name,omitempty"`
	InstanceID     string `json:"instance_id"`
	ProviderNodeID string `json:"provider_node_id,omitempty"`
	Role           string `json:"role,omitempty"`
	GroupName      string `json:"group_name,omitempty"`
	PrivateIP      string `json:"private_ip,omitempty"`
	PublicIP       string `json:"public_ip,omitempty"`
	Location       string `json:"location,omitempty"`
	Zone           string `json:"zone,omitempty"`
	Size           string `json:"size,omitempty"`
	State          string `json:"state"`
	IsFailed       bool   `json:"is_failed,omitempty"`
	// Created is RFC 3339. It is not published to the agents, which do not need it.
	Created string `json:"created,omitempty"`
}

// Phase groups the states of the SPC API.
type Phase string

// The phases.
const (
	// Starting: draft or building. Most failures of SPC's builds leave a machine in this
	// phase.
	Starting Phase = "starting"
	// Up: provisioned or running.
	Up     Phase = "up"
	Failed Phase = "failed"
	// Going: deleting or deleted. Another machine may already have its addresses.
	Going Phase = "going"
	// Other is a state that the API does not document. It counts as live.
	Other Phase = "other"
)

// Phases returns all phases of a listed machine.
func Phases() []Phase { return []Phase{Starting, Up, Failed, Going, Other} }

// Phase returns the phase of the record's state.
func (r Record) Phase() Phase {
	switch state := strings.ToLower(strings.TrimSpace(r.State)); {
	case state == "deleting" || state == "deleted":
		return Going
	case state == "failed" || r.IsFailed:
		return Failed
	case state == "draft" || state == "building":
		return Starting
	case state == "provisioned" || state == "running":
		return Up
	}
	return Other
}

// IsLive reports whether the machine is neither deleted nor being deleted.
func (r Record) IsLive() bool { return r.Phase() != Going }

// HasMachine reports whether the record has a value that only the cloud can have assigned.
func (r Record) HasMachine() bool {
	return r.ProviderNodeID != "" || r.PrivateIP != "" || r.PublicIP != ""
}

// Pool is one node pool as the SPC API returns it. The API of 2016 has none.
type Pool struct {
	PK         int64  `json:"pk"`
	Name       string `json:"name"`
	InstanceID string `json:"instance_id"`
	Size       string `json:"instance_size"`
	Autoscaled bool   `json:"autoscaled"`
	MinCount   int    `json:"min_count"`
	MaxCount   int    `json:"max_count"`
	NodeCount  int    `json:"node_count"`
	Role       string `json:"role"`
	State      string `json:"state"`
}

// Group returns the name of the pool's autoscaling group, as the SPC provider of
// cluster-autoscaler forms it.
func (p Pool) Group() string {
	if p.InstanceID == "" {
		return ""
	}
	return "autoscaling-" + p.InstanceID
}

// Cluster is the cluster as the SPC API returns it.
type Cluster struct {
	PK         int64  `json:"pk"`
	Name       string `json:"name"`
	InstanceID string `json:"instance_id"`
	Provider   string `json:"provider"`
	State      string `json:"state"`
	IsFailed   bool   `json:"is_failed"`
}

// Inventory is the list of a cluster's machines. The leader publishes it and the agents
// read it.
type Inventory struct {
	Organization int64 `json:"organization"`
	Cluster      int64 `json:"cluster"`
	// AsOf is the creation time of a Node. Every Node created until then existed before the
	// list was requested. The list may show the address of a younger Node for the machine that
	// had the address before. AsOf is the time of a Node and not of the list, so that the list
	// stays equal while neither machines nor Nodes are added.
	AsOf    time.Time `json:"as_of"`
	Records []Record  `json:"records"`
}
