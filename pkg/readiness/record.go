package readiness

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/autoscaler"
)

// State is the state of a node in its Record.
type State string

// The states.
const (
	// Held: the cordon (or the taint) is Holdfast's.
	Held State = "held"
	// Released: Holdfast does not keep the node closed. A condition by Holdfast that still
	// reports a hold was left by an interrupted release; the next decision clears it.
	Released State = "released"
	// Overridden: like Released, but another client ended the hold.
	Overridden State = "overridden"
)

// Record is the value of HoldAnnotation: who closed the node, in which boot, and why. The
// cordon is a single bit without an owner; the Record states the owner.
type Record struct {
	State State `json:"state"`
	// BootID is the boot in which the state was entered, empty if the writer did not know it. With
	// NetworkUp it is the boot in which that was recorded. FirstBootID is the boot in which the
	// state was entered then, empty if it is unknown.
	BootID      string `json:"bootID,omitempty"`
	FirstBootID string `json:"firstBootID,omitempty"`
	// Since is when the state was entered, in UTC and whole seconds. It is zero if the writer
	// had no clock, like the born-held policy. It is for people; no decision depends on it.
	Since  time.Time    `json:"since,omitzero"`
	Reason RecordReason `json:"reason,omitempty"`
	// Taint is the key of the taint that holds the node, empty for a hold by cordon. A release
	// follows this field even if the policy has changed, so a node that was held under an
	// older policy is still released.
	Taint string `json:"taint,omitempty"`
	// Marks are the autoscaler annotations that the hold has set, sorted. The end of the
	// hold removes them. If it is not known then whether the node has etcd, they stay listed
	// until it is known.
	Marks []string `json:"marks,omitempty"`
	// NetworkUp is the reason with which the network plugin set NetworkUnavailable to False in
	// the boot of the record while other gates were closed. It is kept because the hold then
	// sets the condition again and overwrites the plugin's value.
	NetworkUp string `json:"networkUp,omitempty"`
	// NetworkBuilt is true if the marker of the network_plugin role was present while other
	// gates were closed, in this boot or an earlier boot of the hold. A reboot removes the
	// marker, and the role does not run again.
	NetworkBuilt bool `json:"networkBuilt,omitempty"`
	// Stamps are the write times of the conditions that gates wait for, by type, as of the
	// last write of the record or the shutdown of the host.
	Stamps map[string]Stamp `json:"stamps,omitempty"`
	// Drained is the last drain that was allowed during the hold, nil if there was none.
	Drained *Drain `json:"drained,omitempty"`
}

// Stamp is the time at which a condition of the Node was written, and the boot in which that
// time was first recorded. If the time is unchanged in another boot, the condition is stale.
type Stamp struct {
	// At is in RFC 3339, in UTC and whole seconds.
	At     string `json:"at"`
	BootID string `json:"bootID"`
}

// ParseRecord parses the value of HoldAnnotation and ignores unknown fields. With an error it
// returns the zero Record, whose state is none of the states: neither is the node known to be held,
// nor not to be.
func ParseRecord(value string) (Record, error) {
	var r Record
	if err := json.Unmarshal([]byte(value), &r); err != nil {
		return Record{}, fmt.Errorf("reading hold record: %w", err)
	}
	if !slices.Contains([]State{Held, Released, Overridden}, r.State) {
		return Record{}, fmt.Errorf("reading hold record: unknown state %q; want held, released or overridden", r.State)
	}
	r.Since = r.Since.UTC().Truncate(time.Second)
	if year := r.Since.Year(); year < 0 || year > 9999 { // Format could not write it
		return Record{}, fmt.Errorf("reading hold record: since: the year %d is not between 0 and 9999", year)
	}
	return r, nil
}

// Format returns the record as the value of HoldAnnotation.
func (r Record) Format() string {
	out, err := json.Marshal(r)
	if err != nil {
		panic(err) // a struct of strings, and of a time in the years 0 to 9999
	}
	return string(out)
}

