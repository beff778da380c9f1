package spc

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// NodeAnnotation holds the record and the evidence that matched, as compact JSON.
	NodeAnnotation = "holdfast.dev/spc-node"
	// ProblemAnnotation says in a sentence for people what is wrong between the node and SPC. It goes when that does.
	ProblemAnnotation = "holdfast.dev/spc-problem"
)

const (
	// Settling is how long after its creation a node may be without a machine before that is a problem: the list is read
	// once a minute, and the API may be a little behind.
	Settling = 5 * time.Minute
	// Building is how long a machine may be on its way, seen from SPC or from Kubernetes, before that is a problem.
	Building = 15 * time.Minute
)

// Reasons of a Report's problem, which are the reasons of the events that tell of it.
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

// Terms are what a report depends on beside the node and its match.
type Terms struct {
	Now time.Time
	// Withhold says why the node gets no node_group label, empty if it may have one. Protected says that the reason is
	// known to hold, so that a label which is there is a problem and ours is taken off.
	Withhold  string
	Protected bool
}

// Report is what to write on the node for a Match. Only keys that are to be added, taken off (nil) or, in the case of our
// own annotations, changed are named.
type Report struct {
	Labels      map[string]*string
	Annotations map[string]*string
	// Problem is the sentence for people, Reason its kind; empty without a problem.
	Problem, Reason string
}

// annotated is the value of NodeAnnotation.
type annotated struct {
	Organization int64 `json:"org"`
	Record
	Evidence []string `json:"evidence"`
	// Labels are those that Holdfast set; the others were there.
	Labels []string `json:"labels,omitempty"`
	// Withheld says which label was not set, and why.
	Withheld string `json:"withheld,omitempty"`
}

// Reported returns what is missing on the node of the labels and annotations that follow from m. Nothing but the problem
// follows from a match that is not certain, and what was written for an earlier one stays: the machine has not changed
// because a list could not be read. A label that has another value is left as it is.
func Reported(n *corev1.Node, m Match, t Terms) (Report, error) {
	report := Report{Labels: map[string]*string{}, Annotations: map[string]*string{}}
	switch m.Outcome {
	case Unknown:
		return report, nil
	case Matched:
		if err := report.match(n, m, t); err != nil {
			return report, err
		}
	case Conflict:
		report.problem(ReasonConflict, m.Message)
	case Gone:
		report.problem(ReasonGone, m.Message)
	case Missing:
		if age(n, t.Now) >= Settling {
			report.problem(ReasonMissing, m.Message)
		}
	}
	report.annotate(n, ProblemAnnotation, report.Problem)
	return report, nil
}

// match reports a certain match.
func (p *Report) match(n *corev1.Node, m Match, t Terms) error {
	r := *m.Record
	values, owned, withheld := labelSet(r), ours(n, r), ""
	if t.Withhold != "" && r.GroupName != "" {
		if have, there := n.Labels[NodeGroupLabel]; !there {
			withheld = "node_group: " + t.Withhold
		} else if t.Protected {
			withheld = "node_group: " + t.Withhold
			p.ungroup(n, have, owned)
		}
		delete(values, NodeGroupLabel)
	}
	var kept []string
	for _, key := range slices.Sorted(maps.Keys(values)) {
		have, there := n.Labels[key]
		switch value := values[key]; {
		case value == "" || have == value:
		case there:
			kept = append(kept, fmt.Sprintf("%s=%s (SPC says %s)", key, have, value))
		default:
			p.Labels[key], owned[key] = &value, true
		}
	}
	if len(kept) > 0 {
		p.problem(ReasonLabel, "labels left as they are: "+strings.Join(kept, ", "))
	}
	p.doubts(n, r, t)
	r.Created = ""
	text, err := json.Marshal(annotated{
		Organization: m.Organization, Record: r, Evidence: m.Evidence, Labels: slices.Sorted(maps.Keys(owned)), Withheld: withheld,
	})
	if err != nil {
		return fmt.Errorf("encoding the SPC record: %w", err)
	}
	p.annotate(n, NodeAnnotation, string(text))
	return nil
}

// ungroup takes the group off a protected node if Holdfast put it there, and otherwise says what it means.
func (p *Report) ungroup(n *corev1.Node, group string, owned map[string]bool) {
	if owned[NodeGroupLabel] {
		delete(owned, NodeGroupLabel)
		p.Labels[NodeGroupLabel] = nil
		return
	}
	p.problem(ReasonGrouped, fmt.Sprintf("the node is protected and has %s=%s, which Holdfast did not set: to SPC's autoscaler 0.4 "+
		"it is one that may be removed; take it off with kubectl label node %s %s-", NodeGroupLabel, group, n.Name, NodeGroupLabel))
}

// doubts says what is wrong with a machine that is certainly the node's.
func (p *Report) doubts(n *corev1.Node, r Record, t Terms) {
	for _, id := range []struct{ name, value string }{{"instance ID", r.InstanceID}, {"group", r.GroupName}} {
		if id.value != exactly(id.value) {
			p.problem(ReasonUnfit, fmt.Sprintf("no label can hold the %s %q as it is, and an autoscaler would look for another", id.name, id.value))
		}
	}
	switch r.Phase() {
	case Failed:
		p.problem(ReasonFailed, fmt.Sprintf("SPC says that its machine %s (node_id %d) has failed (state %s)", r.InstanceID, r.PK, said(r)))
	case Starting:
		if age(n, t.Now) >= Building {
			p.problem(ReasonUnfinished, fmt.Sprintf("SPC still says that its machine %s (node_id %d) is in state %s, a quarter of an hour and more "+
				"after the node came: its build has most likely failed", r.InstanceID, r.PK, said(r)))
		}
	case Other:
		p.problem(ReasonState, fmt.Sprintf("SPC says that its machine %s (node_id %d) is in state %s, which is none that SPC documents; "+
			"it counts as one that lives", r.InstanceID, r.PK, said(r)))
	case Up, Going, NotSeen:
	}
}

// problem adds a sentence. The first one's reason is the report's.
func (p *Report) problem(reason, text string) {
	if p.Problem == "" {
		p.Reason, p.Problem = reason, text
		return
	}
	p.Problem += "; " + text
}

// annotate sets an annotation of ours, or takes it off if there is nothing to say.
func (p *Report) annotate(n *corev1.Node, key, value string) {
	switch have, there := n.Annotations[key]; {
	case value != "" && value != have:
		p.Annotations[key] = &value
	case value == "" && there:
		p.Annotations[key] = nil
	}
}

// ours returns the labels on the node that Holdfast set for this machine and that nobody has changed since.
func ours(n *corev1.Node, r Record) map[string]bool {
	owned := map[string]bool{}
	var before annotated
	if json.Unmarshal([]byte(n.Annotations[NodeAnnotation]), &before) != nil || before.PK != r.PK {
		return owned
	}
	values := labelSet(before.Record)
	for _, key := range before.Labels {
		if have, there := n.Labels[key]; there && have == values[key] {
			owned[key] = true
		}
	}
	return owned
}

func age(n *corev1.Node, now time.Time) time.Duration { return now.Sub(n.CreationTimestamp.Time) }
