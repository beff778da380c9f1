package spcserver_test

import (
	"encoding/json"
	"fmt"
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

// fixture has a server and sends requests to it.
type fixture struct {
	*spcserver.Server
	t *testing.T
}

func newFixture(t *testing.T) fixture {
	return fixture{&spcserver.Server{Token: token, Organization: "6", Cluster: "504"}, t}
}

// request sends a request and returns the status and the body.
func (a fixture) request(method, path, body string) (int, string) {
	a.t.Helper()
	return a.requestAs("Bearer "+token, method, path, body)
}

func (a fixture) requestAs(authorization, method, path, body string) (int, string) {
	a.t.Helper()
	request := httptest.NewRequest(method, path, strings.NewReader(body))
	if authorization != "" {
		request.Header.Set("Authorization", authorization)
	}
	response := httptest.NewRecorder()
	a.ServeHTTP(response, request)
	return response.Code, strings.TrimSpace(response.Body.String())
}

func (a fixture) list(path string) []map[string]any {
	a.t.Helper()
	code, body := a.request(http.MethodGet, path, "")
	require.Equal(a.t, http.StatusOK, code, body)
	var found []map[string]any
	require.NoError(a.t, json.Unmarshal([]byte(body), &found))
	return found
}

const cluster = "/orgs/6/clusters/504"

func TestErrors(t *testing.T) {
	a := newFixture(t)
	for _, c := range []struct {
		authorization, method, path string
		code                        int
		detail                      string
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
		code, body := a.requestAs(c.authorization, c.method, c.path, "")
		require.Equal(t, c.code, code, "%s %s with Authorization %q", c.method, c.path, c.authorization)
		require.JSONEq(t, fmt.Sprintf(`{"detail":%q}`, c.detail), body)
	}
	for _, path := range []string{
		"/orgs", "/orgs/6", "/orgs/6/clusters", cluster, cluster + "/logs", cluster + "/volumes", "/rest-auth/user/",
		"/userprofile/owner",
	} {
		code, body := a.request("GET", path, "")
		require.Equal(t, http.StatusOK, code, "%s: %s", path, body)
	}
}

// A machine is added to a pool, advances to running, and is deleted, with the requests of
// an autoscaler.
func TestMachineStates(t *testing.T) {
	a := newFixture(t)
	code, body := a.request("POST", cluster+"/nodepools",
		`{"name":"Workers","instance_size":"t2.medium","autoscaled":true,"max_count":5}`)
	require.Equal(t, http.StatusAccepted, code, body)
	code, body = a.request("POST", cluster+"/nodepools/1/add", `{"node_count":2,"node_pool":1}`)
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
	a.Advance()
	require.Equal(t, "building", state(0))
	require.Empty(t, a.Nodes()[0].PrivateIP)
	a.SetStuck(made[1].PK, true)
	a.Advance()
	require.Equal(t, "provisioned", state(0))
	require.NotEmpty(t, a.Nodes()[0].PrivateIP)
	require.NotEmpty(t, a.Nodes()[0].ProviderNodeID)
	require.Equal(t, "building", state(1), "a stuck machine advanced")
	a.Advance()
	require.Equal(t, "running", state(0))
	a.Advance()
	require.Equal(t, "running", state(0))
	a.MarkFailed(made[0].PK)
	require.Equal(t, true, a.list(cluster + "/nodes")[0]["is_failed"])

	for _, n := range made {
		code, body = a.request("GET", cluster+"/nodes/"+parseID(n.PK)+"/can_delete", "")
		require.Equal(t, http.StatusOK, code)
		require.JSONEq(t, `{"eligible":true}`, body)
		code, body = a.request("DELETE", cluster+"/nodes/"+parseID(n.PK), "")
		require.Equal(t, http.StatusNoContent, code)
		require.Empty(t, body)
	}
	require.Len(t, a.list(cluster+"/nodes"), 2, "a machine that is being deleted is not listed")
	a.Advance()
	require.Empty(t, a.list(cluster+"/nodes"))
	code, _ = a.request("GET", cluster+"/nodes/"+parseID(made[0].PK), "")
	require.Equal(t, http.StatusOK, code, "a deleted machine has no record")
	a.Advance()
	code, _ = a.request("GET", cluster+"/nodes/"+parseID(made[0].PK), "")
	require.Equal(t, http.StatusNotFound, code)
}

func parseID(n int64) string { return strconv.FormatInt(n, 10) }

func TestInitialMaster(t *testing.T) {
	a := newFixture(t)
	masters := a.AddNodes(2, spc.Record{Role: "master"})
	for _, request := range []struct{ method, path string }{{"GET", "/can_delete"}, {"DELETE", ""}} {
		code, body := a.request(request.method, cluster+"/nodes/"+parseID(masters[0].PK)+request.path, "")
		require.Equal(t, http.StatusBadRequest, code)
		require.Contains(t, body, "Initial master node is essential to the cluster and can't be removed.")
	}
	code, _ := a.request("DELETE", cluster+"/nodes/"+parseID(masters[1].PK), "")
	require.Equal(t, http.StatusNoContent, code)
}

func TestPools(t *testing.T) {
	a := newFixture(t)
	code, body := a.request("POST", cluster+"/add_node", `{"size":"t2.medium","node_count":1,"group":"autoscaling-A0"}`)
	require.Equal(t, http.StatusCreated, code)
	require.Contains(t, body, `"group_name":"autoscaling-A0"`)
	require.Contains(t, body, `"pool":null`)
	code, body = a.request("POST", cluster+"/add_node", `{"size":"t2.medium"}`)
	require.Equal(t, http.StatusBadRequest, code)
	require.JSONEq(t, `{"node_count":["A valid integer is required."]}`, body)
	code, body = a.request("POST", cluster+"/add_node", `{`)
	require.Equal(t, http.StatusBadRequest, code)
	require.Contains(t, body, "JSON parse error - ")
	code, _ = a.request("POST", cluster+"/nodepools/4/add", `{"node_count":1}`)
	require.Equal(t, http.StatusNotFound, code)

	a.SetPools(spc.Pool{PK: 4, InstanceID: "p", MaxCount: 1})
	code, _ = a.request("POST", cluster+"/nodepools/4", `{"autoscaled":true,"min_count":1,"max_count":5,"pk":9}`)
	require.Equal(t, http.StatusOK, code)
	pools := a.list(cluster + "/nodepools")
	require.InEpsilon(t, 4, pools[0]["pk"], 0)
	require.InEpsilon(t, 5, pools[0]["max_count"], 0)
	code, _ = a.request("DELETE", cluster+"/nodepools/4", "")
	require.Equal(t, http.StatusNoContent, code)
	code, _ = a.request("GET", cluster+"/nodepools/4", "")
	require.Equal(t, http.StatusNotFound, code)

	code, _ = a.request("POST", cluster+"/buildlogs", `{"event_category":"kubernetes","event_state":"failure"}`)
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "failure", a.list(cluster + "/logs")[0]["event_state"])
}

func TestGenerations(t *testing.T) {
	fields := map[spcserver.Generation][]string{}
	for _, generation := range spcserver.Generations() {
		a := newFixture(t)
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
