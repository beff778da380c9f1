package observation

import (
	"fmt"
	"strings"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// Plural returns a number with its noun: `1 voter`, `3 voters`.
func Plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// JoinIDs returns the IDs as text, with the separator between them.
func JoinIDs(ids []v1alpha1.MemberID, separator string) string {
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = string(id)
	}
	return strings.Join(texts, separator)
}
