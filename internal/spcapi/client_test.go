package spcapi_test

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/spcapi"
	"github.com/holdfast-dev/holdfast/pkg/spc"
	"github.com/holdfast-dev/holdfast/test/spcserver"
)

const token = "a12f59e2788386a302c5d199b5506725dc85692a880aed3303c5b6b195164a94"

func serve(t *testing.T) (*spcserver.Server, spcapi.Options) {
	t.Helper()
	s := &spcserver.Server{Token: token, Organization: "111", Cluster: "23391"}
	web := httptest.NewServer(s)
	t.Cleanup(web.Close)
	return s, spcapi.Options{BaseURL: web.URL, TokenFile: written(t, "token", token+"\n"), Organization: 111, Cluster: 23391}
}

func written(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

func refresh(t *testing.T, o spcapi.Options) (spcapi.Answer, error) {
	t.Helper()
	client, err := spcapi.NewClient(o)
	require.NoError(t, err)
	return client.Refresh(t.Context())
}

// full has a value in every field that any generation of the API has.
func full() spc.Record {
	return spc.Record{
		PK: 331, Cluster: 23391, Pool: 108, PoolName: "Default Worker Pool", InstanceID: "spcp19ss7c-worker-1", ProviderNodeID: "i-038f00f3b164f86bb",
		Role: "worker", GroupName: "autoscaling-spcp19ss7c-pool-1", PrivateIP: "10.138.0.3", PublicIP: "35.203.171.134",
		Location: "us-west1-a", Zone: "us-west1-a", Size: "n1-standard-1", State: "provisioned", IsFailed: true, Created: "2017-10-19T17:07:38.276642Z",
	}
}

func TestEveryGenerationOfTheNodeObject(t *testing.T) {
	for generation, lacks := range map[spcserver.Generation]func(*spc.Record){
		spcserver.Form2019:   func(*spc.Record) {},
		spcserver.Form201712: func(r *spc.Record) { r.ProviderNodeID, r.Zone = "", "" },
		spcserver.Form201710: func(r *spc.Record) { r.ProviderNodeID, r.Zone, r.IsFailed = "", "", false },
		spcserver.Form2016: func(r *spc.Record) {
			r.ProviderNodeID, r.Zone, r.IsFailed, r.Pool, r.PoolName = "", "", false, 0, ""
		},
	} {
		s, options := serve(t)
		s.Generation = generation
		master := full()
		master.PK, master.Pool, master.Role, master.GroupName = 330, 0, "master", ""
		gone := full()
		gone.PK, gone.State = 1, "deleted"
		s.SetNodes(full(), master, gone)
		s.SetPools(spc.Pool{PK: 108, Name: "Default Worker Pool", InstanceID: "spcp19ss7c-pool-1", Size: "n1-standard-1", Autoscaled: true, MaxCount: 5, NodeCount: 2, Role: "worker", State: "active"})
		got, err := refresh(t, options)
		require.NoError(t, err)
		require.NoError(t, got.Partial)
		worker := full()
		lacks(&worker)
		lacks(&master)
		require.Equal(t, []spc.Record{worker, master}, got.Machines, "generation %d", generation)
		require.Equal(t, int64(111), got.Organization)
		require.Equal(t, spc.Cluster{PK: 23391, Name: "Misty Fire", InstanceID: "spci1r", Provider: "aws", State: "running"}, got.Cluster)
		if generation == spcserver.Form2016 {
			require.Empty(t, got.Pools)
			continue
		}
		require.Equal(t, []spc.Pool{{PK: 108, Name: "Default Worker Pool", InstanceID: "spcp19ss7c-pool-1", Size: "n1-standard-1", Autoscaled: true, MaxCount: 5, NodeCount: 2, Role: "worker", State: "active"}}, got.Pools)
	}
}

func TestAnEmptyClusterIsEmptyAndNotNil(t *testing.T) {
	_, options := serve(t)
	options.BaseURL += "//"
	got, err := refresh(t, options)
	require.NoError(t, err)
	require.NotNil(t, got.Machines)
	require.Empty(t, got.Machines)
}

func TestUnknownFieldsStatesAndNulls(t *testing.T) {
	s, options := serve(t)
	s.Fail(func(w http.ResponseWriter, r *http.Request) {
		if filepath.Base(r.URL.Path) == "nodes" {
			_, _ = io.WriteString(w, `[{"pk":1,"cluster":23391,"instance_id":"a","state":"hibernating","pool":null,"pool_name":null,"gpu_core_count":null,
				"private_ip":null,"is_failed":null,"something":{"new":[1,2]}}]`)
			return
		}
		_, _ = io.WriteString(w, "null")
	})
	got, err := refresh(t, options)
	require.NoError(t, err, "the machines are known")
	require.Equal(t, []spc.Record{{PK: 1, Cluster: 23391, InstanceID: "a", State: "hibernating"}}, got.Machines)
	require.ErrorContains(t, got.Partial, "the SPC API's answer is null, not a list of node pools")
	require.ErrorContains(t, got.Partial, "is of cluster 0, asked for 23391")
	require.Equal(t, int64(23391), got.Cluster.PK)
}

func TestFailures(t *testing.T) {
	says := map[string]string{
		"400":       "answered 400 Bad Request: JSON parse error",
		"401":       "answered 401 Unauthorized: User inactive or deleted.; put a valid token of an organization owner in the token file",
		"403":       "the token must belong to an owner of the organization",
		"404":       "check the organization and cluster numbers",
		"405":       `Method "GET" not allowed.; is the URL that of the API?`,
		"429":       "it is asked again later",
		"500":       "answered 500 Internal Server Error: A server error occurred.; it is asked again later",
		"503":       "answered 503 Service Unavailable; it is asked again later",
		"html":      "is not a list of nodes, nor JSON at all; is the URL that of the API, and no login page or proxy between?",
		"null":      "the SPC API's answer is null, not a list of nodes",
		"object":    "is not a list of nodes; is the URL that of the API?",
		"empty":     "the SPC API's answer is empty, not a list of nodes",
		"strings":   "entry 1 of the SPC API's list of nodes cannot be used",
		"types":     `entry 1 of the SPC API's list of nodes cannot be used: field "instance_id" is a number`,
		"no pk":     "entry 1 of the SPC API's list of nodes cannot be used: it has no pk, and so is no node",
		"truncated": "breaks off in the middle of a list of nodes",
		"cut off":   "breaks off in the middle of a list of nodes",
		"50 MB":     "larger than 32 MiB",
		"redirect":  "answered 302 Found: it sends to https://elsewhere.example/login; give the URL at which the API itself answers",
		"echo":      "no such token: Bearer <the token>",
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(says)), slices.Collect(maps.Keys(spcserver.Failures())))
	for name, failure := range spcserver.Failures() {
		t.Run(name, func(t *testing.T) {
			s, options := serve(t)
			s.SetNodes(full())
			s.Fail(failure)
			got, err := refresh(t, options)
			require.ErrorContains(t, err, says[name])
			require.NotContains(t, err.Error(), token)
			require.Empty(t, got.Machines)
			require.Equal(t, 1, s.Requests(), "who cannot list nodes need not be asked for pools")
			pause, code := map[string]time.Duration{"429": 2 * time.Minute, "503": 5 * time.Minute}[name], new(spcapi.StatusError)
			if name == "echo" {
				require.ErrorAs(t, err, &code)
			}
			if errors.As(err, &code) {
				require.InDelta(t, pause, code.RetryAfter, float64(2*time.Second))
			}
		})
	}
}

