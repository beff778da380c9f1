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

// drainedNode cordons, drains, reboots and uncordons the first node, as kured does: it does not
// wait until etcd is back.
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
	h.probeTimes(4, 15*time.Second)
	h.probeTimes(2, 10*time.Minute)
	require.True(t, h.hasGrant(0), "a node that is cordoned is still to restart, however long its member answers")

	// The machine restarts. kured uncordons the node as soon as its kubelet runs.
	f.ChangeAgents(func() { f.Silent[f.Nodes[0].Name], f.Members[0].Healthy = true, false })
	h.probeTimes(4, 15*time.Second)
	f.Cordon(0, false)
	h.probeTimes(4, 15*time.Second)
	require.True(t, h.hasGrant(0), "its proofs are from before the restart")
	f.ChangeAgents(func() { f.Silent[f.Nodes[0].Name], f.Members[0].Healthy = false, true })
	h.probeTimes(3, returnTick)
	require.True(t, h.hasGrant(0), "three proofs, five seconds apart")
	require.Eventually(t, func() bool { return len(h.leader.wake) > 0 }, storetest.WaitTimeout, storetest.PollInterval,
		"the next probe wakes the loop")
	for range 30 { // On a busy machine an agent may answer late, and its series begins again.
		h.probeTimes(1, 15*time.Second)
		if !h.hasGrant(0) {
			break
		}
		require.False(t, h.review(t, f.Request(1)).Allowed)
	}
	require.False(t, h.hasGrant(0))
	require.Contains(t, h.events(), "Normal Settled")
	require.NotContains(t, printedRow(t, f), f.Nodes[0].Name)
	f.Cordon(1, true)
	next := h.review(t, f.Drain(1))
	require.True(t, next.Allowed, next.Message)
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

// drainedAndDeleted drains the first node. It is then deleted without a review.
func drainedAndDeleted(t *testing.T, f *storetest.Fixture) {
	f.RunAgents()
	h := newHarness(t, f)
	h.bindAll()
	f.Cordon(0, true)
	require.True(t, h.review(t, f.Drain(0)).Allowed)
	h.probeTimes(2, 15*time.Minute)
	f.DeleteNode(0)
	f.ChangeAgents(func() { f.Members, f.Silent[f.Nodes[0].Name] = f.Members[1:], true })
	c := h.reconcileUntil("a tombstone", func(c *v1alpha1.EtcdCluster) bool {
		g := storetest.GrantFor(c, f.Nodes[0].UID)
		return g != nil && g.Gone != nil
	})
	grant := storetest.GrantFor(c, f.Nodes[0].UID)
	require.Greater(t, grant.Gone.Time.Sub(grant.Drain.Time.Time), 29*time.Minute)
	h.probeTimes(2, 9*time.Minute)
	require.True(t, h.hasGrant(0), "the machine may join again for twenty minutes from now")
	h.probeUntilEnd(f.Nodes[0].UID)
}
