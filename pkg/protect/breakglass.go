package protect

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// longestBreakGlass is how far ahead a break-glass annotation may expire.
	longestBreakGlass = time.Hour
	// longestAnnotation bounds, in bytes, what is parsed of an annotation that people or agents write.
	longestAnnotation = 4096
)

// BreakGlass is the value of BreakGlassAnnotation: the deletion of one very Node is wanted whatever the verdict.
type BreakGlass struct {
	// UID is the Node's. Without it the annotation would outlive the Node that it was meant for.
	UID    types.UID `json:"uid"`
	Until  time.Time `json:"until"`
	Reason string    `json:"reason"`
}

// ParseBreakGlass reads BreakGlassAnnotation on the Node with this UID. The error says what to write instead.
func ParseBreakGlass(annotation string, uid types.UID, now time.Time) (BreakGlass, error) {
	wanted := fmt.Sprintf(`write {"uid":"%s","until":"%s","reason":"say why"}`, uid, now.UTC().Add(longestBreakGlass/2).Format(time.RFC3339))
	if len(annotation) > longestAnnotation {
		return BreakGlass{}, fmt.Errorf("annotation %s is longer than %d bytes: %s", BreakGlassAnnotation, longestAnnotation, wanted)
	}
	var b BreakGlass
	if err := json.Unmarshal([]byte(annotation), &b); err != nil {
		return BreakGlass{}, fmt.Errorf("parsing annotation %s: %w: %s", BreakGlassAnnotation, err, wanted)
	}
	b.Reason = strings.TrimSpace(b.Reason)
	switch {
	case uid == "" || b.UID != uid:
		return BreakGlass{}, fmt.Errorf("annotation %s names the UID %q, and this Node's is %q: %s", BreakGlassAnnotation, b.UID, uid, wanted)
	case b.Reason == "":
		return BreakGlass{}, fmt.Errorf("annotation %s gives no reason: %s", BreakGlassAnnotation, wanted)
	case !b.Until.After(now):
		return BreakGlass{}, fmt.Errorf("annotation %s expired at %s: %s", BreakGlassAnnotation, b.Until.Format(time.RFC3339), wanted)
	case b.Until.Sub(now) > longestBreakGlass:
		return BreakGlass{}, fmt.Errorf("annotation %s lasts until %s, more than %s ahead: %s", BreakGlassAnnotation, b.Until.Format(time.RFC3339), longestBreakGlass, wanted)
	}
	return b, nil
}
