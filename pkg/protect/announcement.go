package protect

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// mostAnnounced is how many members one node may announce.
const mostAnnounced = 16

// ParseAnnouncement reads AnnouncementAnnotation. The empty string is an annotation that is not there. The members are
// sorted and distinct. What is not exactly what FormatAnnouncement writes in its IDs is refused whole, since a member that
// was misread is a member that is not protected.
func ParseAnnouncement(annotation string) ([]MemberRef, error) {
	if annotation == "" {
		return nil, nil
	}
	if len(annotation) > longestAnnotation {
		return nil, fmt.Errorf("annotation %s is longer than %d bytes", AnnouncementAnnotation, longestAnnotation)
	}
	var refs []MemberRef
	if err := json.Unmarshal([]byte(annotation), &refs); err != nil {
		return nil, fmt.Errorf("parsing annotation %s: %w", AnnouncementAnnotation, err)
	}
	for _, r := range refs {
		if !r.valid() {
			return nil, fmt.Errorf("annotation %s names cluster %q, member %q: IDs are 1 to 16 digits of lower-case hex without leading zeros",
				AnnouncementAnnotation, r.Cluster, r.Member)
		}
	}
	refs = sortRefs(refs)
	if len(refs) > mostAnnounced {
		return nil, fmt.Errorf("annotation %s names %d members; one node may announce %d", AnnouncementAnnotation, len(refs), mostAnnounced)
	}
	return refs, nil
}

// FormatAnnouncement writes AnnouncementAnnotation: the members sorted, each once, and nothing that ParseAnnouncement
// refuses.
func FormatAnnouncement(refs []MemberRef) string {
	refs = slices.DeleteFunc(sortRefs(refs), func(r MemberRef) bool { return !r.valid() })
	refs = refs[:min(len(refs), mostAnnounced)]
	var b strings.Builder
	for i, r := range refs {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"cluster":%q,"member":%q}`, r.Cluster, r.Member)
	}
	return "[" + b.String() + "]"
}

func sortRefs(refs []MemberRef) []MemberRef {
	refs = slices.Clone(refs)
	slices.SortFunc(refs, func(a, b MemberRef) int {
		return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Member, b.Member))
	})
	return slices.Compact(refs)
}

func (r MemberRef) valid() bool { return validID(string(r.Cluster)) && validID(string(r.Member)) }

// validID says that an ID is written as etcdctl prints it: the pattern of v1alpha1.ClusterID and v1alpha1.MemberID.
func validID(id string) bool {
	return len(id) >= 1 && len(id) <= 16 && id[0] != '0' && strings.Trim(id, "0123456789abcdef") == ""
}
