package charts_test

import (
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

func TestLint(t *testing.T) {
	out, err := helm(t, "", "lint", "--strict", "--namespace", namespace, "holdfast")
	require.NoError(t, err)
	require.Contains(t, out, "1 chart(s) linted, 0 chart(s) failed")
}

// TestReadme checks that the README of the chart lists every value with its default, and no others.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("holdfast/values.yaml")
	require.NoError(t, err)
	var values object
	require.NoError(t, yaml.Unmarshal(text, &values))
	page, err := os.ReadFile("holdfast/README.md")
	require.NoError(t, err)
	listed := map[string]string{}
	for line := range strings.Lines(string(page)) {
		if cells := strings.Split(line, " | "); len(cells) == 3 && strings.HasPrefix(line, "| `") {
			listed[strings.Trim(cells[0], "| `")] = strings.Trim(cells[1], "`")
		}
	}
	require.Equal(t, leaves(t, "", values), listed)
}

// leaves returns the values without fields of their own, as JSON, by their path. The fields of
// resources belong to Kubernetes.
func leaves(t *testing.T, prefix string, values object) map[string]string {
	t.Helper()
	found := map[string]string{}
	for key, value := range values {
		inner, isObject := value.(object)
		if isObject && len(inner) > 0 && key != "resources" {
			maps.Copy(found, leaves(t, prefix+key+".", inner))
			continue
		}
		text, err := yaml.Marshal(value)
		require.NoError(t, err)
		asJSON, err := yaml.YAMLToJSON(text)
		require.NoError(t, err)
		found[prefix+key] = strings.Trim(string(asJSON), `"`)
	}
	return found
}
