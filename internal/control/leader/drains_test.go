package leader

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore/storetest"
)

// drainedNode drains a node and opens it again. While its member has not returned, the summary and
// what kubectl prints name the drain, and the leader probes more often.
func drainedNode(t *testing.T, f *storetest.Fixture) {
	f.RunAgents()
	h := newHarness(t, f)
	h.bindAll()
	f.Cordon(0, true)
	require.True(t, h.review(t, f.Drain(0)).Allowed)
	h.reconcileUntil("a summary that names the drain", func(c *v1alpha1.EtcdCluster) bool {
		visible := meta.FindStatusCondition(c.Status.Conditions, visibleCondition)
		return visible != nil && c.Status.MayLose != nil && *c.Status.MayLose == 0 &&
			strings.Contains(visible.Message, "the drain of its node "+f.Nodes[0].Name+" by alice was allowed at ")
	})
	require.Contains(t, printedRow(t, f), f.Nodes[0].Name)
	f.Cordon(0, false)
	h.probeTimes(3, returnTick)
	require.True(t, h.hasGrant(0), "three proofs, five seconds apart")
	require.Eventually(t, func() bool { return len(h.leader.wake) > 0 }, storetest.WaitTimeout, storetest.PollInterval,
		"the next probe wakes the loop")
	for range 30 { // On a busy machine an agent may answer late, and its series begins again.
		if !h.hasGrant(0) {
			break
		}
		h.probeTimes(1, 15*time.Second)
	}
	require.False(t, h.hasGrant(0))
	require.Contains(t, h.events(), "Normal Settled")
	require.NotContains(t, printedRow(t, f), f.Nodes[0].Name)
}

// printedRow returns what `kubectl get etcdclusters` prints about the cluster.
func printedRow(t *testing.T, f *storetest.Fixture) []any {
	t.Helper()
	transport, err := rest.HTTPClientFor(f.Config)
	require.NoError(t, err)
	url := f.Config.Host + "/apis/holdfast.dev/v1alpha1/etcdclusters/" + string(f.ClusterID)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	request.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	response, err := transport.Do(request)
	require.NoError(t, err)
	defer func() { require.NoError(t, response.Body.Close()) }()
	var table metav1.Table
	require.NoError(t, json.NewDecoder(response.Body).Decode(&table))
	require.Len(t, table.Rows, 1)
	return table.Rows[0].Cells
}
