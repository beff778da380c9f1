package observation

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/pkg/printable"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// The keys with which an agent reports on its Node what it found; see docs/node-contract.md.
const (
	// EtcdMemberLabel selects the fail-closed webhook.
	EtcdMemberLabel = "holdfast.dev/etcd-member"
	// EtcdMemberLabelValue is the only value of EtcdMemberLabel.
	EtcdMemberLabelValue = "true"
	// AnnouncementAnnotation is a JSON list of evidence.MemberRef: the members on this node.
	AnnouncementAnnotation = "holdfast.dev/etcd"
	// UnverifiedAnnotation is a JSON list of strings: the places of the etcd servers on this node
	// that never answered which member they are. A node without such a server lacks the annotation.
	UnverifiedAnnotation = "holdfast.dev/etcd-unverified"
	// EtcdMemberCondition is the type of the Node condition that reports whether the node holds a
	// member.
	EtcdMemberCondition = "EtcdMember"
)

const (
	// MaxAnnounced limits how many members one node may announce.
	MaxAnnounced = 16
	// MaxAnnotationBytes limits the length of an annotation that is parsed.
	MaxAnnotationBytes = 4096
)

// ParseAnnouncement parses AnnouncementAnnotation into sorted, distinct members. The empty string
// means that the Node has no such annotation. One invalid ID is an error for the whole annotation,
// because a misread member would be a member that is not protected.
func ParseAnnouncement(annotation string) ([]evidence.MemberRef, error) {
	refs, err := parseList[evidence.MemberRef](AnnouncementAnnotation, annotation)
	if err != nil {
		return nil, err
	}
	for _, r := range refs {
		if !isValidRef(r) {
			return nil, fmt.Errorf("annotation %s names cluster %q, member %q: "+
				"IDs are 1 to 16 digits of lower-case hex without leading zeros", AnnouncementAnnotation, r.Cluster, r.Member)
		}
	}
	refs = SortRefs(refs)
	if len(refs) > MaxAnnounced {
		return nil, fmt.Errorf("annotation %s names %d members; the limit is %d",
			AnnouncementAnnotation, len(refs), MaxAnnounced)
	}
	return refs, nil
}

// FormatAnnouncement returns the value of AnnouncementAnnotation: sorted, distinct members. It
// drops what ParseAnnouncement would reject.
func FormatAnnouncement(refs []evidence.MemberRef) string {
	refs = slices.DeleteFunc(SortRefs(refs), func(r evidence.MemberRef) bool { return !isValidRef(r) })
	return "[" + printable.Join(refs[:min(len(refs), MaxAnnounced)], ",", func(r evidence.MemberRef) string {
		return fmt.Sprintf(`{"cluster":%q,"member":%q}`, r.Cluster, r.Member)
	}) + "]"
}

// ParseUnverified parses UnverifiedAnnotation into the places of the unverified servers. The empty
// string means that the Node has no such annotation, which is also true for agents of versions
// that do not write it.
func ParseUnverified(annotation string) ([]string, error) {
	return parseList[string](UnverifiedAnnotation, annotation)
}

// FormatUnverified returns the value of UnverifiedAnnotation, empty if there is no unverified
// server. ParseUnverified accepts every result. If the places are too long for the annotation, it
// replaces them, because the number of servers matters more than their names.
func FormatUnverified(where []string) string {
	if len(where) == 0 {
		return ""
	}
	places := make([]string, min(len(where), MaxAnnounced))
	for i := range places {
		places[i] = ServerPlace(where[i])
	}
	slices.Sort(places)
	text, err := json.Marshal(places)
	if err != nil || len(text) > MaxAnnotationBytes {
		text = []byte(`["an etcd server"` + strings.Repeat(`,"an etcd server"`, len(places)-1) + `]`)
	}
	return string(text)
}

// ServerPlace returns the form in which UnverifiedAnnotation contains the place of a server.
func ServerPlace(where string) string { return printable.Quote(where) }

// parseList parses an annotation whose value is a JSON list, nil for the empty string.
func parseList[T any](key, annotation string) ([]T, error) {
	if annotation == "" {
		return nil, nil
	}
	if len(annotation) > MaxAnnotationBytes {
		return nil, fmt.Errorf("annotation %s is longer than %d bytes", key, MaxAnnotationBytes)
	}
	var list []T
	if err := json.Unmarshal([]byte(annotation), &list); err != nil {
		return nil, fmt.Errorf("parsing annotation %s: %w", key, err)
	}
	return list, nil
}

// SortRefs returns the distinct members, sorted by cluster and member.
func SortRefs(refs []evidence.MemberRef) []evidence.MemberRef {
	refs = slices.Clone(refs)
	slices.SortFunc(refs, func(a, b evidence.MemberRef) int {
		return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Member, b.Member))
	})
	return slices.Compact(refs)
}

func isValidRef(r evidence.MemberRef) bool {
	return IsValidID(string(r.Cluster)) && IsValidID(string(r.Member))
}

// IsValidID reports whether an ID is written as etcdctl prints it. It accepts the pattern of
// v1alpha1.ClusterID and v1alpha1.MemberID.
func IsValidID(id string) bool {
	return len(id) >= 1 && len(id) <= 16 && id[0] != '0' && strings.Trim(id, "0123456789abcdef") == ""
}