// OwnedAutoscalerAnnotations returns the keys of the autoscaler annotations that belong to a hold:
// its record lists them, and their values have not been changed. It returns none if the record
// cannot be read.
func OwnedAutoscalerAnnotations(annotations map[string]string) []string {
	r, _ := ParseRecord(annotations[HoldAnnotation])
	return r.ownedAutoscalerAnnotations(annotations)
}

func (r Record) ownedAutoscalerAnnotations(annotations map[string]string) []string {
	values := autoscalerAnnotations()
	return slices.DeleteFunc(autoscaler.Keys(), func(key string) bool {
		return !slices.Contains(r.Marks, key) || annotations[key] != values[key]
	})
}

// isFirstHold reports whether the node is held and, according to the record, has not been in
// service since it was created. Only then is NetworkUnavailable part of the hold.
func (r Record) isFirstHold() bool {
	return r.State == Held && r.Reason != Rebooted && r.Reason != GoingDown
}

// isStale reports whether a condition was provably written in another boot: its write time
// equals the time in the record. Times are only compared for equality, so no clock has to be
// right. An equal time proves nothing if the writer sets the condition once for each Node
// instead of once for each boot.
func (e holdEvaluation) isStale(c *corev1.NodeCondition) bool {
	before, found := e.record.Stamps[string(c.Type)]
	return found && before.At == lastWritten(c) && before.BootID != e.facts.BootID && !isBootIndependent(c)
}

// isBootIndependent reports whether the value of NetworkUnavailable stays valid across
// reboots. Cilium restores its value after every change, and guards reboots with a taint of
// its own (cilium operator/watchers, node_taint.go). A route is in the cloud, where no reboot
// of the node removes it, and the route controller also restores its value.
func isBootIndependent(c *corev1.NodeCondition) bool {
	return c.Type == corev1.NodeNetworkUnavailable && (c.Reason == CiliumIsUp || c.Reason == RouteCreated)
}

// lastWritten returns when a condition was last written, empty if it has no time.
func lastWritten(c *corev1.NodeCondition) string {
	last := c.LastTransitionTime
	if c.LastHeartbeatTime.After(last.Time) {
		last = c.LastHeartbeatTime
	}
	if last.IsZero() {
		return ""
	}
	return last.UTC().Format(time.RFC3339)
}

// currentStamps returns the stamps of all conditions that gates wait for. A time that is already in
// the record keeps the boot of that record.
func (e holdEvaluation) currentStamps() map[string]Stamp {
	found := map[string]Stamp{}
	for _, wanted := range e.policy.gateNames(GateCondition) {
		kind, _, _ := strings.Cut(wanted, "=")
		c := FindCondition(e.node, corev1.NodeConditionType(kind))
		if c == nil || lastWritten(c) == "" {
			continue
		}
		found[kind] = Stamp{At: lastWritten(c), BootID: e.facts.BootID}
		if before := e.record.Stamps[kind]; before.At == lastWritten(c) {
			found[kind] = before
		}
	}
	return found
}

// stampedRecord returns the record with current stamps if the host is shutting down and the
// record does not have them yet. The next boot starts with this record and needs the stamps to
// detect stale conditions. After a power failure they may be missing; a condition without a
// stamp is accepted.
func (e holdEvaluation) stampedRecord() *Record {
	now := e.currentStamps()
	if !e.facts.GoingDown || maps.Equal(now, e.record.Stamps) {
		return nil
	}
	record := e.record
	record.Stamps = now
	return &record
}

// clearedReason returns the reason with which the network plugin set NetworkUnavailable to
// False in this boot, empty if it did not. The reason is recorded even if no gate waits for
// it, because the leader may overwrite the condition and does not know the agent's gates.
func (e holdEvaluation) clearedReason() string {
	c := FindCondition(e.node, corev1.NodeNetworkUnavailable)
	if e.missingCondition(string(corev1.NodeNetworkUnavailable)) != "" || IsByHoldfast(c) {
		return ""
	}
	return cmp.Or(c.Reason, "Unnamed")
}
