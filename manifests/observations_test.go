package manifests_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
)

const (
	clusterPath = "/apis/holdfast.dev/v1alpha1/etcdclusters"
	// clusterHead is the beginning of every body.
	clusterHead = `{"apiVersion":"holdfast.dev/v1alpha1","kind":"EtcdCluster","metadata":{"name":"cdf818194e3a8c32"}`
	// ownEntry is an observation of the agent of node own.
	ownEntry = `{"node":"own","nodeUID":"u1","time":"2026-01-02T03:04:05Z"}`
	// otherEntry is the observation that the agent of node other has published.
	otherEntry = `{"node":"other","nodeUID":"u2","time":"2026-01-02T03:04:05Z","linearizable":true,` +
		`"members":[{"id":"1","healthy":true}]}`
)

// observations returns the end of a body: a status with these observations.
func observations(entries ...string) string {
	return `,"status":{"observations":[` + strings.Join(entries, ",") + `]}}`
}

func testAgentObservations(t *testing.T, server *apiserver.Server) {
	addNodes(t, server, "own", "other")
	admin := server.Client().RESTClient()
	body := []byte(clusterHead + `,"spec":{"ledger":0}}`)
	require.NoError(t, admin.Post().AbsPath(clusterPath).Body(body).Do(t.Context()).Error())
	own := serviceAccount(t, server, "holdfast-agent", "own")
	other := serviceAccount(t, server, "holdfast-agent", "other")
	require.NoError(t, apply(t.Context(), other, "holdfast/other", "status", observations(otherEntry), false))
	voters := `,"status":{"voters":3}}`
	require.NoError(t, apply(t.Context(), server.Client(), "holdfast-webhook", "status", voters, false))

	t.Run("entries", func(t *testing.T) {
		testEntries(t, own, serviceAccount(t, server, "holdfast-agent", ""))
	})
	t.Run("own entry removed", func(t *testing.T) {
		require.NoError(t, apply(t.Context(), own, "holdfast/own", "status", observations(ownEntry), false))
		require.NoError(t, apply(t.Context(), own, "holdfast/own", "status", `}`, false))
		text, err := admin.Get().AbsPath(clusterPath, "cdf818194e3a8c32").Do(t.Context()).Raw()
		require.NoError(t, err)
		require.Contains(t, string(text), `"u2"`)
		require.NotContains(t, string(text), `"u1"`)
	})
	t.Run("limits", func(t *testing.T) { testLimits(t, own) })
	t.Run("spec", func(t *testing.T) {
		ledger := `,"spec":{"ledger":7}}`
		require.True(t, apierrors.IsForbidden(apply(t.Context(), own, "holdfast/own", "", ledger, true)), "RBAC")
		err := apply(t.Context(), unrestrictedAgent(t, server), "holdfast/own", "", ledger, true)
		requireVerdict(t, "the status of an EtcdCluster only", err)
	})
}

func testEntries(t *testing.T, own, unbound *kubernetes.Clientset) {
	const (
		notMine = "may change the observation of that node only"
		summary = "an agent may change observations only"
		noNode  = "must say on which node it runs"
		ready   = `{"type":"X","status":"True","reason":"Y","message":"","lastTransitionTime":"2026-01-02T03:04:05Z"}`
		foreign = `{"node":"other","nodeUID":"u9","time":"2026-01-02T03:04:05Z"}`
		unknown = `{"node":"third","nodeUID":"u3","time":"2026-01-02T03:04:05Z"}`
		manager = "holdfast/other"
	)
	for name, test := range map[string]struct {
		as                  *kubernetes.Clientset
		manager, body, want string
	}{
		"own entry":                 {body: observations(ownEntry)},
		"entry of another node":     {body: observations(foreign), want: notMine},
		"own and another entry":     {body: observations(ownEntry, foreign), want: notMine},
		"entry of unknown node":     {body: observations(unknown), want: notMine},
		"manager of another agent":  {manager: manager, body: observations(ownEntry), want: notMine},
		"nothing for other manager": {manager: manager, body: `,"status":{}}`, want: notMine},
		"summary":                   {body: `,"status":{"voters":5}}`, want: summary},
		"condition":                 {body: `,"status":{"conditions":[` + ready + `]}}`, want: summary},
		"summary removed":           {manager: "holdfast-webhook", body: `,"status":{}}`, want: summary},
		"unbound token":             {as: unbound, body: observations(ownEntry), want: noNode},
	} {
		t.Run(name, func(t *testing.T) {
			client, manager := cmp.Or(test.as, own), cmp.Or(test.manager, "holdfast/own")
			requireVerdict(t, test.want, apply(t.Context(), client, manager, "status", test.body, true))
		})
	}
}

// testLimits publishes the largest entry that agents write, and entries that exceed one limit.
func testLimits(t *testing.T, own *kubernetes.Clientset) {
	url := "https://" + strings.Repeat("u", 292)
	for name, test := range map[string]struct {
		uid, url, alarm, id, own, nonce string
		urls, members                   int
		want                            string
	}{
		"largest entry":       {},
		"too many members":    {members: 21, want: "must have at most 20 items"},
		"too many URLs":       {urls: 17, want: "must have at most 16 items"},
		"long URL":            {url: url + "u", want: "may not be more than 300"},
		"malformed URL":       {url: "https://\u00e4", want: "should match"},
		"long alarm":          {alarm: strings.Repeat("A", 33), want: "may not be more than 32"},
		"member ID 0":         {id: "0", want: "should match"},
		"malformed member ID": {id: "etcd1", want: "should match"},
		"duplicate member":    {id: "2", want: "duplicate"},
		"local member ID 0":   {own: "0", want: "should match"},
		"long nonce":          {nonce: strings.Repeat("n", 65), want: "may not be more than 64"},
		"long UID":            {uid: strings.Repeat("a", 37), want: "may not be more than 36"},
	} {
		t.Run(name, func(t *testing.T) {
			urls := slices.Repeat([]string{cmp.Or(test.url, url)}, cmp.Or(test.urls, 16))
			var members []map[string]any
			for i := range cmp.Or(test.members, 20) {
				id := fmt.Sprintf("%x", i+1)
				if i == 0 {
					id = cmp.Or(test.id, id)
				}
				members = append(members, map[string]any{
					"id": id, "name": strings.Repeat("n", 512), "peerURLs": urls, "clientURLs": urls,
					"reason": strings.Repeat("r", 1024), "alarms": []string{cmp.Or(test.alarm, strings.Repeat("A", 32))},
				})
			}
			entry, err := json.Marshal(map[string]any{
				"node": "own", "nodeUID": cmp.Or(test.uid, strings.Repeat("a", 36)), "time": "2026-01-02T03:04:05Z",
				"problem": strings.Repeat("p", 1024), "members": members,
				"localMember": cmp.Or(test.own, "1"), "nonce": cmp.Or(test.nonce, "n"),
			})
			require.NoError(t, err)
			err = apply(t.Context(), own, "holdfast/own", "status", observations(string(entry)), true)
			if test.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, test.want)
			}
		})
	}
}

// apply applies a body to the EtcdCluster as a field manager, with force, as agents do.
func apply(
	ctx context.Context, client *kubernetes.Clientset, manager, subresource, body string, dry bool,
) error {
	request := client.RESTClient().Patch(types.ApplyYAMLPatchType).
		AbsPath(clusterPath, "cdf818194e3a8c32", subresource).
		Param("fieldManager", manager).Param("force", "true").Body([]byte(clusterHead + body))
	if dry {
		request = request.Param("dryRun", "All")
	}
	return request.Do(ctx).Error()
}
