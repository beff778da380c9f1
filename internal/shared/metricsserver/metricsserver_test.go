package metricsserver

import (
	"fmt"
	"log/slog"
	"net/http"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
)

// TestAuthorizer has the answers by token. The tests of cmd/agent ask a real API server.
func TestAuthorizer(t *testing.T) {
	api := &fakeTokenReviewer{admitted: "scraper"}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	handler := newAuthorizer(t, api).Require(Handler(newTestRegistry(t), log))
	for name, test := range map[string]struct {
		header string
		status int
		text   string
	}{
		"no token":      {"", http.StatusUnauthorized, "a bearer token of this Kubernetes cluster is required"},
		"other scheme":  {"Basic scraper", http.StatusUnauthorized, "a bearer token"},
		"unknown token": {"Bearer scraperx", http.StatusUnauthorized, "not valid in this Kubernetes cluster"},
		"no permission": {"Bearer " + unentitled, http.StatusForbidden, `user "unentitled" may not get /metrics`},
		"may read":      {"Bearer scraper", http.StatusOK, "holdfast_build_info{"},
		"lower case":    {"bearer scraper", http.StatusOK, "holdfast_build_info{"},
	} {
		t.Run(name, func(t *testing.T) {
			for range 2 { // the second answer is from memory
				answer := request(handler, Path, test.header, scraperAddress)
				require.Equal(t, test.status, answer.Code)
				require.Contains(t, answer.Body.String(), test.text)
			}
		})
	}
	require.Equal(t, 5, api.reviews, "one for each token, and one for the access of each known user")
	require.Equal(t, http.StatusNotFound, request(handler, "/debug/pprof/", "Bearer scraper", scraperAddress).Code)

	t.Run("flood of tokens", func(t *testing.T) {
		codes := map[int]int{}
		for i := range 2 * reviewBurst {
			codes[request(handler, Path, fmt.Sprint("Bearer ", i), floodAddress).Code]++
		}
		require.Positive(t, codes[http.StatusUnauthorized])
		require.Positive(t, codes[http.StatusTooManyRequests])
		require.Len(t, codes, 2)
	})
}

func TestHandler(t *testing.T) {
	registry := newTestRegistry(t)
	problems, err := testutil.GatherAndLint(registry)
	require.NoError(t, err)
	require.Empty(t, problems)
}

func TestBuildInfo(t *testing.T) {
	for version, want := range map[string]map[string]string{
		"v0.1.0+abc go1.26.8":              {"version": "v0.1.0", "revision": "abc", "goversion": "go1.26.8"},
		"(devel) go1.26.8":                 {"version": "(devel)", "revision": "", "goversion": "go1.26.8"},
		"v0.2.0 abc with changes go1.26.8": {"version": "v0.2.0", "revision": "abc", "goversion": "go1.26.8"},
		"unknown":                          {"version": "unknown", "revision": "", "goversion": "unknown"},
	} {
		t.Run(version, func(t *testing.T) {
			registry := prometheus.NewRegistry()
			require.NoError(t, registry.Register(NewBuildInfo("agent", version)))
			families, err := registry.Gather()
			require.NoError(t, err)
			got := map[string]string{}
			for _, l := range families[0].GetMetric()[0].GetLabel() {
				got[l.GetName()] = l.GetValue()
			}
			want["program"] = "agent"
			require.Equal(t, want, got)
		})
	}
}

func newTestRegistry(t *testing.T) *prometheus.Registry {
	t.Helper()
	registry := prometheus.NewRegistry()
	require.NoError(t, registry.Register(NewBuildInfo("agent", "v1+2 go3")))
	return registry
}
