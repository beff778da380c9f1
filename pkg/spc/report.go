package spc

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/printable"
)

// Labels of a matched Node. The SPC provider of cluster-autoscaler reads InstanceIDLabel
// and NodeGroupLabel. SPC's own node builds set the others as well. See
// docs/node-contract.md.
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

// Annotations of a Node.
const (
	// NodeAnnotation holds the record and the evidence that matched, as compact JSON.
	NodeAnnotation = "holdfast.dev/spc-node"
	// ProblemAnnotation describes a problem between the Node and SPC in a sentence. It is
	// removed when the problem ends.
	ProblemAnnotation = "holdfast.dev/spc-problem"
)

const (
	// missingAfter is the age at which a Node without a machine becomes a problem. The list is
	// read once a minute, and the API may be a little behind.
	missingAfter = 5 * time.Minute
	// nodeExpectedAfter is how long a machine may take to become a Node before that is a problem.
	// buildExpectedAfter is how long SPC may take to finish the build of a machine with a Node.
	nodeExpectedAfter  = 15 * time.Minute
	buildExpectedAfter = 15 * time.Minute
)

// Reasons of a Report's problem. The events about the problem have the same reasons.
const (
	ReasonConflict   = "SPCConflict"
	ReasonMissing    = "SPCMachineMissing"
	ReasonGone       = "SPCMachineGone"
	ReasonFailed     = "SPCMachineFailed"
	ReasonUnfinished = "SPCMachineUnfinished"
	ReasonState      = "SPCStateUnknown"
	ReasonLabel      = "SPCLabelDiffers"
	ReasonUnfit      = "SPCNameUnfit"
	ReasonGrouped    = "SPCProtectedNodeInGroup"
)

// Terms are the inputs of a Report beside the Node and its Match.
type Terms struct {
	Now time.Time
	// Withhold is the reason why the Node gets no node_group label. It is empty if the Node
	// may have one.
	Withhold string
	// Protected is set if the reason in Withhold is known to be true. Then an existing
	// node_group label is removed if Holdfast set it, and is a problem otherwise.
	Protected bool
}

// Report describes what to write on the Node for a Match. It contains only the keys to add
// or remove (nil) and, for Holdfast's own annotations, those to change.
type Report struct {
	Labels      map[string]*string
	Annotations map[string]*string
	// Problem is a sentence for people and Reason its kind. Both are empty if there is no
	// problem.
	Problem, Reason string
}

// nodeAnnotation is the value of NodeAnnotation.
type nodeAnnotation struct {
	Organization int64 `json:"org"`
	Record
	Evidence []string `json:"evidence"`
	// Labels are the labels that Holdfast set. The others existed before.
	Labels []string `json:"labels,omitempty"`
	// Earlier are the values of those labels that are from an earlier state of the record.
	Earlier map[string]string `json:"earlier,omitempty"`
	// Withheld is the label that was not set, with the reason.
	Withheld string `json:"withheld,omitempty"`
}

// NewReport returns the labels and annotations that the Node lacks for its Match. It never
// changes a label that has another value.
//
// A Match other than Matched results in a problem at most. Labels and annotations of an
// earlier Match stay, because a list that cannot be read does not change the machine. Only the
// group label of a protected Node is removed.
func NewReport(n *corev1.Node, m Match, t Terms) (Report, error) {
	report := Report{Labels: map[string]*string{}, Annotations: map[string]*string{}}
	written, err := parseAnnotation(n)
	if err != nil {
		written = nodeAnnotation{} // It is not known who set the labels.
	}
	switch m.Outcome {
	case Unknown:
	case Matched:
		written = report.addMatch(n, m, t, written)
	case Conflict:
		report.addProblem(ReasonConflict, m.Message)
	case Gone:
		report.addProblem(ReasonGone, m.Message)
	case Missing:
		if nodeAge(n, t.Now) >= missingAfter {
			report.addProblem(ReasonMissing, m.Message)
		}
	}
	isChanged := m.Outcome == Matched
	if t.Protected && !isChanged && report.removeGroup(n, written.owned(n), m.Outcome != Unknown) {
		isChanged = true
		written.Labels = slices.DeleteFunc(written.Labels, func(key string) bool { return key == NodeGroupLabel })
		delete(written.Earlier, NodeGroupLabel)
		written.Withheld = withheldGroup + t.Withhold
	}
	if isChanged {
		text, err := json.Marshal(written)
		if err != nil {
			return report, fmt.Errorf("encoding the SPC record: %w", err)
		}
		report.setAnnotation(n, NodeAnnotation, string(text))
	}
	if m.Outcome != Unknown { // Otherwise the problem that was reported last may still be true.
		report.setAnnotation(n, ProblemAnnotation, report.Problem)
	}
	return report, nil
}

