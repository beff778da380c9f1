package manifests_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
)

const (
	clusterPath     = "/apis/holdfast.dev/v1alpha1/etcdclusters"
	observationPath = "/apis/holdfast.dev/v1alpha1/etcdobservations"
	testCluster     = "cdf818194e3a8c32"
)

// addCluster creates an EtcdCluster as the webhook's leader does, and removes it at the end of the
// test. It returns the UID.
func addCluster(t *testing.T, server *apiserver.Server) types.UID {
	t.Helper()
	body := []byte(`{"apiVersion":"holdfast.dev/v1alpha1","kind":"EtcdCluster","metadata":{"name":"` + testCluster +
		`"},"spec":{"ledger":0}}`)
	leader := serviceAccount(t, server, "holdfast-webhook", "").RESTClient()
	made, err := leader.Post().AbsPath(clusterPath).Body(body).Do(t.Context()).Raw()
	require.NoError(t, err)
	t.Cleanup(func() {
		request := server.Client().RESTClient().Delete().AbsPath(clusterPath, testCluster)
		require.NoError(t, request.Do(context.WithoutCancel(t.Context())).Error())
	})
	return decode(t, made).GetUID()
}

// addObservation creates the EtcdObservation of a node as the webhook's leader does, and removes it
// at the end of the test.
func addObservation(t *testing.T, server *apiserver.Server, cluster types.UID, node string) *unstructured.Unstructured {
	t.Helper()
	leader := serviceAccount(t, server, "holdfast-webhook", "").RESTClient()
	object := &unstructured.Unstructured{Object: map[string]any{"cluster": testCluster, "node": node}}
	object.SetAPIVersion("holdfast.dev/v1alpha1")
	object.SetKind("EtcdObservation")
	object.SetName(testCluster + "." + node)
	object.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: "holdfast.dev/v1alpha1", Kind: "EtcdCluster", Name: testCluster, UID: cluster,
	}})
	made, err := leader.Post().AbsPath(observationPath).Body(encode(t, object)).Do(t.Context()).Raw()
	require.NoError(t, err)
	t.Cleanup(func() {
		request := leader.Delete().AbsPath(observationPath, object.GetName())
		require.NoError(t, request.Do(context.WithoutCancel(t.Context())).Error())
	})
	return decode(t, made)
}

func encode(t *testing.T, object *unstructured.Unstructured) []byte {
	t.Helper()
	body, err := json.Marshal(object)
	require.NoError(t, err)
	return body
}

func decode(t *testing.T, body []byte) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	require.NoError(t, json.Unmarshal(body, object))
	return object
}

// put updates an EtcdObservation without effect.
func put(ctx context.Context, client *kubernetes.Clientset, object *unstructured.Unstructured) error {
	body, err := json.Marshal(object)
	if err != nil {
		return err
	}
	request := client.RESTClient().Put().AbsPath(observationPath, object.GetName()).Param("dryRun", "All").Body(body)
	return request.Do(ctx).Error()
}

// report returns the object with a report of its agent.
func report(object *unstructured.Unstructured, uid string) *unstructured.Unstructured {
	object = object.DeepCopy()
	maps.Copy(object.Object, map[string]any{
		"nodeUID": uid, "time": "2026-01-02T03:04:05Z", "linearizable": true,
		"members": []any{map[string]any{"id": "1", "healthy": true}},
	})
	return object
}

func testAgentObservations(t *testing.T, server *apiserver.Server) {
	addNodes(t, server, "own", "other")
	cluster := addCluster(t, server)
	own := serviceAccount(t, server, "holdfast-agent", "own")
	mine := report(addObservation(t, server, cluster, "own"), nodeUID(t, server, "own"))
	others := report(addObservation(t, server, cluster, "other"), nodeUID(t, server, "other"))

	// F17: agents removed each other's observations.
	t.Run("objects", func(t *testing.T) { testObjects(t, server, mine, others) })
	t.Run("metadata", func(t *testing.T) { testObservationMetadata(t, own, mine) })
	t.Run("node UID", func(t *testing.T) { testNodeUID(t, server, own, mine) })
	// F27: agents kept grants from being written by large or frequent observations.
	t.Run("limits", func(t *testing.T) { testLimits(t, own, mine) })
	t.Run("times", func(t *testing.T) { testTimes(t, own, mine) })
	t.Run("columns", func(t *testing.T) {
		require.NoError(t, own.RESTClient().Put().AbsPath(observationPath, mine.GetName()).Body(encode(t, mine)).
			Do(t.Context()).Error())
		out, err := server.Kubectl(t.Context(), "get", "etcdobservations")
		require.NoError(t, err)
		require.Regexp(t, `NAME +CLUSTER +NODE +MEMBER +CONFIRMED +HEALTHY +OBSERVED +PROBLEM`, out)
		require.Regexp(t, testCluster+`\.own +`+testCluster+` +own .*true`, out)
	})
}

