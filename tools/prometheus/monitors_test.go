package monitoring

import (
	"path/filepath"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// TestTypes checks that the Prometheus Operator knows every field of its objects.
func TestTypes(t *testing.T) {
	types := map[string]func() any{
		"PodMonitor":     func() any { return &monitoringv1.PodMonitor{} },
		"ServiceMonitor": func() any { return &monitoringv1.ServiceMonitor{} },
		"PrometheusRule": func() any { return &monitoringv1.PrometheusRule{} },
	}
	found := map[string]bool{}
	for _, file := range []string{"monitors.yaml", "rules.yaml"} {
		for _, document := range strings.Split(string(read(t, filepath.Join(component, file))), "\n---\n") {
			var object struct{ APIVersion, Kind string }
			require.NoError(t, yaml.Unmarshal([]byte(document), &object))
			if object.APIVersion != "monitoring.coreos.com/v1" {
				continue
			}
			require.NotNil(t, types[object.Kind], object.Kind)
			require.NoError(t, yaml.UnmarshalStrict([]byte(document), types[object.Kind]()), object.Kind)
			found[object.Kind] = true
		}
	}
	require.Len(t, found, len(types))
}