// addMatch adds the labels and the problems of a certain match, and returns the annotation.
func (r *Report) addMatch(n *corev1.Node, m Match, t Terms, written nodeAnnotation) nodeAnnotation {
	record := *m.Record
	record.Created = ""
	values, owned, withheld := recordLabels(record), map[string]bool{}, ""
	if written.PK == record.PK {
		owned = written.owned(n)
	}
	if t.Withhold != "" {
		_, exists := n.Labels[NodeGroupLabel]
		if t.Protected {
			r.removeGroup(n, owned, true)
		}
		if record.GroupName != "" && (t.Protected || !exists) {
			withheld = withheldGroup + t.Withhold
		}
		delete(values, NodeGroupLabel)
	}
	var kept, remove []string
	for _, key := range slices.Sorted(maps.Keys(values)) {
		have, exists := n.Labels[key]
		switch value := values[key]; {
		case value == "" || have == value:
		case exists:
			kept, remove = append(kept, fmt.Sprintf("%s=%s (SPC has %s)", key, have, value)), append(remove, key+"-")
		default:
			r.Labels[key], owned[key] = &value, true
		}
	}
	if len(kept) > 0 {
		r.addProblem(ReasonLabel, fmt.Sprintf("labels not changed: %s; to get the values of SPC, remove them: kubectl label "+
			"node %s %s", strings.Join(kept, ", "), n.Name, strings.Join(remove, " ")))
	}
	r.addMachineProblems(n, record, t)
	return nodeAnnotation{
		Organization: m.Organization, Record: record, Evidence: m.Evidence, Labels: slices.Sorted(maps.Keys(owned)),
		Earlier: earlierValues(n, record, owned), Withheld: withheld,
	}
}

// withheldGroup begins the value of nodeAnnotation.Withheld.
const withheldGroup = "node_group: "

// removeGroup removes the group label of a protected Node if Holdfast set it. Otherwise SPC's
// autoscaler may remove the Node, which is a problem to report.
func (r *Report) removeGroup(n *corev1.Node, owned map[string]bool, isReported bool) (isRemoved bool) {
	if owned[NodeGroupLabel] {
		delete(owned, NodeGroupLabel)
		r.Labels[NodeGroupLabel] = nil
		return true
	}
	if group, exists := n.Labels[NodeGroupLabel]; exists && isReported {
		r.addProblem(ReasonGrouped, fmt.Sprintf("the node is protected but has %s=%s, which Holdfast did not set: SPC's "+
			"autoscaler 0.4 may remove such a node; remove the label with kubectl label node %s %s-",
			NodeGroupLabel, group, n.Name, NodeGroupLabel))
	}
	return false
}

func (r *Report) addMachineProblems(n *corev1.Node, record Record, t Terms) {
	for _, id := range []struct{ name, value string }{{"instance ID", record.InstanceID}, {"group", record.GroupName}} {
		if id.value != exactLabelValue(id.value) {
			r.addProblem(ReasonUnfit, fmt.Sprintf("the %s %q is not a valid label value; an autoscaler would not find "+
				"an adapted one, so Holdfast sets no label", id.name, id.value))
		}
	}
	machine := fmt.Sprintf("its machine %s (node_id %d)", record.InstanceID, record.PK)
	switch record.Phase() {
	case Failed:
		r.addProblem(ReasonFailed, fmt.Sprintf("SPC reports that %s has failed (state %s)", machine, record.describeState()))
	case Starting:
		if nodeAge(n, t.Now) >= buildExpectedAfter {
			r.addProblem(ReasonUnfinished, fmt.Sprintf("SPC still reports that %s is in state %s, more than 15 minutes "+
				"after the node joined: its build has probably failed", machine, record.describeState()))
		}
	case Other:
		r.addProblem(ReasonState, fmt.Sprintf("SPC reports that %s is in state %s, which SPC does not document; the "+
			"machine counts as live", machine, record.describeState()))
	case Up, Going, NotListed:
	}
}

