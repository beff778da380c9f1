package spcapi_test

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/control/spcapi"
	"github.com/holdfast-dev/holdfast/pkg/spc"
	"github.com/holdfast-dev/holdfast/test/spcserver"
)

func TestGenerations(t *testing.T) {
	for generation, clearMissing := range map[spcserver.Generation]func(*spc.Record){
		spcserver.Form2019:   func(*spc.Record) {},
		spcserver.Form201712: func(r *spc.Record) { r.ProviderNodeID, r.Zone = "", "" },
		spcserver.Form201710: func(r *spc.Record) { r.ProviderNodeID, r.Zone, r.IsFailed = "", "", false },
		spcserver.Form2016: func(r *spc.Record) {
			r.ProviderNodeID, r.Zone, r.IsFailed, r.Pool, r.PoolName = "", "", false, 0, ""
		},
	} {
		s, options := serve(t)
		s.Generation = generation
		master := fullRecord()
		master.PK, master.Pool, master.Role, master.GroupName = 330, 0, "master", ""
		deleted := fullRecord()
		deleted.PK, deleted.State = 1, "deleted"
		s.SetNodes(fullRecord(), master, deleted)
		pool := spc.Pool{
			PK: 108, Name: "Default Worker Pool", InstanceID: "spcp19ss7c-pool-1", Size: "n1-standard-1", Autoscaled: true,
			MaxCount: 5, NodeCount: 2, Role: "worker", State: "active",
		}
		s.SetPools(pool)
		got, err := refresh(t, options)
		require.NoError(t, err)
		require.NoError(t, got.PoolsErr)
		require.NoError(t, got.ClusterErr)
		worker := fullRecord()
		clearMissing(&worker)
		clearMissing(&master)
		require.Equal(t, []spc.Record{worker, master}, got.Machines, "generation %d", generation)
		require.Equal(t, int64(111), got.Organization)
		require.Equal(t, spc.Cluster{
			PK: 23391, Name: "Misty Fire", InstanceID: "spci1r", Provider: "aws", State: "running",
		}, got.Cluster)
		if generation == spcserver.Form2016 {
			require.Empty(t, got.Pools)
			continue
		}
		require.Equal(t, []spc.Pool{pool}, got.Pools)
	}
}

func TestEmptyCluster(t *testing.T) {
	_, options := serve(t)
	options.BaseURL += "//"
	got, err := refresh(t, options)
	require.NoError(t, err)
	require.NotNil(t, got.Machines)
	require.Empty(t, got.Machines)
}

func TestUnknownFieldsAndNulls(t *testing.T) {
	s, options := serve(t)
	s.Fail(func(w http.ResponseWriter, r *http.Request) {
		if filepath.Base(r.URL.Path) == "nodes" {
			_, _ = io.WriteString(w, `[{"pk":1,"cluster":23391,"instance_id":"a","state":"hibernating","pool":null,
				"pool_name":null,"gpu_core_count":null,"private_ip":null,"is_failed":null,"something":{"new":[1,2]}}]`)
			return
		}
		_, _ = io.WriteString(w, "null")
	})
	got, err := refresh(t, options)
	require.NoError(t, err, "an unknown cluster must not hide the machines")
	require.Equal(t, []spc.Record{{PK: 1, Cluster: 23391, InstanceID: "a", State: "hibernating"}}, got.Machines)
	require.ErrorContains(t, got.PoolsErr, "the SPC API returned null instead of a list of node pools")
	require.ErrorContains(t, got.ClusterErr, "returned cluster 0 instead of 23391")
	require.Equal(t, int64(23391), got.Cluster.PK)
}

