package plugin

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/internal/operator/cli"
)

// TestFormats: a program can read both formats, also with characters that a terminal must not get.
func TestFormats(t *testing.T) {
	report := map[string]string{"a": "no\u00a0break, \u202e, \x1b[31m and \U000e0001", "b": "größer:\u3000x"}
	readable := map[string]string{"a": "no break,  , \x1b[31m and  ", "b": "größer: x"}
	for format, want := range map[reportFormat]map[string]string{asJSON: report, asYAML: readable} {
		var out bytes.Buffer
		require.NoError(t, format.write(cli.EscapingWriter{Out: &out}, report, ""))
		var got map[string]string
		read := json.Unmarshal
		if format == asYAML {
			read = func(text []byte, value any) error { return yaml.Unmarshal(text, value) }
		}
		require.NoError(t, read(out.Bytes(), &got), out.String())
		require.Equal(t, want, got, out.String())
	}
}
