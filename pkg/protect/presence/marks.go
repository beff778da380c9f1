package presence

import (
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/pkg/autoscaler"
	"github.com/holdfast-dev/holdfast/pkg/printable"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// Keys that Holdfast writes on a Node that holds etcd; see docs/node-contract.md.
const (
	// BecauseAnnotation explains to people in one sentence why the node is protected.
	BecauseAnnotation = "holdfast.dev/protected-because"
	// MarksAnnotation lists the autoscaler annotations that Holdfast itself set, sorted and separated
	// by commas. Holdfast removes only these. An annotation that a person set before is not in the
	// list and stays.
	MarksAnnotation = "holdfast.dev/marks"
)

// Marks returns the changes to the Node's annotations and labels that p requires; nil removes a
// key. While the membership is unknown, nothing changes.
//
// An autoscaler annotation that another program or a person set before stays unchanged, whatever
// its value. The condition's message names those that do not protect the node. The annotations that
// Holdfast sets are recorded in MarksAnnotation. Holdfast restores them if they are removed, and
// removes only them (autoscaler#4919: an annotation without an owner is never removed).
//
// ownedByHold are the autoscaler annotations that a hold has set. A member takes them over, so that
// they outlive the hold. While the hold owns them, they keep its values, by which it knows them,
// and also outlive the member.
func Marks(
	p Protection, annotations, labels map[string]string, ownedByHold []string,
) (setAnnotations, setLabels map[string]*string) {
	var wanted, wantedLabels map[string]*string
	switch p.Membership {
	case MemberPresent:
		wanted = addMarks(p, annotations, ownedByHold)
		wantedLabels = map[string]*string{observation.EtcdMemberLabel: new(observation.EtcdMemberLabelValue)}
	case MemberAbsent:
		wanted = noMarks()
		for _, key := range recordedMarks(annotations) {
			if !slices.Contains(ownedByHold, key) {
				wanted[key] = nil
			}
		}
		wantedLabels = map[string]*string{observation.EtcdMemberLabel: nil}
	case MembershipUnknown:
	}
	return differences(annotations, wanted), differences(labels, wantedLabels)
}

// noMarks returns the keys of Holdfast's own annotations, all of them to be removed.
func noMarks() map[string]*string {
	return map[string]*string{
		BecauseAnnotation: nil, MarksAnnotation: nil,
		observation.AnnouncementAnnotation: nil, observation.UnverifiedAnnotation: nil,
	}
}

func addMarks(p Protection, annotations map[string]string, ownedByHold []string) map[string]*string {
	recorded, marks, wanted := recordedMarks(annotations), autoscaler.Annotations(p.Because), noMarks()
	wanted[BecauseAnnotation] = &p.Because
	for _, key := range autoscaler.Keys() {
		_, exists := annotations[key]
		isOfHold := slices.Contains(ownedByHold, key)
		if exists && !slices.Contains(recorded, key) && !isOfHold {
			continue
		}
		if !isOfHold {
			wanted[key] = new(marks[key])
		}
		if !slices.Contains(recorded, key) {
			recorded = append(recorded, key)
		}
	}
	if len(recorded) > 0 {
		slices.Sort(recorded)
		wanted[MarksAnnotation] = new(strings.Join(recorded, ","))
	}
	if len(p.Announce) > 0 {
		wanted[observation.AnnouncementAnnotation] = new(observation.FormatAnnouncement(p.Announce))
	}
	if len(p.Unverified) > 0 {
		wanted[observation.UnverifiedAnnotation] = new(observation.FormatUnverified(p.Unverified))
	}
	return wanted
}

// recordedMarks returns the autoscaler annotations that Holdfast has set, according to
// MarksAnnotation. It ignores all other keys in that annotation, because Holdfast did not write
// them.
func recordedMarks(annotations map[string]string) []string {
	listed := strings.Split(annotations[MarksAnnotation], ",")
	return slices.DeleteFunc(autoscaler.Keys(), func(key string) bool { return !slices.Contains(listed, key) })
}

// ineffectiveMarks describes the autoscaler annotations that Holdfast did not set and whose value
// does not protect the node.
func ineffectiveMarks(annotations map[string]string) []string {
	var found []string
	recorded := recordedMarks(annotations)
	for key, want := range autoscaler.Annotations("") {
		value, exists := annotations[key]
		protects := value == want
		if key == autoscaler.Escalator {
			protects = value != ""
		}
		if exists && !protects && !slices.Contains(recorded, key) {
			found = append(found, fmt.Sprintf("annotation %s has the value %q, which does not protect this node: "+
				"remove the annotation, and Holdfast sets the right value", key, printable.Quote(value)))
		}
	}
	slices.Sort(found)
	return found
}

// differences returns the wanted keys whose current value differs.
func differences(current map[string]string, wanted map[string]*string) map[string]*string {
	changes := map[string]*string{}
	for key, want := range wanted {
		value, exists := current[key]
		if (want == nil && exists) || (want != nil && (!exists || value != *want)) {
			changes[key] = want
		}
	}
	return changes
}
