package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// TestAlerts checks that each alert has a severity, texts and a page, and that each page is about
// an alert.
func TestAlerts(t *testing.T) {
	t.Chdir(root)
	var object struct {
		Spec struct {
			Groups []struct {
				Rules []struct {
					Alert, For          string
					Labels, Annotations map[string]string
				}
			}
		}
	}
	require.NoError(t, yaml.Unmarshal([]byte(read(t, "manifests/components/monitoring/rules.yaml")), &object))
	index, documented := read(t, "docs/alerts/README.md"), map[string]bool{"README": true}
	for _, group := range object.Spec.Groups {
		for _, rule := range group.Rules {
			page := read(t, "docs/alerts/"+rule.Alert+".md")
			require.True(t, strings.HasPrefix(page, "# "+rule.Alert+"\n\nSeverity: "+rule.Labels["severity"]+"\n"), rule.Alert)
			for _, heading := range []string{"Meaning", "Diagnosis", "Actions"} {
				require.Contains(t, page, "\n## "+heading+"\n", rule.Alert)
			}
			require.Contains(t, index, "| ["+rule.Alert+"]("+rule.Alert+".md) | "+rule.Labels["severity"]+" |")
			require.Equal(t, "https://github.com/holdfast-dev/holdfast/blob/main/docs/alerts/"+rule.Alert+".md",
				rule.Annotations["runbook_url"])
			require.NotEmpty(t, rule.Annotations["summary"], rule.Alert)
			require.NotEmpty(t, rule.Annotations["description"], rule.Alert)
			documented[rule.Alert] = true
		}
	}
	require.Greater(t, len(documented), 20)
	pages, err := os.ReadDir("docs/alerts")
	require.NoError(t, err)
	for _, page := range pages {
		require.True(t, documented[strings.TrimSuffix(page.Name(), filepath.Ext(page.Name()))], page.Name())
	}
}

// TestLogCommands checks that each `kubectl logs` with a selector prints all lines: without --tail
// it prints the last ten of each pod.
func TestLogCommands(t *testing.T) {
	t.Chdir(root)
	logs := regexp.MustCompile(`kubectl [^\n|]*\blogs -l [^\n|]*`)
	found := 0
	for path, text := range pages(t) {
		for _, command := range logs.FindAllString(text, -1) {
			found++
			require.Contains(t, command, " --tail=", path)
		}
	}
	require.Greater(t, found, 5)
}