func TestALargeAnswerIsNotKeptInMemory(t *testing.T) {
	s, options := serve(t)
	s.Fail(spcserver.Failures()["50 MB"])
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	_, err := refresh(t, options)
	require.Error(t, err)
	runtime.GC()
	runtime.ReadMemStats(&after)
	require.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(16<<20))
}

func TestWhoDoesNotAnswer(t *testing.T) {
	s, options := serve(t)
	s.Fail(spcserver.Slow)
	client, err := spcapi.NewClient(options)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = client.Refresh(ctx)
	require.ErrorContains(t, err, "did not answer in time; is there a proxy or a firewall between?")
	require.NotContains(t, err.Error(), token)

	options.BaseURL = "http://127.0.0.1:1"
	_, err = refresh(t, options)
	require.ErrorContains(t, err, "connection refused")
}

func TestAListThatNoConfigMapShouldHold(t *testing.T) {
	for says, body := range map[string]string{
		"node_id 4 is of cluster 7, asked for 23391": `[{"pk":4,"cluster":7,"state":"running"}]`,
		"size of node_id 4 has 1025 bytes":           `[{"pk":4,"size":"` + string(make1025()) + `"}]`,
	} {
		s, options := serve(t)
		s.Fail(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) })
		_, err := refresh(t, options)
		require.ErrorContains(t, err, says)
	}
}

