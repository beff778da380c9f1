package host

import (
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDecodeYAML(t *testing.T) {
	for name, c := range map[string]struct{ text, problem string }{
		"nothing":                 {"", ""},
		"a mapping":               {"a: b\n", ""},
		"an anchor that is used":  {"x: &x {b: c}\na: *x\nd: {<<: *x}\n", ""},
		"half a sequence":         {"a: [secret", "it is not valid YAML, line 1"},
		"a tab":                   {"a: b\n\tsecret: d\n", "it is not valid YAML, line 2"},
		"a key that is null":      {"a: b\n~: secret\n", "it is YAML of another form than is expected there"},
		"a key that is a list":    {"? [secret]\n: b\n", "it is YAML of another form than is expected there"},
		"no mapping":              {"secret\n", "it is YAML of another form than is expected there"},
		"an alias of nothing":     {"a: *secret\n", "it is not valid YAML"},
		"an anchor within itself": {"a: &a [*a]\n", string(errYAMLAlias)},
		"much by aliases":         {"a: &a " + strings.Repeat("x", 60<<10) + "\nb: [*a, *a, *a]\n", string(errYAMLAlias)},
		"much":                    {strings.Repeat("# a comment\n", 6000), string(errYAMLSize)},
		"deep":                    {strings.Repeat("[", 200) + strings.Repeat("]", 200), string(errYAMLAlias)},
	} {
		t.Run(name, func(t *testing.T) {
			var into map[string]any
			err := decodeYAML([]byte(c.text), &into)
			if c.problem == "" {
				require.NoError(t, err)
				return
			}
			require.EqualError(t, err, c.problem)
		})
	}
}

// TestYAMLCostsLittleMemory decodes what costs the most for its size. The agent has 128 MiB.
func TestYAMLCostsLittleMemory(t *testing.T) {
	many := func(text string, n int) string { return strings.Repeat(text, n) }
	for name, text := range map[string]string{
		"a large anchor, often":     "a: &a " + many("x", 60<<10) + "\nb: [" + many("*a,", 1000) + "]\n",
		"an anchor of an anchor":    "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c]\ne: [*d,*d,*d,*d,*d,*d,*d]\n",
		"many entries":              "a: [" + many("a,", 32000) + "]\n",
		"many mappings":             "a: [" + many("{a: },", 10000) + "]\n",
		"aliases up to the limit":   "a: &a [" + many("{},", 1000) + "]\nb: [" + many("*a,", 50) + "]\n",
		"one key and another value": many("a: b\n", 13000),
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			var into map[string]any
			_ = decodeYAML([]byte(text), &into) // whether it is taken does not matter
			runtime.ReadMemStats(&after)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(48<<20), "of %d bytes", len(text))
		})
	}
}
