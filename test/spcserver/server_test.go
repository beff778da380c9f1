package spcserver_test

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/pkg/spc"
	"github.com/holdfast-dev/holdfast/test/spcserver"
)

const token = "a12f59e2788386a302c5d199b5506725"

// api is a server with one request after the other.
type api struct {
	*spcserver.Server
	t *testing.T
}

func newAPI(t *testing.T) api {
	return api{&spcserver.Server{Token: token, Organization: "6", Cluster: "504"}, t}
}

// ask sends a request and returns status and body.
func (a api) ask(method, path, body string) (int, string) {
	a.t.Helper()
	return a.askAs("Bearer "+token, method, path, body)
}

func (a api) askAs(who, method, path, body string) (int, string) {
	a.t.Helper()
	request := httptest.NewRequest(method, path, strings.NewReader(body))
	if who != "" {
		request.Header.Set("Authorization", who)
	}
	answer := httptest.NewRecorder()
	a.ServeHTTP(answer, request)
	text, err := io.ReadAll(answer.Result().Body)
	require.NoError(a.t, err)
	return answer.Code, strings.TrimSpace(string(text))
}

func (a api) list(path string) []map[string]any {
	a.t.Helper()
	code, body := a.ask(http.MethodGet, path, "")
	require.Equal(a.t, http.StatusOK, code, body)
	var found []map[string]any
	require.NoError(a.t, json.Unmarshal([]byte(body), &found))
	return found
}

const cluster = "/orgs/6/clusters/504"

func TestErrorsAreTheAPIsOwn(t *testing.T) {
	a := newAPI(t)
	for _, c := range []struct {
		who, method, path string
		code              int
		detail            string
	}{
		{"", "GET", cluster, 401, "Authentication credentials were not provided."},
		{"Basic x", "GET", cluster, 401, "Authentication credentials were not provided."},
		{"Bearer", "GET", cluster, 401, "Invalid token header. No credentials provided."},
		{"Bearer a b", "GET", cluster, 401, "Invalid token header. Token string should not contain spaces."},
		{"Bearer a", "GET", cluster, 401, "Invalid token."},
		{"Bearer " + token, "GET", "/orgs/7/clusters/504/nodes", 404, "Not found."},
		{"Bearer " + token, "GET", "/orgs/6/clusters/505/nodes", 404, "Not found."},
		{"Bearer " + token, "GET", cluster + "/nodes/", 404, "Not found."},
		{"Bearer " + token, "GET", "//orgs/6", 404, "Not found."},
		{"Bearer " + token, "GET", cluster + "/nodes/9", 404, "Not found."},
		{"Bearer " + token, "DELETE", cluster + "/nodes/x", 404, "Not found."},
		{"Bearer " + token, "PUT", cluster + "/nodes", 405, `Method "PUT" not allowed.`},
	} {
		code, body := a.askAs(c.who, c.method, c.path, "")
		require.Equal(t, c.code, code, "%s %s as %q", c.method, c.path, c.who)
		require.JSONEq(t, string(must(t, map[string]string{"detail": c.detail})), body)
	}
	for _, path := range []string{"/orgs", "/orgs/6", "/orgs/6/clusters", cluster, cluster + "/logs", cluster + "/volumes", "/rest-auth/user/", "/userprofile/owner"} {
		code, body := a.ask("GET", path, "")
		require.Equal(t, http.StatusOK, code, "%s: %s", path, body)
	}
}

func must(t *testing.T, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	require.NoError(t, err)
	return text
}

