package charts_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// TestEmptyValues checks that no value without an empty form can be removed, as by a key with
// nothing behind it in a file with values. A template takes that for false: drains would not be
// guarded, and helm uninstall would delete the EtcdClusters.
func TestEmptyValues(t *testing.T) {
	text, err := os.ReadFile("holdfast/values.yaml")
	require.NoError(t, err)
	var values object
	require.NoError(t, yaml.Unmarshal(text, &values))
	var removed []string
	for name, value := range leaves(t, "", values) {
		if value != "" && !strings.ContainsAny(value, "[{") {
			removed = append(removed, name)
		}
	}
	require.Contains(t, removed, "drains.enabled")
	_, err = template(t, "1.36.0", strings.Split(strings.Join(removed, "=null ")+"=null", " ")...)
	require.Error(t, err)
	for _, name := range removed {
		parent, key := "", name
		if at := strings.LastIndex(name, "."); at >= 0 {
			parent, key = "/"+strings.ReplaceAll(name[:at], ".", "/"), name[at+1:]
		}
		require.Regexp(t, "at '"+parent+"': missing propert.*'"+key+"'", err.Error())
	}
}