func make1025() []byte { return slices.Repeat([]byte("x"), 1025) }

// A server that is trusted with the token sends the client somewhere else; the token must not follow.
func TestTheTokenFollowsNoRedirect(t *testing.T) {
	followed := false
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { followed = true }))
	t.Cleanup(elsewhere.Close)
	s, options := serve(t)
	s.Fail(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.URL+"?token="+r.Header.Get("Authorization"), http.StatusTemporaryRedirect)
	})
	_, err := refresh(t, options)
	require.ErrorContains(t, err, "it sends to ")
	require.NotContains(t, err.Error(), token)
	require.False(t, followed)
}

// A proxy or a library that quotes what was sent makes no secret known.
func TestATransportThatQuotesTheToken(t *testing.T) {
	_, options := serve(t)
	options.Transport = quoting{}
	_, err := refresh(t, options)
	require.ErrorContains(t, err, "cannot send Bearer <the token>")
	require.NotContains(t, err.Error(), token)
}

type quoting struct{}

func (quoting) RoundTrip(r *http.Request) (*http.Response, error) {
	return nil, errors.New("cannot send " + r.Header.Get("Authorization"))
}

func FuzzList(f *testing.F) {
	for _, text := range []string{
		`[]`, `null`, `{}`, `[{"pk":1,"cluster":23391,"instance_id":"a","pool":null}]`, `[{"pk":1}`, `[{"pk":1}]]`, `[1]`, `[{"pk":"1"}]`, "\xff", `[{"pk":1e3}]`,
		`[{"pk":331,"cluster":23391,"pool":108,"instance_id":"spcp19ss7c-worker-1","state":"provisioned","is_failed":false,"created":"2017-10-19T17:07:38.276642Z"}]`,
	} {
		f.Add([]byte(text))
	}
	file := filepath.Join(f.TempDir(), "token")
	require.NoError(f, os.WriteFile(file, []byte(token), 0o600))
	f.Fuzz(func(t *testing.T, body []byte) {
		client, err := spcapi.NewClient(spcapi.Options{
			BaseURL: "http://spc.example", TokenFile: file, Organization: 111, Cluster: 23391,
			Transport: direct(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body) }),
		})
		require.NoError(t, err)
		got, err := client.Refresh(t.Context())
		if err != nil {
			require.Nil(t, got.Machines)
			require.NotEmpty(t, err.Error())
			return
		}
		require.NotNil(t, got.Machines)
		for _, r := range got.Machines {
			require.Positive(t, r.PK)
			require.Equal(t, int64(23391), r.Cluster)
		}
		inventory := &spc.Inventory{Records: got.Machines}
		packed, err := spcapi.Encode(inventory)
		require.NoError(t, err)
		back, err := spcapi.Decode(configMap(packed))
		require.NoError(t, err)
		require.Equal(t, inventory, back)
	})
}

// direct carries a request to a handler without a network, as tests in a time of their own need it.
func direct(h http.HandlerFunc) http.RoundTripper { return transport(h) }

type transport http.HandlerFunc

func (h transport) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := httptest.NewRecorder()
	h(answer, r)
	return answer.Result(), nil
}
