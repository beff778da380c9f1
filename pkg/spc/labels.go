package spc

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
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

	// NodeAnnotation holds the record and the evidence that matched, as compact JSON.
	NodeAnnotation = "holdfast.dev/spc-node"
)

// Report is what to write on the node for a Match. Only keys that are to be added or, in the case of our own annotation,
// changed are named; a label that has another value is left and named in Kept.
type Report struct {
	Labels      map[string]*string
	Annotations map[string]*string
	// Kept are labels whose value differs from the record's: somebody else's, and left.
	Kept []string
}

// annotated is the value of NodeAnnotation.
type annotated struct {
	Organization int64 `json:"org"`
	Record
	Evidence []string `json:"evidence"`
}

// Reported returns what is missing on the node of the labels and the annotation that follow from m. Nothing follows from
// a match that is not certain, and what was written for an earlier one stays: the machine has not changed because a list
// could not be read.
func Reported(n *corev1.Node, m Match, organization int64) (Report, error) {
	report := Report{Labels: map[string]*string{}, Annotations: map[string]*string{}}
	if m.Outcome != Matched {
		return report, nil
	}
	for key, value := range labels(*m.Record) {
		have, there := n.Labels[key]
		switch {
		case value == "" || have == value:
		case there:
			report.Kept = append(report.Kept, fmt.Sprintf("%s=%s (SPC says %s)", key, have, value))
		default:
			report.Labels[key] = &value
		}
	}
	slices.Sort(report.Kept)
	text, err := json.Marshal(annotated{Organization: organization, Record: *m.Record, Evidence: m.Evidence})
	if err != nil {
		return report, fmt.Errorf("encoding the SPC record: %w", err)
	}
	if value := string(text); n.Annotations[NodeAnnotation] != value {
		report.Annotations[NodeAnnotation] = &value
	}
	return report, nil
}

// labels are the labels of a record; those that it says nothing of are empty. A group is never invented: with the SPC
// provider 0.4 a node_group label makes the node one that may be removed.
func labels(r Record) map[string]string {
	return map[string]string{
		InstanceIDLabel: labelValue(r.InstanceID),
		NodeIDLabel:     strconv.FormatInt(r.PK, 10),
		NodeGroupLabel:  labelValue(r.GroupName),
		NodePoolLabel:   labelValue(r.PoolName),
		RoleLabel:       labelValue(r.Role),
		ClusterIDLabel:  strconv.FormatInt(r.Cluster, 10),
		PrivateIPLabel:  labelValue(r.PrivateIP),
		SizeLabel:       labelValue(r.Size),
	}
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
	return strings.Trim(s[:min(len(s), 63)], "-_.")
}
