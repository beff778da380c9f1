package observation

import (
	"fmt"
	"strings"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// Clip returns a text from another program as one line of at most 160 characters.
func Clip(text string) string {
	const limit = 160
	line := OneLine(text)
	if runes := []rune(line); len(runes) > limit {
		return string(runes[:limit]) + "…"
	}
	return line
}

// OneLine replaces line breaks and repeated spaces by single spaces.
func OneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// Truncate returns at most this many bytes of a text, and marks what it removes with an ellipsis.
func Truncate(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "") + "…"
}

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
