package host

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUnitOptions(t *testing.T) {
	service := func(name, value string) option { return option{"Service", name, value} }
	for name, c := range map[string]struct {
		text string
		want []option
	}{
		"empty":                       {},
		"comments and blank lines":    {"# a\n\n  ; b\n[Service]\n \t\n#A=1\nA=2\n", []option{service("A", "2")}},
		"blanks around":               {"  [Service] \n\tA = b c \t\n", []option{service("A", "b c")}},
		"empty value":                 {"[Service]\nA=\n", []option{service("A", "")}},
		"equals in the value":         {"[Service]\nA=b=c\n", []option{service("A", "b=c")}},
		"joined":                      {"[Service]\nA=b\\\n   c \\\n\td\nE=f\n", []option{service("A", "b c  d"), service("E", "f")}},
		"a comment between":           {"[Service]\nA=b \\\n# --old \\\n  ; older\n  c\nE=f\n", []option{service("A", "b  c"), service("E", "f")}},
		"an empty line ends it":       {"[Service]\nA=b \\\n\nE=f\n", []option{service("A", "b"), service("E", "f")}},
		"a backslash at the end":      {"[Service]\nA=b \\", []option{service("A", "b")}},
		"an escaped backslash":        {"[Service]\nA=b\\\\\nE=f\n", []option{service("A", `b\\`), service("E", "f")}},
		"lines of Windows":            {"[Service]\r\nA=b \\\r\n c\r\n", []option{service("A", "b  c")}},
		"a byte order mark":           {"\ufeff[Service]\nA=b\n", []option{service("A", "b")}},
		"no newline at the end":       {"[Service]\nA=b", []option{service("A", "b")}},
		"what is no assignment":       {"A=0\n[Service]\nnothing\n=x\nA=1\n", []option{service("A", "1")}},
		"sections":                    {"[Unit]\nA=1\n[X-Other]\nA=2\n[Service]\nA=3\n", []option{{"Unit", "A", "1"}, {"X-Other", "A", "2"}, service("A", "3")}},
		"a comment's own backslash":   {"[Service]\n# old \\\nA=1\n", []option{service("A", "1")}},
		"a line longer than a packet": {"[Service]\nA=" + strings.Repeat("x", 100_000) + "\n", []option{service("A", strings.Repeat("x", 100_000))}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := unitOptions([]byte(c.text))
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

func TestAUnitFileThatSystemdRefusesIsNotQuoted(t *testing.T) {
	for name, c := range map[string]struct{ text, err string }{
		"a setting after the section": {"\n[Service] Environment=ETCD_PASSWORD=hunter2\nA=1\n", "line 2: it begins a section"},
		"a section that is cut off":   {"[Service]\nA=1\n[Insthunter2", "line 3: it begins a section"},
		"one that is joined":          {"[Service \\\n hunter2\n", "line 2: it begins a section"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := unitOptions([]byte(c.text))
			require.ErrorContains(t, err, c.err)
			require.NotContains(t, err.Error(), "hunter2")
		})
	}
}
