package manifests_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
)

const (
	// etcdLimit is the size of the largest object that etcd stores (--max-request-bytes).
	etcdLimit = 1536 * 1024
	// boundNodes is the number of Nodes to which members can be bound: a member list has at most
	// 20 entries. unboundNodes is the number of other Nodes that may publish.
	boundNodes, unboundNodes = 20, 30
)

// testWorstObservations fills an EtcdCluster with the largest observations that the policies
// allow, of as many Nodes as possible. Grants, the summary and the command that resolves a grant
// by hand still work.
func testWorstObservations(t *testing.T, server *apiserver.Server) {
	addCluster(t, server)
	names := make([]string, boundNodes+unboundNodes+1)
	var bindings []map[string]any
	for i := range names {
		names[i] = longName(i)
		uid := addBareNode(t, server, names[i])
		if i < boundNodes {
			bindings = append(bindings, map[string]any{"memberID": fmt.Sprintf("%x", i+1), "node": names[i], "nodeUID": uid})
		}
	}
	patchCluster(t, server, types.MergePatchType, map[string]any{"spec": map[string]any{"members": bindings}})
	for i, name := range names[:boundNodes+unboundNodes] {
		publishWorst(t, server, name, i == 0 || i == boundNodes)
	}
	last := names[boundNodes+unboundNodes]
	agent := serviceAccount(t, server, "holdfast-agent", last)
	body := observations(entry(last, nodeUID(t, server, last)))
	err := apply(t.Context(), agent, "holdfast/own", "status", body, true)
	requireVerdict(t, "at most 30 observations of nodes to which no member is bound", err)
	full := len(storedCluster(t, server))
	t.Logf("%d observations: %d bytes, %d %% of what etcd stores", boundNodes+unboundNodes, full, 100*full/etcdLimit)
	require.Less(t, full, etcdLimit*2/3)

	var grants []map[string]any
	for i := range boundNodes {
		grants = append(grants, map[string]any{
			"node": names[i], "nodeUID": bindings[i]["nodeUID"], "members": []string{fmt.Sprintf("%x", i+1)},
			"time": "2026-01-02T03:04:05Z", "user": strings.Repeat("<", 1024),
		})
	}
	patchCluster(t, server, types.JSONPatchType, []map[string]any{
		{"op": "test", "path": "/spec/ledger", "value": 0},
		{"op": "replace", "path": "/spec/ledger", "value": 1},
		{"op": "add", "path": "/spec/grants", "value": grants},
	})
	summary := `,"status":{"voters":20,"healthy":0,"quorum":11,"mayLose":0}}`
	webhook := serviceAccount(t, server, "holdfast-webhook", "")
	require.NoError(t, apply(t.Context(), webhook, "holdfast-webhook", "status", summary, false))
	_, err = server.Kubectl(t.Context(), "annotate", "--overwrite", "etcdcluster", "cdf818194e3a8c32",
		fmt.Sprintf("holdfast.dev/settle=%s", bindings[0]["nodeUID"]))
	require.NoError(t, err)
	patchCluster(t, server, types.JSONPatchType, []map[string]any{
		{"op": "test", "path": "/spec/ledger", "value": 1},
		{"op": "replace", "path": "/spec/ledger", "value": 2},
		{"op": "add", "path": "/spec/grants", "value": grants[1:]},
		{"op": "remove", "path": "/metadata/annotations/holdfast.dev~1settle"},
	})
	require.Less(t, len(storedCluster(t, server)), etcdLimit*9/10)
}

// longName returns a name of a Node of almost the greatest length.
func longName(i int) string {
	return fmt.Sprintf("n%d", i) + strings.Repeat("."+strings.Repeat("x", 60), 4)
}

// addBareNode creates a Node without a kubelet, and returns its UID.
func addBareNode(t *testing.T, server *apiserver.Server, name string) string {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	made, err := server.Client().CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { remove(t, server, name) })
	return string(made.UID)
}

// patchCluster patches the EtcdCluster as the webhook.
func patchCluster(t *testing.T, server *apiserver.Server, kind types.PatchType, patch any) {
	t.Helper()
	body, err := json.Marshal(patch)
	require.NoError(t, err)
	webhook := serviceAccount(t, server, "holdfast-webhook", "").RESTClient()
	request := webhook.Patch(kind).AbsPath(clusterPath, "cdf818194e3a8c32").Body(body)
	require.NoError(t, request.Do(t.Context()).Error())
}

// publishWorst publishes the largest observation that the policies allow. It consists of many
// short texts, each of which needs punctuation. With all field managers, it uses as many of them
// as the policies allow.
func publishWorst(t *testing.T, server *apiserver.Server, node string, allManagers bool) {
	t.Helper()
	short := slices.Repeat([]string{"u"}, 8)
	var members []map[string]any
	for i := range 20 {
		members = append(members, map[string]any{
			"id": fmt.Sprintf("%016x", uint64(0xf000000000000000)+uint64(i)), "peerURLs": short, "clientURLs": short,
			"alarms": slices.Repeat([]string{"A"}, 8), "name": strings.Repeat("n", 256), "reason": strings.Repeat("r", 120),
			"learner": false, "healthy": false,
		})
	}
	worst, err := json.Marshal(map[string]any{
		"node": node, "nodeUID": nodeUID(t, server, node), "time": "2026-01-02T03:04:05Z", "linearizable": false,
		"alarmsUnknown": false, "nonce": strings.Repeat("<", 64), "localMember": "ffffffffffffffff",
		"leader": "ffffffffffffffff", "problem": strings.Repeat("p", 1024), "members": members,
	})
	require.NoError(t, err)
	agent := serviceAccount(t, server, "holdfast-agent", node)
	managers := []string{strings.Repeat("m", 120) + node[:4]}
	if allManagers {
		managers = append(managers, strings.Repeat("o", 120)+node[:4])
	}
	for _, manager := range managers {
		require.NoError(t, apply(t.Context(), agent, manager, "status", observations(string(worst)), false))
	}
}
