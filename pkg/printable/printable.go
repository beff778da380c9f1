// Package printable makes text of Nodes, hosts and etcd safe to show. A kubelet, a process or a
// member chooses such text. It may contain control sequences, which a terminal obeys, or characters
// that hide or reorder what follows.
package printable

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// MaxQuote is the limit of Quote.
const MaxQuote = 160

// Line returns a text as one line of printable characters, without spaces around it. Everything
// else becomes a space: control and format characters, line breaks and bytes that are not UTF-8.
// Only one of several spaces stays.
func Line(text string) string {
	isGap := func(r rune) bool { return r == ' ' || !unicode.IsPrint(r) }
	return strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text, " "), isGap), " ")
}

// Text returns a text of several lines whose other characters are printable. It replaces each run
// of other characters by one space, and keeps indentation.
func Text(text string) string {
	var clean strings.Builder
	isGap := false
	for _, r := range strings.ToValidUTF8(text, "\x00") {
		isBad := r != '\n' && !unicode.IsPrint(r)
		switch {
		case !isBad:
			clean.WriteRune(r)
		case !isGap:
			clean.WriteByte(' ')
		}
		isGap = isBad
	}
	return clean.String()
}

// Clip returns the line of a text, at most this many bytes of it. An ellipsis marks what it
// removes.
func Clip(text string, limit int) string {
	line := Line(text)
	if len(line) <= limit {
		return line
	}
	return strings.ToValidUTF8(line[:limit], "") + "…"
}

// Quote returns a text of another program as a part of a sentence: at most MaxQuote bytes.
func Quote(text string) string { return Clip(text, MaxQuote) }

// First returns the first texts, at most this many of them. If there are more, the last text is
// their number.
func First(texts []string, limit int) []string {
	if more := len(texts) - limit; more > 0 {
		return append(slices.Clone(texts[:limit]), fmt.Sprintf("and %d more", more))
	}
	return texts
}

// Join returns the texts of the items with the separator between them.
func Join[T any](items []T, separator string, text func(T) string) string {
	texts := make([]string, len(items))
	for i, item := range items {
		texts[i] = text(item)
	}
	return strings.Join(texts, separator)
}
