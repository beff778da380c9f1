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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/internal/testenv"
)

const (
	clusterPath = "/apis/holdfast.dev/v1alpha1/etcdclusters"
	// typed begins every body.
	typed = `{"apiVersion":"holdfast.dev/v1alpha1","kind":"EtcdCluster","metadata":{"name":"cdf818194e3a8c32"}`
	mine  = `{"node":"own","nodeUID":"u1","time":"2026-01-02T03:04:05Z"}`
	// theirs is what the agent of node "other" has published.
	theirs = `{"node":"other","nodeUID":"u2","time":"2026-01-02T03:04:05Z","linearizable":true,"members":[{"id":"1","healthy":true}]}`
)

func testAgentObservations(t *testing.T, server *testenv.APIServer) {
	for _, name := range []string{"own", "other"} {
		_, _, err := server.AddNode(t.Context(), testenv.NodeSpec{Name: name})
		require.NoError(t, err)
		defer remove(t, server, name)
	}
	admin := server.Client().RESTClient()
	require.NoError(t, admin.Post().AbsPath(clusterPath).Body([]byte(typed+`,"spec":{"ledger":0}}`)).Do(t.Context()).Error())
	own := clientOf(t, serviceAccount(t, server, "holdfast-agent", "own"))
	other := clientOf(t, serviceAccount(t, server, "holdfast-agent", "other"))
	unbound := clientOf(t, serviceAccount(t, server, "holdfast-agent", ""))
	require.NoError(t, apply(t.Context(), other, "holdfast/other", "status", `,"status":{"observations":[`+theirs+`]}}`, false))
	require.NoError(t, apply(t.Context(), server.Client(), "holdfast-webhook", "status", `,"status":{"voters":3}}`, false))

	const notMine, summary = "may change the observation of that node only", "an agent may change observations only"
	for name, test := range map[string]struct {
		as            *kubernetes.Clientset
		manager, body string
		want          string
	}{
		"its own entry":                  {body: `,"status":{"observations":[` + mine + `]}}`},
		"another's entry":                {body: `,"status":{"observations":[{"node":"other","nodeUID":"u9","time":"2026-01-02T03:04:05Z"}]}}`, want: notMine},
		"another's entry beside its own": {body: `,"status":{"observations":[` + mine + `,{"node":"other","nodeUID":"u3","time":"2026-01-02T03:04:05Z"}]}}`, want: notMine},
		"an entry of nobody":             {body: `,"status":{"observations":[{"node":"third","nodeUID":"u3","time":"2026-01-02T03:04:05Z"}]}}`, want: notMine},
		"under another agent's manager":  {manager: "holdfast/other", body: `,"status":{"observations":[` + mine + `]}}`, want: notMine},
		"nothing under its manager":      {manager: "holdfast/other", body: `,"status":{}}`, want: notMine},
		"the summary":                    {body: `,"status":{"voters":5}}`, want: summary},
		"a condition":                    {body: `,"status":{"conditions":[{"type":"X","status":"True","reason":"Y","message":"","lastTransitionTime":"2026-01-02T03:04:05Z"}]}}`, want: summary},
		"the summary taken":              {manager: "holdfast-webhook", body: `,"status":{}}`, want: summary},
		"with a token bound to nothing":  {as: unbound, body: `,"status":{"observations":[` + mine + `]}}`, want: "must say on which node it runs"},
	} {
		t.Run(name, func(t *testing.T) {
			manager := test.manager
			if manager == "" {
				manager = "holdfast/own"
			}
			requireVerdict(t, test.want, apply(t.Context(), or(test.as, own), manager, "status", test.body, true))
		})
	}
	t.Run("its own entry goes again", func(t *testing.T) {
		require.NoError(t, apply(t.Context(), own, "holdfast/own", "status", `,"status":{"observations":[`+mine+`]}}`, false))
		require.NoError(t, apply(t.Context(), own, "holdfast/own", "status", `}`, false))
		text, err := admin.Get().AbsPath(clusterPath, "cdf818194e3a8c32").Do(t.Context()).Raw()
		require.NoError(t, err)
		require.Contains(t, string(text), `"u2"`)
		require.NotContains(t, string(text), `"u1"`)
	})
	t.Run("no entry fills the object", func(t *testing.T) { testLimits(t, own) })
	t.Run("the spec is not an agent's", func(t *testing.T) {
		grant := `,"spec":{"ledger":7}}`
		require.True(t, isForbidden(apply(t.Context(), own, "holdfast/own", "", grant, true)), "RBAC")
		almighty := as(t, server, rest.ImpersonationConfig{
			UserName: "system:serviceaccount:holdfast-system:holdfast-agent", Groups: []string{"system:masters"},
			Extra: map[string][]string{"authentication.kubernetes.io/node-name": {"own"}},
		})
		requireVerdict(t, "the status of an EtcdCluster only", apply(t.Context(), almighty, "holdfast/own", "", grant, true))
	})
}

// testLimits publishes the largest entry that agents make, and such as exceed it in one thing.
func testLimits(t *testing.T, own *kubernetes.Clientset) {
	url := "https://" + strings.Repeat("u", 292)
	for name, test := range map[string]struct {
		uid, url, alarm, id, own, nonce string
		urls, members                   int
		want                            string
	}{
		"the largest":       {},
		"a member more":     {members: 21, want: "must have at most 20 items"},
		"a URL more":        {urls: 17, want: "must have at most 16 items"},
		"a longer URL":      {url: url + "u", want: "may not be more than 300"},
		"no URL":            {url: "https://\u00e4", want: "should match"},
		"a longer alarm":    {alarm: strings.Repeat("A", 33), want: "may not be more than 32"},
		"a member of ID 0":  {id: "0", want: "should match"},
		"a member of no ID": {id: "etcd1", want: "should match"},
		"a member twice":    {id: "2", want: "duplicate"},
		"its own of ID 0":   {own: "0", want: "should match"},
		"a longer nonce":    {nonce: strings.Repeat("n", 65), want: "may not be more than 64"},
		"no UID of a Node":  {uid: strings.Repeat("a", 37), want: "may not be more than 36"},
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
			entry := map[string]any{
				"node": "own", "nodeUID": cmp.Or(test.uid, strings.Repeat("a", 36)), "time": "2026-01-02T03:04:05Z",
				"problem": strings.Repeat("p", 1024), "members": members,
				"localMember": cmp.Or(test.own, "1"), "nonce": cmp.Or(test.nonce, "n"),
			}
			text, err := json.Marshal(entry)
			require.NoError(t, err)
			err = apply(t.Context(), own, "holdfast/own", "status", `,"status":{"observations":[`+string(text)+`]}}`, true)
			if test.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, test.want)
			}
		})
	}
}

// apply applies a body to the EtcdCluster as a field manager, with force, as agents do.
func apply(ctx context.Context, client *kubernetes.Clientset, manager, subresource, body string, dry bool) error {
	request := client.RESTClient().Patch(types.ApplyYAMLPatchType).AbsPath(clusterPath, "cdf818194e3a8c32", subresource).
		Param("fieldManager", manager).Param("force", "true").Body([]byte(typed + body))
	if dry {
		request = request.Param("dryRun", "All")
	}
	return request.Do(ctx).Error()
}