// testObjects checks that an agent updates its own objects and does nothing else with any of them.
func testObjects(t *testing.T, server *apiserver.Server, mine, others *unstructured.Unstructured) {
	const notMine = "may change only the observations of that node"
	own, all := serviceAccount(t, server, "holdfast-agent", "own"), unrestrictedAgent(t, server)
	require.NoError(t, put(t.Context(), own, mine))
	requireVerdict(t, notMine, put(t.Context(), own, others))
	err := put(t.Context(), serviceAccount(t, server, "holdfast-agent", ""), mine)
	requireVerdict(t, "must name the node on which it runs", err)
	for field, value := range map[string]string{"cluster": "c1", "node": "other"} {
		changed := mine.DeepCopy()
		changed.Object[field] = value
		require.ErrorContains(t, put(t.Context(), own, changed), "the name must be <cluster>.<node>")
	}
	made := mine.DeepCopy()
	made.SetName("c1.own")
	made.SetResourceVersion("")
	made.SetUID("")
	made.Object["cluster"] = "c1"
	for what, send := range map[string]func(*kubernetes.Clientset) error{
		"create": func(client *kubernetes.Clientset) error {
			request := client.RESTClient().Post().AbsPath(observationPath).Param("dryRun", "All")
			return request.Body(encode(t, made)).Do(t.Context()).Error()
		},
		"delete": func(client *kubernetes.Clientset) error {
			request := client.RESTClient().Delete().AbsPath(observationPath, mine.GetName()).Param("dryRun", "All")
			return request.Do(t.Context()).Error()
		},
	} {
		t.Run(what, func(t *testing.T) {
			require.True(t, apierrors.IsForbidden(send(own)), "RBAC")
			requireVerdict(t, "an agent may only update an EtcdObservation", send(all))
		})
	}
}

// testObservationMetadata checks that an agent cannot keep its object from being deleted, hide it,
// or fill it with other texts than its report.
func testObservationMetadata(t *testing.T, own *kubernetes.Clientset, mine *unstructured.Unstructured) {
	for name, change := range map[string]func(*unstructured.Unstructured){
		"label":      func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{"a": "b"}) },
		"annotation": func(o *unstructured.Unstructured) { o.SetAnnotations(map[string]string{"a": "b"}) },
		"finalizer":  func(o *unstructured.Unstructured) { o.SetFinalizers([]string{"a.example/b"}) },
		"no owner":   func(o *unstructured.Unstructured) { o.SetOwnerReferences(nil) },
	} {
		t.Run(name, func(t *testing.T) {
			changed := mine.DeepCopy()
			change(changed)
			requireVerdict(t, "an agent may not change the metadata", put(t.Context(), own, changed))
		})
	}
}

// testNodeUID checks that an agent can publish only under the UID of its Node, which its token
// names. A token that was issued before its Node existed names no UID; then the verdict compares
// the UID with that of the live Node (quorum.TestF28AnswerOfOtherNode).
func testNodeUID(t *testing.T, server *apiserver.Server, own *kubernetes.Clientset, mine *unstructured.Unstructured) {
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
			requireVerdict(t, test.want, put(t.Context(), test.as, report(mine, test.uid)))
		})
	}
}

// testTimes checks that each time that is stored can be read. One that cannot would make each list
// of observations fail, and without that nothing is decided.
func testTimes(t *testing.T, own *kubernetes.Clientset, object *unstructured.Unstructured) {
	object = object.DeepCopy()
	for value, want := range map[string]string{
		"2026-01-02T03:04:05Z":      "",
		"2026-01-02t03:04:05Z":      "should match",
		"2026-01-02T03:04:05z":      "should match",
		"2026-01-02T03:04:05x6Z":    "should match",
		"2026-01-02T03:04:05+99:99": "should match",
		"2026-01-02T24:04:05Z":      "must be of type date-time",
		"2026-02-30T03:04:05Z":      "must be of type date-time",
	} {
		object.Object["time"] = value
		_, err := time.Parse(time.RFC3339, value)
		require.Equal(t, want == "", err == nil)
		if err = put(t.Context(), own, object); want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, want)
		}
	}
}

// testLimits publishes the largest observation that agents write, and some that exceed one limit.
func testLimits(t *testing.T, own *kubernetes.Clientset, object *unstructured.Unstructured) {
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
			object := object.DeepCopy()
			maps.Copy(object.Object, map[string]any{
				"nodeUID": cmp.Or(test.uid, object.Object["nodeUID"].(string)), "time": "2026-01-02T03:04:05Z",
				"problem": cmp.Or(test.problem, strings.Repeat("p", 1024)), "members": members,
				"localMember": cmp.Or(test.own, "1"), "nonce": cmp.Or(test.nonce, "n"),
			})
			err := put(t.Context(), own, object)
			if test.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, test.want)
			}
		})
	}
}
