package holdwatch

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// What people look up is what they were told.
func TestOperationsPage(t *testing.T) {
	root, err := testenv.RepositoryRoot()
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(root, "docs/operations.md"))
	require.NoError(t, err)
	page := string(text)
	held := readiness.Record{State: readiness.Held, Reason: readiness.NewNode}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "<node>", Annotations: map[string]string{readiness.HoldAnnotation: held.Format()}}}
	node.Spec.Unschedulable = true
	require.Contains(t, page, readiness.ManualRelease(node))
	require.Contains(t, page, "kubectl -n "+namespace+" create configmap "+Parameter)
	for _, word := range []string{
		readiness.AgentMissing, readiness.Overdue, readiness.EventOverdue, readiness.EventGivenUp, EventSwitchedOff, EventLeftOn,
	} {
		require.Contains(t, page, "`"+word+"`")
	}
	for _, s := range readiness.Standings() {
		require.Contains(t, page, "`"+string(s)+"`")
	}
	registry := prometheus.NewRegistry()
	_, err = newMetrics(registry)
	require.NoError(t, err)
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		require.Contains(t, page, f.GetName())
	}
}
