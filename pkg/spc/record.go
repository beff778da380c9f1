package spc

import (
	"strings"
	"time"
)

// Record is one node as the SPC API tells it: the fields that all four generations of the API's node object share, and
// the later ones that identify it. Their names are the API's own.
type Record struct {
	PK      int64 `json:"pk"`
	Cluster int64 `json:"cluster"`
	// Pool is 0 for a master, for which the API has null.
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
	// Created is RFC 3339. It is not published to the agents, who have no use for it.
	Created string `json:"created,omitempty"`
}

// Phase is what a state means.
type Phase string

// The phases.
const (
	// Starting: draft or building. What goes wrong in SPC's builds mostly leaves a machine here for good.
	Starting Phase = "starting"
	// Up: provisioned or running.
	Up     Phase = "up"
	Failed Phase = "failed"
	// Going: deleting or deleted. Its addresses may be another's by now.
	Going Phase = "going"
	// Other is a state that the API does not document. It counts as live.
	Other Phase = "other"
)

// Phases are all of them.
func Phases() []Phase { return []Phase{Starting, Up, Failed, Going, Other} }

// Phase returns what the record's state means.
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

// Live says that the machine has not gone and is not going.
func (r Record) Live() bool { return r.Phase() != Going }

// Made says that the API knows something of the machine that only its cloud can have given it.
func (r Record) Made() bool {
	return r.ProviderNodeID != "" || r.PrivateIP != "" || r.PublicIP != ""
}

// Pool is one node pool as the SPC API tells it. The API of 2016 has none.
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

// Group is the name of the pool's autoscaling group, as the SPC provider of cluster-autoscaler forms it.
func (p Pool) Group() string {
	if p.InstanceID == "" {
		return ""
	}
	return "autoscaling-" + p.InstanceID
}

// Cluster is the cluster as the SPC API tells it.
type Cluster struct {
	PK         int64  `json:"pk"`
	Name       string `json:"name"`
	InstanceID string `json:"instance_id"`
	Provider   string `json:"provider"`
	State      string `json:"state"`
	IsFailed   bool   `json:"is_failed"`
}

// Inventory is the list of a cluster's machines, as the leader publishes it and agents read it.
type Inventory struct {
	Organization int64 `json:"organization"`
	Cluster      int64 `json:"cluster"`
	// AsOf is the creation time of a Node: every Node created until then was there before SPC was asked for this list. A
	// younger one may have an address that the list still shows for the machine which had it before. Being the time of a
	// Node and not of the list, it stands still while neither machines nor Nodes come, and the list with it.
	AsOf    time.Time `json:"as_of"`
	Records []Record  `json:"records"`
}
