package cli_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/operator/cli"
)

func TestEscapingWriter(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"plain":         {"NAME\tVOTERS\nc1  ⌊3⌋ größer\n", "NAME\tVOTERS\nc1  ⌊3⌋ größer\n"},
		"terminal":      {"\x1b]52;c;cm0=\x07\r", `\u001b]52;c;cm0=\u0007\u000d`},
		"C1":            {"\u009b8m", `\u009b8m`},
		"bidirectional": {"a\u202eb\u200b", `a\u202eb\u200b`},
		"two units":     {"\U000e0001", `\udb40\udc01`},
		"not UTF-8":     {"a\xffb", "a\ufffdb"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			n, err := cli.EscapingWriter{Out: &out}.Write([]byte(test.text))
			require.NoError(t, err)
			require.Equal(t, len(test.text), n)
			require.Equal(t, test.want, out.String())
		})
	}
}

// FuzzEscapingWriter checks that JSON keeps its meaning.
func FuzzEscapingWriter(f *testing.F) {
	f.Add("\x1b]52;c;\x07\u202e\"\\\U000e0001")
	f.Fuzz(func(t *testing.T, text string) {
		before, err := json.Marshal(text)
		require.NoError(t, err)
		var out bytes.Buffer
		_, err = cli.EscapingWriter{Out: &out}.Write(before)
		require.NoError(t, err)
		require.False(t, strings.ContainsFunc(out.String(), func(r rune) bool { return !unicode.IsPrint(r) }))
		var want, got string
		require.NoError(t, json.Unmarshal(before, &want))
		require.NoError(t, json.Unmarshal(out.Bytes(), &got))
		require.Equal(t, want, got)
	})
}
