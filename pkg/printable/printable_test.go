package printable_test

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/pkg/printable"
)

func TestLine(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"empty":          {"", ""},
		"plain":          {"etcd 2 is down", "etcd 2 is down"},
		"spaces":         {"  a \t\r\n b  ", "a b"},
		"terminal":       {"a\x1b]52;c;cm0=\x07b\x1b[8m", "a ]52;c;cm0= b [8m"},
		"C1":             {"a\u009b8mb", "a 8mb"},
		"bidirectional":  {"a\u202e\u2066b\u2069c", "a b c"},
		"zero width":     {"a\u200b\ufeffb", "a b"},
		"line separator": {"a\u2028b\u00a0c", "a b c"},
		"not UTF-8":      {"a\xff\xfeb\xc3", "a b"},
		"replacement":    {"a\ufffdb", "a\ufffdb"},
		"other scripts":  {"Größe 大小 ⌊3⌋ …", "Größe 大小 ⌊3⌋ …"},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, test.want, printable.Line(test.text)) })
	}
}

func TestText(t *testing.T) {
	require.Equal(t, "a:\n  - b  c\n\n", printable.Text("a:\n  - b  c\n\n"))
	require.Equal(t, "a\n b [2J", printable.Text("a\n\t\rb\x1b\x1b[2J"))
}

func TestClip(t *testing.T) {
	require.Equal(t, "abc", printable.Clip("abc", 3))
	require.Equal(t, "ab…", printable.Clip("abc", 2))
	require.Equal(t, "a…", printable.Clip("aßc", 2), "no half of a character")
	require.Equal(t, "…", printable.Clip("ß", 0))
	long := printable.Quote(strings.Repeat("ß ", 200))
	require.LessOrEqual(t, len(long), printable.MaxQuote+len("…"))
	require.Equal(t, long, printable.Quote(long))
}

func TestFirst(t *testing.T) {
	all := []string{"a", "b", "c"}
	require.Equal(t, all, printable.First(all, 3))
	require.Equal(t, []string{"a", "and 2 more"}, printable.First(all, 1))
	require.Equal(t, []string{"a", "b", "c"}, all)
}

func TestJoin(t *testing.T) {
	require.Equal(t, "a-B-c", printable.Join([]string{"a", " B", "c\n"}, "-", printable.Line))
	require.Empty(t, printable.Join(nil, "-", printable.Line))
}

func FuzzPrintable(f *testing.F) {
	f.Add("a\x1b]52;c;cm0=\x07\xff\u202e\n b", 3)
	f.Fuzz(func(t *testing.T, text string, limit int) {
		line, lines := printable.Line(text), printable.Text(text)
		require.True(t, utf8.ValidString(line) && utf8.ValidString(lines))
		require.Equal(t, line, printable.Line(line))
		require.Equal(t, lines, printable.Text(lines))
		require.NotContains(t, line, "\n")
		require.NotContains(t, line, "  ")
		require.False(t, strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }))
		if limit >= 0 && limit < 1000 {
			clipped := printable.Clip(text, limit)
			require.LessOrEqual(t, len(clipped), limit+len("…"))
			require.True(t, strings.HasPrefix(line, strings.TrimSuffix(clipped, "…")))
		}
	})
}
