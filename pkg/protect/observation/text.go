package observation

import (
	"fmt"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/printable"
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
	return printable.Join(ids, separator, func(id v1alpha1.MemberID) string { return string(id) })
}
