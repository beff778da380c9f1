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
)

// entry returns an observation of a node's agent.
func entry(node, uid string) string {
	return `{"node":"` + node + `","nodeUID":"` + uid + `","time":"2026-01-02T03:04:05Z","linearizable":true,` +
		`"members":[{"id":"1","healthy":true}]}`
}

// observations returns the end of a body: a status with these observations.
func observations(entries ...string) string {
	return `,"status":{"observations":[` + strings.Join(entries, ",") + `]}}`
}

// addCluster creates an EtcdCluster without bindings, and removes it at the end of the test.
func addCluster(t *testing.T, server *apiserver.Server) {
	t.Helper()
	admin := server.Client().RESTClient()
	body := []byte(clusterHead + `,"spec":{"ledger":0}}`)
	require.NoError(t, admin.Post().AbsPath(clusterPath).Body(body).Do(t.Context()).Error())
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		clear := []byte(`{"spec":{"grants":null}}`)
		require.NoError(t, admin.Patch(types.MergePatchType).AbsPath(clusterPath, "cdf818194e3a8c32").
			Body(clear).Do(ctx).Error())
		require.NoError(t, admin.Delete().AbsPath(clusterPath, "cdf818194e3a8c32").Do(ctx).Error())
	})
}

func testAgentObservations(t *testing.T, server *apiserver.Server) {
	addNodes(t, server, "own", "other")
	addCluster(t, server)
	own := serviceAccount(t, server, "holdfast-agent", "own")
	other := serviceAccount(t, server, "holdfast-agent", "other")
	ownEntry := entry("own", nodeUID(t, server, "own"))
	otherEntry := entry("other", nodeUID(t, server, "other"))
	require.NoError(t, apply(t.Context(), other, "holdfast/other", "status", observations(otherEntry), false))
	voters := `,"status":{"voters":3}}`
	require.NoError(t, apply(t.Context(), server.Client(), "holdfast-webhook", "status", voters, false))

	t.Run("entries", func(t *testing.T) {
		testEntries(t, own, serviceAccount(t, server, "holdfast-agent", ""), ownEntry, otherEntry)
	})
	t.Run("node UID", func(t *testing.T) { testNodeUID(t, server, own) })
	t.Run("field managers", func(t *testing.T) { testFieldManagers(t, own, ownEntry) })
	t.Run("own entry removed", func(t *testing.T) {
		require.NoError(t, apply(t.Context(), own, "holdfast/own", "status", observations(ownEntry), false))
		require.NoError(t, apply(t.Context(), own, "holdfast/own", "status", `}`, false))
		text := storedCluster(t, server)
		require.Contains(t, text, nodeUID(t, server, "other"))
		require.NotContains(t, text, nodeUID(t, server, "own"))
		require.NotContains(t, text, "holdfast/own", "the field manager owns nothing any more")
	})
	t.Run("limits", func(t *testing.T) { testLimits(t, own, nodeUID(t, server, "own")) })
	t.Run("spec", func(t *testing.T) {
		ledger := `,"spec":{"ledger":7}}`
		require.True(t, apierrors.IsForbidden(apply(t.Context(), own, "holdfast/own", "", ledger, true)), "RBAC")
		err := apply(t.Context(), unrestrictedAgent(t, server), "holdfast/own", "", ledger, true)
		requireVerdict(t, "an agent may change only the status of an EtcdCluster", err)
	})
}

// storedCluster returns the EtcdCluster as the API server encodes it.
func storedCluster(t *testing.T, server *apiserver.Server) string {
	t.Helper()
	request := server.Client().RESTClient().Get().AbsPath(clusterPath, "cdf818194e3a8c32")
	text, err := request.Do(t.Context()).Raw()
	require.NoError(t, err)
	return string(text)
}

