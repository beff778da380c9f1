package quorum

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// BreakGlassAnnotation on a Node contains a BreakGlass in JSON. Only a user with the verb
// `breakglass` on etcdclusters may write it.
const BreakGlassAnnotation = "holdfast.dev/break-glass"

// maxBreakGlassDuration limits how far in the future a break-glass annotation may expire.
const maxBreakGlassDuration = time.Hour

// A BreakGlass is the value of BreakGlassAnnotation. It allows the deletion of one Node whatever
// the verdict.
type BreakGlass struct {
	// UID is the UID of the Node. It prevents the annotation from applying to a later Node.
	UID    types.UID `json:"uid"`
	Until  time.Time `json:"until"`
	Reason string    `json:"reason"`
}

// ParseBreakGlass parses BreakGlassAnnotation on the Node with this UID. The error contains an
// example of a valid value.
func ParseBreakGlass(annotation string, uid types.UID, now time.Time) (BreakGlass, error) {
	b, err := parseBreakGlass(annotation, uid, now)
	if err != nil {
		return BreakGlass{}, fmt.Errorf(`%w: write {"uid":"%s","until":"%s","reason":"say why"}`,
			err, uid, now.UTC().Add(maxBreakGlassDuration/2).Format(time.RFC3339))
	}
	return b, nil
}

func parseBreakGlass(annotation string, uid types.UID, now time.Time) (BreakGlass, error) {
	var b BreakGlass
	if len(annotation) > observation.MaxAnnotationBytes {
		return b, fmt.Errorf("annotation %s is longer than %d bytes", BreakGlassAnnotation, observation.MaxAnnotationBytes)
	}
	if err := json.Unmarshal([]byte(annotation), &b); err != nil {
		return b, fmt.Errorf("parsing annotation %s: %w", BreakGlassAnnotation, err)
	}
	b.Reason = strings.TrimSpace(b.Reason)
	switch {
	case uid == "" || b.UID != uid:
		return b, fmt.Errorf("annotation %s names the UID %q, but this Node has the UID %q", BreakGlassAnnotation, b.UID, uid)
	case b.Reason == "":
		return b, fmt.Errorf("annotation %s contains no reason", BreakGlassAnnotation)
	case !b.Until.After(now):
		return b, fmt.Errorf("annotation %s expired at %s", BreakGlassAnnotation, b.Until.Format(time.RFC3339))
	case b.Until.Sub(now) > maxBreakGlassDuration:
		return b, fmt.Errorf("annotation %s is valid until %s, more than %s from now",
			BreakGlassAnnotation, b.Until.Format(time.RFC3339), maxBreakGlassDuration)
	}
	return b, nil
}