// A machine is added to a pool, lives, and is deleted, as an autoscaler does it and sees it.
func TestTheLifeOfAMachine(t *testing.T) {
	a := newAPI(t)
	code, body := a.ask("POST", cluster+"/nodepools", `{"name":"Workers","instance_size":"t2.medium","autoscaled":true,"max_count":5}`)
	require.Equal(t, http.StatusAccepted, code, body)
	code, body = a.ask("POST", cluster+"/nodepools/1/add", `{"node_count":2,"node_pool":1}`)
	require.Equal(t, http.StatusCreated, code, body)
	var made []struct {
		PK         int64
		State      string
		GroupName  string `json:"group_name"`
		InstanceID string `json:"instance_id"`
		PrivateIP  string `json:"private_ip"`
		Size       string
	}
	require.NoError(t, json.Unmarshal([]byte(body), &made))
	require.Len(t, made, 2)
	require.Equal(t, "autoscaling-spce0-pool-1", made[0].GroupName)
	require.Equal(t, "t2.medium", made[0].Size)
	require.NotEqual(t, made[0].InstanceID, made[1].InstanceID)

	state := func(at int) string { return a.Nodes()[at].State }
	require.Equal(t, "draft", state(0))
	a.Step()
	require.Equal(t, "building", state(0))
	require.Empty(t, a.Nodes()[0].PrivateIP)
	a.Stick(made[1].PK, true)
	a.Step()
	require.Equal(t, "provisioned", state(0))
	require.NotEmpty(t, a.Nodes()[0].PrivateIP)
	require.NotEmpty(t, a.Nodes()[0].ProviderNodeID)
	require.Equal(t, "building", state(1), "left as SPC's failed builds are")
	a.Step()
	require.Equal(t, "running", state(0))
	a.Step()
	require.Equal(t, "running", state(0))
	a.Break(made[0].PK)
	require.Equal(t, true, a.list(cluster + "/nodes")[0]["is_failed"])

	for _, n := range made {
		code, body = a.ask("GET", cluster+"/nodes/"+number(n.PK)+"/can_delete", "")
		require.Equal(t, http.StatusOK, code)
		require.JSONEq(t, `{"eligible":true}`, body)
		code, body = a.ask("DELETE", cluster+"/nodes/"+number(n.PK), "")
		require.Equal(t, http.StatusNoContent, code)
		require.Empty(t, body)
	}
	require.Len(t, a.list(cluster+"/nodes"), 2, "accepted is not gone")
	a.Step()
	require.Empty(t, a.list(cluster+"/nodes"))
	code, _ = a.ask("GET", cluster+"/nodes/"+number(made[0].PK), "")
	require.Equal(t, http.StatusOK, code, "deleted, for a while")
	a.Step()
	code, _ = a.ask("GET", cluster+"/nodes/"+number(made[0].PK), "")
	require.Equal(t, http.StatusNotFound, code)
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

func TestTheFirstMasterIsNotDeleted(t *testing.T) {
	a := newAPI(t)
	masters := a.Add(2, spc.Record{Role: "master"})
	for _, request := range []struct{ method, path string }{{"GET", "/can_delete"}, {"DELETE", ""}} {
		code, body := a.ask(request.method, cluster+"/nodes/"+number(masters[0].PK)+request.path, "")
		require.Equal(t, http.StatusBadRequest, code)
		require.Contains(t, body, "Initial master node is essential to the cluster and can't be removed.")
	}
	code, _ := a.ask("DELETE", cluster+"/nodes/"+number(masters[1].PK), "")
	require.Equal(t, http.StatusNoContent, code)
}

func TestPoolsAndAdditions(t *testing.T) {
	a := newAPI(t)
	code, body := a.ask("POST", cluster+"/add_node", `{"size":"t2.medium","node_count":1,"group":"autoscaling-A0"}`)
	require.Equal(t, http.StatusCreated, code)
	require.Contains(t, body, `"group_name":"autoscaling-A0"`)
	require.Contains(t, body, `"pool":null`)
	code, body = a.ask("POST", cluster+"/add_node", `{"size":"t2.medium"}`)
	require.Equal(t, http.StatusBadRequest, code)
	require.JSONEq(t, `{"node_count":["A valid integer is required."]}`, body)
	code, body = a.ask("POST", cluster+"/add_node", `{`)
	require.Equal(t, http.StatusBadRequest, code)
	require.Contains(t, body, "JSON parse error - ")
	code, _ = a.ask("POST", cluster+"/nodepools/4/add", `{"node_count":1}`)
	require.Equal(t, http.StatusNotFound, code)

	a.SetPools(spc.Pool{PK: 4, InstanceID: "p", MaxCount: 1})
	code, _ = a.ask("POST", cluster+"/nodepools/4", `{"autoscaled":true,"min_count":1,"max_count":5,"pk":9}`)
	require.Equal(t, http.StatusOK, code)
	pools := a.list(cluster + "/nodepools")
	require.InEpsilon(t, 4, pools[0]["pk"], 0)
	require.InEpsilon(t, 5, pools[0]["max_count"], 0)
	code, _ = a.ask("DELETE", cluster+"/nodepools/4", "")
	require.Equal(t, http.StatusNoContent, code)
	code, _ = a.ask("GET", cluster+"/nodepools/4", "")
	require.Equal(t, http.StatusNotFound, code)

	code, _ = a.ask("POST", cluster+"/buildlogs", `{"event_category":"kubernetes","event_state":"failure"}`)
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "failure", a.list(cluster + "/logs")[0]["event_state"])
}

func TestEachGenerationHasItsFields(t *testing.T) {
	fields := map[spcserver.Generation][]string{}
	for _, generation := range spcserver.Generations() {
		a := newAPI(t)
		a.Generation = generation
		a.SetNodes(spc.Record{PK: 1, InstanceID: "a", State: "running"})
		fields[generation] = slices.Sorted(maps.Keys(a.list(cluster + "/nodes")[0]))
	}
	require.Contains(t, fields[spcserver.Form2016], "name")
	require.NotContains(t, fields[spcserver.Form2016], "pool")
	require.Contains(t, fields[spcserver.Form201710], "pool")
	require.NotContains(t, fields[spcserver.Form201710], "is_failed")
	require.Contains(t, fields[spcserver.Form201712], "is_failed")
	require.NotContains(t, fields[spcserver.Form201712], "provider_node_id")
	require.Contains(t, fields[spcserver.Form2019], "provider_node_id")
	require.NotContains(t, fields[spcserver.Form2019], "name")
}
