package cli

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
)

// An EscapingWriter writes text that a terminal shows and does not obey. Names and messages of the
// API and of a host may contain control sequences. It writes a character that is neither printable
// nor a line break or tab as in JSON, such as \u001b, so that JSON keeps its meaning.
type EscapingWriter struct{ Out io.Writer }

// Write writes all of the text, which must not end within a character.
func (w EscapingWriter) Write(text []byte) (int, error) {
	var escaped strings.Builder
	for _, r := range string(text) {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) {
			escaped.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&escaped, `\u%04x`, unit)
		}
	}
	if _, err := io.WriteString(w.Out, escaped.String()); err != nil {
		return 0, err
	}
	return len(text), nil
}
