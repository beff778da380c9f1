package spc

import (
	"strconv"
	"strings"
)

// Labels that the SPC provider of cluster-autoscaler reads (InstanceIDLabel, NodeGroupLabel) and those that SPC's own
// node builds carried beside them; see docs/node-contract.md.
const (
	InstanceIDLabel = "stackpoint.io/instance_id"
	NodeIDLabel     = "stackpoint.io/node_id"
	NodeGroupLabel  = "stackpoint.io/node_group"
	NodePoolLabel   = "stackpoint.io/node_pool"
	RoleLabel       = "stackpoint.io/role"
	ClusterIDLabel  = "stackpoint.io/cluster_id"
	PrivateIPLabel  = "stackpoint.io/private_ip"
	SizeLabel       = "stackpoint.io/size"
)

// labelSet are the labels of a record; those that it says nothing of are empty, and so is one that a label cannot hold as
// it is though an autoscaler compares it letter by letter: made to fit, it might be another machine's or group's. A group
// is never invented: with the SPC provider 0.4 a node_group label makes the node one that may be removed.
func labelSet(r Record) map[string]string {
	return map[string]string{
		InstanceIDLabel: exactly(r.InstanceID),
		NodeIDLabel:     strconv.FormatInt(r.PK, 10),
		NodeGroupLabel:  exactly(r.GroupName),
		NodePoolLabel:   labelValue(r.PoolName),
		RoleLabel:       labelValue(r.Role),
		ClusterIDLabel:  strconv.FormatInt(r.Cluster, 10),
		PrivateIPLabel:  labelValue(r.PrivateIP),
		SizeLabel:       labelValue(r.Size),
	}
}

// exactly is s if a label can hold it, otherwise nothing.
func exactly(s string) string {
	if labelValue(s) == s {
		return s
	}
	return ""
}

// labelValue makes a label's value of a text as SPC's own builds did: what a label may not hold becomes a hyphen
// ("Default Worker Pool" is Default-Worker-Pool), at most 63 bytes, a letter or digit at both ends.
func labelValue(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '_', r == '-':
			return r
		}
		return '-'
	}, strings.TrimSpace(s))
	return strings.TrimRight(strings.TrimLeft(s, "-_.")[:min(len(strings.TrimLeft(s, "-_.")), 63)], "-_.")
}
