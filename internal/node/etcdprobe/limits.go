package etcdprobe

import (
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/printable"
)

// The limits of an observation in the CRD's schema (api/v1alpha1), and in the policy
// holdfast-agent-observations. The API server rejects an observation that exceeds one of them.
const (
	maxMembers      = 20
	maxAlarms       = 8   // of one member
	maxURLs         = 8   // peer URLs, and client URLs, of one member
	maxURLLength    = 300 // in ASCII characters
	maxNameLength   = 256
	maxReasonLength = 256
	// maxListLength is the length of all texts of a member list together.
	maxListLength = 8000
)

// withinLimits returns the observation without what exceeds the limits. It shortens the reasons
// as far as necessary. If the rest of the member list is still too long, it omits the list: a
// shortened list would make the quorum look smaller than it is.
func withinLimits(o v1alpha1.Observation) v1alpha1.Observation {
	o.Problem = clip(plain(o.Problem), maxTextLength)
	length := 0
	o.Members = slices.Clone(o.Members)
	for i := range o.Members {
		m := &o.Members[i]
		m.Name = publishableName(m.Name)
		m.PeerURLs, m.ClientURLs = publishableURLs(m.PeerURLs), publishableURLs(m.ClientURLs)
		for _, text := range slices.Concat([]string{m.Name}, m.PeerURLs, m.ClientURLs, m.Alarms) {
			length += len(text)
		}
	}
	if length > maxListLength {
		o.Members, o.Linearizable, o.AlarmsUnknown = nil, false, true
		o.Problem = fmt.Sprintf("the names and URLs of the member list have %d characters, at most %d are supported",
			length, maxListLength)
	}
	for i := range o.Members {
		limit := min(maxReasonLength, (maxListLength-length)/len(o.Members))
		o.Members[i].Reason = clip(plain(o.Members[i].Reason), limit)
	}
	return o
}

// plain replaces all characters that JSON does not store as one byte.
func plain(text string) string {
	text = strings.NewReplacer(`"`, "'", `\`, "/", "<", "(", ">", ")", "&", "+").Replace(text)
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
}

// clip shortens a text of ASCII characters.
func clip(text string, limit int) string {
	const end = "..."
	switch {
	case len(text) <= limit:
		return text
	case limit <= len(end):
		return ""
	}
	return text[:limit-len(end)] + end
}

// publishableName returns a name in plain characters, shortened to the schema's limit.
func publishableName(name string) string { return clip(plain(printable.Line(name)), maxNameLength) }

// publishableURLs returns the URLs that fit the schema. It drops a URL that does not fit, and
// does not shorten or change it: it may then name another host.
func publishableURLs(urls []string) []string {
	fit := slices.DeleteFunc(slices.Clone(urls), func(url string) bool {
		return len(url) > maxURLLength || strings.Contains(url, " ") || url != plain(url)
	})
	return fit[:min(len(fit), maxURLs)]
}
