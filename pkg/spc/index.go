// Package spc finds the StackPointCloud (SPC) machine of a Node and decides which labels
// and annotations the Node gets from it.
//
// [NewIndex] indexes an [Inventory], the list of machines. [Index.Find] returns the [Match]
// of one Node, [NewReport] the labels and annotations that the Node lacks. [Summarize]
// compares the whole list with all Nodes.
//
// The package is pure: it does no I/O and reads no clock. A Node matches if its evidence
// points to exactly one live record. In case of doubt it gets no labels, and the [Match]
// explains why.
package spc

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Index is an Inventory prepared for lookups. A nil Index stands for a list that has not
// been read.
type Index struct {
	inventory *Inventory
	// records are those of the inventory without repetitions.
	records []*Record
	// live holds the live records by the values of their fields: another machine may already have
	// the addresses of a machine that was deleted.
	live map[fieldValue][]*Record
	// ids holds all records by their exact instance ID. An autoscaler finds the machine to
	// delete by that ID and does not check that the record is live.
	ids map[string][]*Record
}

// fieldValue is a value by which a Node and a record are found to be of the same machine.
type fieldValue struct{ field, value string }

// NewIndex returns the index of an inventory, or nil for nil. Do not change the inventory
// later.
func NewIndex(i *Inventory) *Index {
	if i == nil {
		return nil
	}
	x := &Index{inventory: i, live: map[fieldValue][]*Record{}, ids: map[string][]*Record{}}
	known := make(map[Record]bool, len(i.Records))
	for at := range i.Records {
		r := &i.Records[at]
		if known[*r] {
			continue
		}
		known[*r] = true
		x.records = append(x.records, r)
		x.ids[r.InstanceID] = append(x.ids[r.InstanceID], r)
		if r.isLive() {
			x.add(r, byProvider, lastSegment(r.ProviderNodeID))
			x.add(r, byInstanceID, strings.ToLower(r.InstanceID))
			x.add(r, byPrivateIP, parseAddresses(r.PrivateIP)...)
			x.add(r, byPublicIP, parseAddresses(r.PublicIP)...)
		}
	}
	return x
}

func (x *Index) add(r *Record, field string, values ...string) {
	for _, value := range values {
		key := fieldValue{field, value}
		if value != "" && !slices.Contains(x.live[key], r) {
			x.live[key] = append(x.live[key], r)
		}
	}
}

// find returns the live records with any of the values in the field, each once.
func (x *Index) find(field string, values ...string) []*Record {
	var found []*Record
	for _, value := range values {
		for _, r := range x.live[fieldValue{field, value}] {
			if !slices.Contains(found, r) {
				found = append(found, r)
			}
		}
	}
	return found
}

// nodeAddresses returns a Node's addresses of one type, of both IP families.
func nodeAddresses(n *corev1.Node, of corev1.NodeAddressType) []string {
	var found []string
	for _, a := range n.Status.Addresses {
		if a.Type == of {
			found = append(found, parseAddresses(a.Address)...)
		}
	}
	return found
}

// parseAddresses returns the addresses in a text in canonical form. It accepts IPv4 in
// IPv6, a prefix length, a zone, and several addresses with commas between them. It leaves
// out addresses that every host has, such as loopback and link-local ones, because they
// identify no machine.
func parseAddresses(text string) []string {
	var found []string
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' || r == ';' }) {
		word, _, _ = strings.Cut(word, "/")
		addr, err := netip.ParseAddr(word)
		if err != nil {
			continue
		}
		addr = addr.Unmap().WithZone("")
		if addr.IsUnspecified() || addr.IsLoopback() || addr.IsLinkLocalUnicast() || addr.IsMulticast() {
			continue
		}
		found = append(found, addr.String())
	}
	return found
}

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

// isLive reports whether the machine is neither deleted nor being deleted.
func (r Record) isLive() bool { return r.Phase() != Going }

// hasMachine reports whether the record has a value that only the cloud can have assigned.
func (r Record) hasMachine() bool {
	return r.ProviderNodeID != "" || r.PrivateIP != "" || r.PublicIP != ""
}

func (r Record) isWithoutMachine() bool { return r.Phase() == Starting && !r.hasMachine() }

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
	// CPU is in cores, Memory in MiB and RootDiskSize in GiB. Most responses lack them.
	CPU          number `json:"cpu"`
	Memory       number `json:"memory"`
	RootDiskSize number `json:"root_disk_size"`
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

// Inventory is the list of a cluster's machines, or a part of it. The leader publishes both, and
// each agent reads the part of its Node.
type Inventory struct {
	Organization int64 `json:"organization"`
	Cluster      int64 `json:"cluster"`
	// AsOf is the creation time of the newest Node that existed when the list was requested. The list
	// is not used for a younger Node, because it may show that Node's address for an earlier machine.
	// It is a Node's time, so the inventory changes only with machines and Nodes. A part has no time.
	AsOf time.Time `json:"as_of,omitzero"`
	// Nodes has a fingerprint of each Node for which a part was made. The whole list has none.
	Nodes   []string `json:"nodes,omitempty"`
	Records []Record `json:"records"`
}
