package manifests_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// testFlowControl asks the API server, which tells it with every answer, in which queue a request has waited: what agents
// say of their Nodes in one of its own; what a deletion waits for, of agents or of the webhook, not behind it.
func testFlowControl(t *testing.T, server *testenv.APIServer) {
	level, err := server.Client().FlowcontrolV1().PriorityLevelConfigurations().Get(t.Context(), "holdfast-agents", metav1.GetOptions{})
	require.NoError(t, err)
	for _, row := range []struct {
		account, verb, path string
		own                 bool
	}{
		{"holdfast-agent", http.MethodGet, "/api/v1/nodes", true},
		{"holdfast-agent", http.MethodPatch, "/api/v1/nodes/none", true},
		{"holdfast-agent", http.MethodPatch, "/api/v1/nodes/none/status", true},
		{"holdfast-agent", http.MethodPost, "/api/v1/namespaces/default/events", true},
		{"holdfast-agent", http.MethodPatch, "/apis/holdfast.dev/v1alpha1/etcdclusters/none/status", false},
		{"holdfast-webhook", http.MethodGet, "/api/v1/nodes", false},
	} {
		config, err := server.ServiceAccountConfig(t.Context(), "holdfast-system", row.account, "")
		require.NoError(t, err)
		client, err := rest.HTTPClientFor(config)
		require.NoError(t, err)
		require.Eventually(t, func() bool { // the API server learns of its levels by a watch
			request, err := http.NewRequestWithContext(t.Context(), row.verb, config.Host+row.path, nil)
			require.NoError(t, err)
			answer, err := client.Do(request)
			require.NoError(t, err)
			require.NoError(t, answer.Body.Close())
			waitedIn := answer.Header.Get("X-Kubernetes-Pf-Prioritylevel-Uid")
			return waitedIn != "" && (waitedIn == string(level.UID)) == row.own
		}, soon, poll, "%+v", row)
	}
}