func TestFailures(t *testing.T) {
	want := map[string]string{
		"400": "responded with 400 Bad Request: JSON parse error",
		"401": "responded with 401 Unauthorized: User inactive or deleted.; " +
			"put a valid token of an organization owner in the token file",
		"403":       "the token must belong to an owner of the organization",
		"404":       "check the organization and cluster numbers",
		"405":       `Method "GET" not allowed.; check the URL`,
		"429":       "Holdfast retries later",
		"500":       "responded with 500 Internal Server Error: A server error occurred.; Holdfast retries later",
		"503":       "responded with 503 Service Unavailable; Holdfast retries later",
		"html":      "returned neither a list of nodes nor other JSON; check the URL, and for a login page or a proxy",
		"null":      "the SPC API returned null instead of a list of nodes",
		"object":    "the SPC API did not return a list of nodes; check the URL",
		"empty":     "the SPC API returned an empty response instead of a list of nodes",
		"strings":   "entry 1 of the SPC API's list of nodes is invalid",
		"types":     `entry 1 of the SPC API's list of nodes is invalid: field "instance_id" is a number`,
		"no pk":     "entry 1 of the SPC API's list of nodes is invalid: it has no pk",
		"truncated": "ends in the middle of a list of nodes",
		"cut off":   "ends in the middle of a list of nodes",
		"50 MB":     "larger than 32 MiB",
		"redirect": "responded with 302 Found: redirect to https://elsewhere.example/login; " +
			"use the URL of the API itself",
		"echo": "no such token: Bearer <the token>",
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(want)), slices.Collect(maps.Keys(spcserver.Failures())))
	for name, failure := range spcserver.Failures() {
		t.Run(name, func(t *testing.T) {
			s, options := serve(t)
			s.SetNodes(fullRecord())
			s.Fail(failure)
			got, err := refresh(t, options)
			require.ErrorContains(t, err, want[name])
			require.NotContains(t, err.Error(), token)
			require.Empty(t, got.Machines)
			require.Equal(t, 1, s.Requests(), "the client requested the pools after a failure to list nodes")
			status := new(spcapi.StatusError)
			if name == "echo" {
				require.ErrorAs(t, err, &status)
			}
			if errors.As(err, &status) {
				pause := map[string]time.Duration{"429": 2 * time.Minute, "503": 5 * time.Minute}[name]
				require.InDelta(t, pause, status.RetryAfter, float64(2*time.Second))
			}
		})
	}
}

// TestLargeResponse has a list that is too large, without an announcement of its size.
func TestLargeResponse(t *testing.T) {
	_, options := serve(t)
	options.Transport = handlerTransport(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `[{"pk":1`+strings.Repeat(" ", 33<<20)+"}]")
	})
	_, err := refresh(t, options)
	require.ErrorContains(t, err, "larger than 32 MiB")
}

func TestUnreachableServer(t *testing.T) {
	s, options := serve(t)
	s.Fail(spcserver.Hang)
	client, err := spcapi.NewClient(options)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = client.Refresh(ctx)
	require.ErrorContains(t, err, "did not respond in time; check for a proxy or a firewall")
	require.NotContains(t, err.Error(), token)

	options.BaseURL = "http://127.0.0.1:1"
	_, err = refresh(t, options)
	require.ErrorContains(t, err, "connection refused")
}

func TestInvalidRecords(t *testing.T) {
	for want, body := range map[string]string{
		"node_id 4 belongs to cluster 7 instead of 23391": `[{"pk":4,"cluster":7,"state":"running"}]`,
		"node_id 4 has 41": `[{"pk":4,"size":"` + strings.Repeat("x", 4<<10) + `"}]`,
	} {
		s, options := serve(t)
		s.Fail(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) })
		_, err := refresh(t, options)
		require.ErrorContains(t, err, want)
	}
}

// An error of a proxy or a library quotes the request.
func TestQuotedToken(t *testing.T) {
	_, options := serve(t)
	options.Transport = quotingTransport{}
	_, err := refresh(t, options)
	require.ErrorContains(t, err, "cannot send Bearer <the token>")
	require.NotContains(t, err.Error(), token)
}

func FuzzList(f *testing.F) {
	for _, text := range []string{
		`[]`, `null`, `{}`, `[{"pk":1,"cluster":23391,"instance_id":"a","pool":null}]`, `[{"pk":1}`, `[{"pk":1}]]`, `[1]`,
		`[{"pk":"1"}]`, "\xff", `[{"pk":1e3}]`,
		`[{"pk":331,"cluster":23391,"pool":108,"instance_id":"spcp19ss7c-worker-1","state":"provisioned",
			"is_failed":false,"created":"2017-10-19T17:07:38.276642Z"}]`,
	} {
		f.Add([]byte(text))
	}
	file := filepath.Join(f.TempDir(), "token")
	require.NoError(f, os.WriteFile(file, []byte(token), 0o600))
	f.Fuzz(func(t *testing.T, body []byte) {
		client, err := spcapi.NewClient(spcapi.Options{
			BaseURL: "http://spc.example", TokenFile: file, Organization: 111, Cluster: 23391,
			Transport: handlerTransport(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body) }),
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
