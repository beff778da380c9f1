package docs

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// TestSecretsOfWorkflows checks that a step with a secret in its environment builds nothing, and
// that no whole job or workflow has one: a build runs programs of others.
func TestSecretsOfWorkflows(t *testing.T) {
	t.Chdir(root)
	files, err := filepath.Glob(".github/workflows/*")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	withSecret := 0
	for _, file := range files {
		var workflow struct {
			Env  map[string]string
			Jobs map[string]struct {
				Env   map[string]string
				Steps []struct {
					Run string
					Env map[string]string
				}
			}
		}
		require.NoError(t, yaml.Unmarshal([]byte(read(t, file)), &workflow), file)
		require.False(t, hasSecret(workflow.Env), file)
		for name, job := range workflow.Jobs {
			require.False(t, hasSecret(job.Env), "%s: %s", file, name)
			for _, step := range job.Steps {
				require.NotContains(t, step.Run, "secrets.", file)
				if !hasSecret(step.Env) {
					continue
				}
				withSecret++
				require.NotRegexp(t, `(?m)(^|[\s;&|(])(make|go|docker)\s`, step.Run, file)
			}
		}
	}
	require.NotZero(t, withSecret)
}

func hasSecret(env map[string]string) bool {
	for _, value := range env {
		if strings.Contains(value, "secrets.") {
			return true
		}
	}
	return false
}