func testEntries(t *testing.T, own, unbound *kubernetes.Clientset, ownEntry, otherEntry string) {
	const (
		notMine = "may change only the observation of that node"
		summary = "an agent may change only the observations"
		noNode  = "must name the node on which it runs"
		owns    = "may own only the observation of its node"
		ready   = `{"type":"X","status":"True","reason":"Y","message":"","lastTransitionTime":"2026-01-02T03:04:05Z"}`
		manager = "holdfast/other"
	)
	foreign, unknown := entry("other", "u9"), entry("third", "u3")
	for name, test := range map[string]struct {
		as                  *kubernetes.Clientset
		manager, body, want string
	}{
		"own entry":                 {body: observations(ownEntry)},
		"entry of another node":     {body: observations(foreign), want: notMine},
		"own and another entry":     {body: observations(ownEntry, foreign), want: notMine},
		"entry of unknown node":     {body: observations(unknown), want: notMine},
		"repeats another entry":     {body: observations(ownEntry, otherEntry), want: owns},
		"only another entry":        {body: observations(otherEntry), want: owns},
		"manager of another agent":  {manager: manager, body: observations(ownEntry), want: notMine},
		"manager of both":           {manager: manager, body: observations(ownEntry, otherEntry), want: owns},
		"nothing for other manager": {manager: manager, body: `,"status":{}}`, want: notMine},
		"manager of nothing":        {body: `,"status":{}}`, want: owns},
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

// testNodeUID checks that an agent can publish only under the UID of its Node, which its token
// names. A token that was issued before its Node existed names no UID; then the verdict compares
// the UID with that of the live Node (quorum.TestF28AnswerOfOtherNode).
func testNodeUID(t *testing.T, server *apiserver.Server, own *kubernetes.Clientset) {
	const forged = "nodeUID must be the UID of node own"
	uid, other := nodeUID(t, server, "own"), nodeUID(t, server, "other")
	pod, withoutUID := podToken(t, server, "own"), unrestrictedAgent(t, server)
	for name, test := range map[string]struct {
		as        *kubernetes.Clientset
		uid, want string
	}{
		"own UID":                         {own, uid, ""},
		"UID of another Node":             {own, other, forged},
		"UID of an earlier Node":          {own, "11111111-1111-1111-1111-111111111111", forged},
		"token of its pod":                {pod, uid, ""},
		"token of its pod, other UID":     {pod, other, forged},
		"token without UID":               {withoutUID, uid, ""},
		"token without UID, earlier Node": {withoutUID, "11111111-1111-1111-1111-111111111111", ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := apply(t.Context(), test.as, "holdfast/own", "status", observations(entry("own", test.uid)), true)
			requireVerdict(t, test.want, err)
		})
	}
}

// testFieldManagers checks that one agent cannot fill the object with field managers.
func testFieldManagers(t *testing.T, own *kubernetes.Clientset, ownEntry string) {
	publish := func(manager, body string) error { return apply(t.Context(), own, manager, "status", body, false) }
	for _, manager := range []string{"holdfast/own", "second", "holdfast/own"} {
		require.NoError(t, publish(manager, observations(ownEntry)))
	}
	requireVerdict(t, "at most two field managers", publish("third", observations(ownEntry)))
	requireVerdict(t, "may own only the observation of its node", publish("third", `,"status":{}}`))
	require.NoError(t, publish("second", `}`))
	require.NoError(t, publish("third", observations(ownEntry)))
	require.NoError(t, publish("third", `}`))
	require.NoError(t, publish("holdfast/own", `}`))
}

// testLimits publishes the largest entry that agents write, and entries that exceed one limit.
func testLimits(t *testing.T, own *kubernetes.Clientset, uid string) {
	const tooLong = "at most 8000 characters together"
	url := "https://" + strings.Repeat("u", 292)
	for name, test := range map[string]struct {
		uid, url, alarm, id, own, nonce, name, reason, problem string
		urls, members                                          int
		want                                                   string
	}{
		"largest entry":       {},
		"too many members":    {members: 21, want: "must have at most 20 items"},
		"too many URLs":       {urls: 9, url: "x", want: "must have at most 8 items"},
		"long URL":            {url: url + "u", want: "may not be more than 300"},
		"long list":           {url: url, want: tooLong},
		"URL with umlaut":     {url: "https://\u00e4", want: "should match"},
		"URL with <":          {url: "https://<", want: "should match"},
		"URL with space":      {url: "https:// ", want: "should match"},
		"long name":           {name: strings.Repeat("n", 257), want: "may not be more than 256"},
		"name with <":         {name: "<", want: "should match"},
		"long reason":         {reason: strings.Repeat("r", 257), want: "may not be more than 256"},
		"reason with newline": {reason: "\n", want: "should match"},
		"problem with quote":  {problem: `"`, want: "should match"},
		"long alarm":          {alarm: strings.Repeat("A", 33), want: "may not be more than 32"},
		"alarm with <":        {alarm: "<", want: "should match"},
		"member ID 0":         {id: "0", want: "should match"},
		"malformed member ID": {id: "etcd1", want: "should match"},
		"duplicate member":    {id: "2", want: "duplicate"},
		"local member ID 0":   {own: "0", want: "should match"},
		"long nonce":          {nonce: strings.Repeat("n", 65), want: "may not be more than 64"},
		"long UID":            {uid: strings.Repeat("a", 37), want: "may not be more than 36"},
	} {
		t.Run(name, func(t *testing.T) {
			urls := slices.Repeat([]string{cmp.Or(test.url, "https://192.0.2.1:2379")}, cmp.Or(test.urls, 4))
			var members []map[string]any
			for i := range cmp.Or(test.members, 20) {
				id := fmt.Sprintf("%x", i+1)
				if i == 0 {
					id = cmp.Or(test.id, id)
				}
				members = append(members, map[string]any{
					"id": id, "name": cmp.Or(test.name, strings.Repeat("n", 32)), "peerURLs": urls, "clientURLs": urls,
					"reason": cmp.Or(test.reason, strings.Repeat("r", 160)),
					"alarms": []string{cmp.Or(test.alarm, strings.Repeat("A", 32))},
				})
			}
			entry, err := json.Marshal(map[string]any{
				"node": "own", "nodeUID": cmp.Or(test.uid, uid), "time": "2026-01-02T03:04:05Z",
				"problem": cmp.Or(test.problem, strings.Repeat("p", 1024)), "members": members,
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
