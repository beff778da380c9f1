package monitoring

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// component is the directory of what is tested, and promtool is built by make.
const (
	component = "../../manifests/components/monitoring"
	promtool  = "../../bin/promtool"
)

// A prometheusRule contains the parts of the object that the tests read.
type prometheusRule struct {
	Spec struct {
		Groups []struct {
			Name  string
			Rules []alertRule
		}
	}
}

// An alertRule is one alert.
type alertRule struct {
	Alert, Expr string
	Labels      map[string]string
}

func parsedRules(t *testing.T) prometheusRule {
	t.Helper()
	var object prometheusRule
	require.NoError(t, yaml.Unmarshal(read(t, filepath.Join(component, "rules.yaml")), &object))
	require.NotEmpty(t, object.Spec.Groups)
	return object
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return text
}

// TestRules runs the unit tests of the alerts with promtool, and its linter.
func TestRules(t *testing.T) {
	dir := t.TempDir()
	var object struct{ Spec map[string]any }
	require.NoError(t, yaml.Unmarshal(read(t, filepath.Join(component, "rules.yaml")), &object))
	rules, err := yaml.Marshal(object.Spec)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "rules.yaml"), rules, 0o600))
	tests := filepath.Join(dir, "rules.test.yaml")
	require.NoError(t, os.WriteFile(tests, read(t, "testdata/rules.test.yaml"), 0o600))
	for _, args := range [][]string{
		{"check", "rules", "--lint-fatal", filepath.Join(dir, "rules.yaml")}, {"test", "rules", tests},
	} {
		out, err := exec.CommandContext(t.Context(), programPath(), args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
}

// programPath returns the path of promtool. PROMTOOL names one outside bin/.
func programPath() string {
	if path := os.Getenv("PROMTOOL"); path != "" {
		return path
	}
	return promtool
}

// TestEveryAlertIsTested checks that the unit tests expect each alert to fire, and to be quiet.
func TestEveryAlertIsTested(t *testing.T) {
	var tests struct {
		Tests []struct {
			Expressions []struct {
				Samples []any `json:"exp_samples"`
				Expr    string
			} `json:"promql_expr_test"`
		}
	}
	require.NoError(t, yaml.Unmarshal(read(t, "testdata/rules.test.yaml"), &tests))
	fires, quiet := map[string]bool{}, map[string]bool{}
	for _, test := range tests.Tests {
		for _, e := range test.Expressions {
			if len(e.Samples) > 0 {
				fires[e.Expr] = true
			} else {
				quiet[e.Expr] = true
			}
		}
	}
	for _, group := range parsedRules(t).Spec.Groups {
		for _, rule := range group.Rules {
			query := `ALERTS{alertname="` + rule.Alert + `",alertstate="firing"}`
			require.True(t, fires[query] && quiet[query], "no test for %s", rule.Alert)
		}
	}
}
