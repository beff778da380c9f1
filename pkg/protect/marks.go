package protect

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// autoscalerMarks are the annotations that autoscalers read, with the values that a protected node should have.
func autoscalerMarks(because string) map[string]string {
	return map[string]string{
		ClusterAutoscalerAnnotation: "true",
		KarpenterAnnotation:         "true",
		EscalatorAnnotation:         because,
		CastAIAnnotation:            "true",
	}
}

// Marks returns what has to change among a Node's annotations and labels for p to stand there; nil removes a key. Only
// differences are returned. While membership is unknown, nothing changes.
//
// An autoscaler's annotation that was there before is somebody's and is left alone, whatever its value (Overruled names
// those that do not protect). Those that Holdfast sets are recorded in MarksAnnotation, put back if they are taken off,
// and only those are removed again (autoscaler#4919: one that nobody owns is never removed by anybody). Lent are those that
// a hold has set: a member takes them over, so that they outlive the hold, and while a hold lists them they outlive the
// member.
func Marks(p Protection, annotations, labels map[string]string, lent []string) (setAnnotations, setLabels map[string]*string) {
	var wanted, wantedLabels map[string]*string
	switch p.Membership {
	case Holds:
		wanted, wantedLabels = put(p, annotations, lent), map[string]*string{EtcdMemberLabel: value(EtcdMemberLabelValue)}
	case HoldsNot:
		wanted, wantedLabels = takeOff(annotations, lent), map[string]*string{EtcdMemberLabel: nil}
	case MembershipUnknown:
	}
	return differences(annotations, wanted), differences(labels, wantedLabels)
}

func put(p Protection, annotations map[string]string, lent []string) map[string]*string {
	own, marks := ownMarks(annotations), autoscalerMarks(p.Because)
	wanted := map[string]*string{
		BecauseAnnotation: value(p.Because), AnnouncementAnnotation: nil, UnverifiedAnnotation: nil, MarksAnnotation: nil,
	}
	for _, key := range slices.Sorted(maps.Keys(marks)) {
		if _, there := annotations[key]; there && !slices.Contains(own, key) && !slices.Contains(lent, key) {
			continue
		}
		wanted[key] = value(marks[key])
		if !slices.Contains(own, key) {
			own = append(own, key)
		}
	}
	if len(own) > 0 {
		slices.Sort(own)
		wanted[MarksAnnotation] = value(strings.Join(own, ","))
	}
	if len(p.Announce) > 0 {
		wanted[AnnouncementAnnotation] = value(FormatAnnouncement(p.Announce))
	}
	if len(p.Unverified) > 0 {
		wanted[UnverifiedAnnotation] = value(FormatUnverified(p.Unverified))
	}
	return wanted
}

func takeOff(annotations map[string]string, lent []string) map[string]*string {
	wanted := map[string]*string{BecauseAnnotation: nil, AnnouncementAnnotation: nil, UnverifiedAnnotation: nil, MarksAnnotation: nil}
	for _, key := range ownMarks(annotations) {
		if !slices.Contains(lent, key) {
			wanted[key] = nil
		}
	}
	return wanted
}

// ownMarks returns the autoscalers' annotations that Holdfast has set, by its record. What else stands in the record was
// not written by Holdfast and is no leave to touch anything.
func ownMarks(annotations map[string]string) []string {
	var own []string
	marks := autoscalerMarks("")
	for key := range strings.SplitSeq(annotations[MarksAnnotation], ",") {
		if _, known := marks[key]; known && !slices.Contains(own, key) {
			own = append(own, key)
		}
	}
	slices.Sort(own)
	return own
}

// Overruled says, for each autoscaler's annotation that somebody else has set to a value which does not protect the
// node, which one it is and what it should be.
func Overruled(annotations map[string]string) []string {
	var found []string
	own := ownMarks(annotations)
	for key, want := range autoscalerMarks("") {
		is, there := annotations[key]
		protects := is == want
		if key == EscalatorAnnotation {
			protects = is != ""
		}
		if there && !protects && !slices.Contains(own, key) {
			found = append(found, fmt.Sprintf("somebody has set annotation %s to %q, which does not protect this node: remove it, and Holdfast sets it", key, clip(is)))
		}
	}
	slices.Sort(found)
	return found
}

func value(s string) *string { return &s }

// differences keeps of the wanted keys those that are not as wanted yet.
func differences(is map[string]string, wanted map[string]*string) map[string]*string {
	changes := map[string]*string{}
	for key, want := range wanted {
		have, there := is[key]
		if (want == nil && there) || (want != nil && (!there || have != *want)) {
			changes[key] = want
		}
	}
	return changes
}
