package spc

// Record is one node as the SPC API tells it: the fields that all four generations of the API's node object share, and
// the later ones that identify it. Their names are the API's own.
type Record struct {
	PK             int64  `json:"pk"`
	Cluster        int64  `json:"cluster"`
	Pool           *int64 `json:"pool,omitempty"`
	PoolName       string `json:"pool_name,omitempty"`
	InstanceID     string `json:"instance_id"`
	ProviderNodeID string `json:"provider_node_id,omitempty"`
	Role           string `json:"role,omitempty"`
	GroupName      string `json:"group_name,omitempty"`
	PrivateIP      string `json:"private_ip,omitempty"`
	PublicIP       string `json:"public_ip,omitempty"`
	Size           string `json:"size,omitempty"`
	State          string `json:"state"`
	IsFailed       bool   `json:"is_failed,omitempty"`
}

// Live says that the machine has not gone and is not going. The addresses of one that is may belong to another by now.
// States outside the documented list (draft, building, provisioned, running, failed, deleting, deleted) count as live.
func (r Record) Live() bool {
	return r.State != "deleting" && r.State != "deleted"
}

// Inventory is the list of a cluster's machines. It carries no time, so that it changes only when a machine does.
type Inventory struct {
	Organization int64    `json:"organization"`
	Cluster      int64    `json:"cluster"`
	Records      []Record `json:"records"`
}
