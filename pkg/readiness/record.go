package readiness

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// State is how a node stands with Holdfast.
type State string

// The states.
const (
	// Held: the cordon (or the taint) is ours.
	Held State = "held"
	// Released: nothing closes the node for us. Conditions of ours that still say otherwise are what a release has left that
	// was cut short, and are cleared by whoever comes next.
	Released State = "released"
	// Overridden: the same, and it was somebody else who ended the hold.
	Overridden State = "overridden"
)

// Record is what HoldAnnotation says: who closed the node, in which boot, and why. The cordon is one bit without an
// owner; this is the owner.
type Record struct {
	State State
	// BootID is the boot in which the state was entered; empty if the writer could not know it.
	BootID string
	// Since is when the state was entered, in UTC and whole seconds. Zero if the writer had no clock, as the born-held
	// policy has none. It is for people; no decision is made from it.
	Since time.Time
	// Reason is one word, such as Rebooted.
	Reason string
	// Taint is the key of the taint that the node is held by; empty if it is held by cordon. A release follows this,
	// whatever the policy says by then, so that a node held under an older policy is still let go.
	Taint string
	// Marks are the annotations for autoscalers that the hold has set, in order. Its end takes them off; if it is not known by
	// then whether the node holds etcd, they stay here until it is.
	Marks []string
	// NetworkUp is the reason with which somebody said, in the boot of the record, that NetworkUnavailable is false while
	// other gates were closed. It is kept because the hold then sets the condition again, over what was said.
	NetworkUp string
	// NetworkBuilt says that the marker of the network_plugin role was there, in this boot or an earlier one of the hold, while
	// other gates were closed. A reboot takes the marker away, and nobody writes it again.
	NetworkBuilt bool
	// Stamps are those of the conditions that are waited for, by type, as they stood when the record was written or the host
	// went down.
	Stamps map[string]Stamp
}

// Stamp is when a condition of the Node was written, and in which boot that was noted first. If it still stands so in
// another boot, it says nothing about that one.
type Stamp struct {
	At     string `json:"at"`
	BootID string `json:"bootID"`
}

type wireRecord struct {
	State  State  `json:"state"`
	BootID string `json:"bootID,omitempty"`
	Since  string `json:"since,omitempty"`
	Reason string `json:"reason,omitempty"`
	Taint  string `json:"taint,omitempty"`

	Marks        []string         `json:"marks,omitempty"`
	NetworkUp    string           `json:"networkUp,omitempty"`
	NetworkBuilt bool             `json:"networkBuilt,omitempty"`
	Stamps       map[string]Stamp `json:"stamps,omitempty"`
}

// ParseRecord reads the value of HoldAnnotation. Fields that it does not know are passed over. On an error nothing may be
// concluded: neither that the node is held nor that it is not.
func ParseRecord(value string) (Record, error) {
	var w wireRecord
	if err := json.Unmarshal([]byte(value), &w); err != nil {
		return Record{}, fmt.Errorf("reading hold record: %w", err)
	}
	switch w.State {
	case Held, Released, Overridden:
	default:
		return Record{}, fmt.Errorf("reading hold record: state %q is none of held, released, overridden", w.State)
	}
	r := Record{
		State: w.State, BootID: w.BootID, Reason: w.Reason, Taint: w.Taint,
		Marks: w.Marks, NetworkUp: w.NetworkUp, NetworkBuilt: w.NetworkBuilt, Stamps: w.Stamps,
	}
	if len(r.Marks) == 0 {
		r.Marks = nil
	}
	if len(r.Stamps) == 0 {
		r.Stamps = nil
	}
	if w.Since == "" {
		return r, nil
	}
	since, err := time.Parse(time.RFC3339, w.Since)
	if err != nil {
		return Record{}, fmt.Errorf("reading hold record: since: %w", err)
	}
	r.Since = since.UTC().Truncate(time.Second)
	if year := r.Since.Year(); year < 1 || year > 9999 {
		return Record{}, errors.New("reading hold record: since lies outside of the years that can be written")
	}
	return r, nil
}

// Format returns the record as the value of HoldAnnotation.
func (r Record) Format() string {
	w := wireRecord{
		State: r.State, BootID: r.BootID, Reason: r.Reason, Taint: r.Taint,
		Marks: r.Marks, NetworkUp: r.NetworkUp, NetworkBuilt: r.NetworkBuilt, Stamps: r.Stamps,
	}
	if !r.Since.IsZero() {
		w.Since = r.Since.UTC().Format(time.RFC3339)
	}
	out, err := json.Marshal(w)
	if err != nil {
		panic(err) // a struct of strings always marshals
	}
	return string(out)
}

// Lent are the marks for autoscalers that a hold has put among these annotations: its record lists them, and nobody has given
// them another value since. None are if the record cannot be read.
func Lent(annotations map[string]string) []string {
	r, err := ParseRecord(annotations[HoldAnnotation])
	if err != nil {
		return nil
	}
	return r.lent(annotations)
}

func (r Record) lent(annotations map[string]string) []string {
	var found []string
	for _, key := range r.Marks {
		if value, known := scaleDownMarks()[key]; known && annotations[key] == value {
			found = append(found, key)
		}
	}
	return found
}

// fresh says that the node has not been in service since it was created, as far as the record tells: the hold began with
// the node. Only then is NetworkUnavailable part of the hold.
func (r Record) fresh() bool {
	return r.State == Held && r.Reason != Rebooted && r.Reason != GoingDown
}