// addProblem adds a sentence. The reason of the first one becomes the report's.
func (r *Report) addProblem(reason, text string) {
	text = printable.Line(text)
	if r.Problem == "" {
		r.Reason, r.Problem = reason, text
		return
	}
	r.Problem += "; " + text
}

// setAnnotation sets an annotation of Holdfast, or removes it if the value is empty.
func (r *Report) setAnnotation(n *corev1.Node, key, value string) {
	switch have, exists := n.Annotations[key]; {
	case value != "" && value != have:
		r.Annotations[key] = &value
	case value == "" && exists:
		r.Annotations[key] = nil
	}
}

// parseAnnotation returns the zero value if the Node has no annotation.
func parseAnnotation(n *corev1.Node) (written nodeAnnotation, err error) {
	if text, isSet := n.Annotations[NodeAnnotation]; isSet {
		if err = json.Unmarshal([]byte(text), &written); err != nil {
			err = fmt.Errorf("parsing annotation %s: %w", NodeAnnotation, err)
		}
	}
	return written, err
}

// OwnedLabels returns the keys of the Node's labels that Holdfast set according to NodeAnnotation,
// and that still have the same values. It returns an error if it cannot parse the annotation.
func OwnedLabels(n *corev1.Node) (map[string]bool, error) {
	written, err := parseAnnotation(n)
	return written.owned(n), err
}

// owned returns the labels that Holdfast set, and that still have the same values.
func (a nodeAnnotation) owned(n *corev1.Node) map[string]bool {
	owned, values := map[string]bool{}, recordLabels(a.Record)
	maps.Copy(values, a.Earlier)
	for _, key := range a.Labels {
		if have, exists := n.Labels[key]; exists && have == values[key] {
			owned[key] = true
		}
	}
	return owned
}

// earlierValues returns the values of the owned labels that are not those of the record.
func earlierValues(n *corev1.Node, r Record, owned map[string]bool) map[string]string {
	earlier, current := map[string]string{}, recordLabels(r)
	for key := range owned {
		if have, exists := n.Labels[key]; exists && have != current[key] {
			earlier[key] = have
		}
	}
	return earlier
}

func nodeAge(n *corev1.Node, now time.Time) time.Duration { return now.Sub(n.CreationTimestamp.Time) }

// recordLabels returns the labels of a record. The value is "" if the record has none.
//
// The instance ID and the group are also "" if they are not valid label values. An
// autoscaler compares them exactly, and an adapted value might be that of another machine
// or group. The group is never derived from other fields: with the SPC provider 0.4, a Node
// with a node_group label may be removed.
func recordLabels(r Record) map[string]string {
	return map[string]string{
		InstanceIDLabel: exactLabelValue(r.InstanceID),
		NodeIDLabel:     strconv.FormatInt(r.PK, 10),
		NodeGroupLabel:  exactLabelValue(r.GroupName),
		NodePoolLabel:   labelValue(r.PoolName),
		RoleLabel:       labelValue(r.Role),
		ClusterIDLabel:  strconv.FormatInt(r.Cluster, 10),
		PrivateIPLabel:  labelValue(r.PrivateIP),
		SizeLabel:       labelValue(r.Size),
	}
}

// exactLabelValue returns s if it is a valid label value, otherwise "".
func exactLabelValue(s string) string {
	if labelValue(s) == s {
		return s
	}
	return ""
}

// labelValue converts a text to a label value as SPC's own builds did. Invalid characters
// become hyphens ("Default Worker Pool" becomes Default-Worker-Pool). The result has at
// most 63 bytes and a letter or digit at both ends.
func labelValue(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '_', r == '-':
			return r
		}
		return '-'
	}, strings.TrimSpace(s))
	s = strings.TrimLeft(s, "-_.")
	return strings.TrimRight(s[:min(len(s), 63)], "-_.")
}
