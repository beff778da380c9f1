package plugin

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/holdfast-dev/holdfast/internal/operator/cli"
)

// TestFormats: a program can read both formats, also with characters that a terminal must not get,
// and several reports, which status --watch prints.
func TestFormats(t *testing.T) {
	report := map[string]string{"a": "no\u00a0break, \u202e, \x1b[31m and \U000e0001", "b": "größer:\u3000x"}
	readable := map[string]string{"a": "no break,  , \x1b[31m and  ", "b": "größer: x"}
	for format, want := range map[reportFormat]map[string]string{asJSON: report, asYAML: readable} {
		var out bytes.Buffer
		for range 2 {
			require.NoError(t, format.write(cli.EscapingWriter{Out: &out}, report, ""))
		}
		text := out.String()
		reports := yaml.NewYAMLOrJSONDecoder(&out, 1024)
		for range 2 {
			var got map[string]string
			require.NoError(t, reports.Decode(&got), text)
			require.Equal(t, want, got, text)
		}
	}
}
