package spcapi_test

import (
	"context"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/holdfast-dev/holdfast/internal/control/spcapi"
	"github.com/holdfast-dev/holdfast/pkg/spc"
	"github.com/holdfast-dev/holdfast/test/spcserver"
)

// recordRefreshes runs a publisher in a synctest bubble for a duration and returns the
// start times of its refreshes. The handler that respond returns answers the refresh of
// that number, or the usual server if it is nil. The API server is a fake, because a real
// one does not run in the bubble.
func recordRefreshes(
	t *testing.T, duration time.Duration, respond func(n int) http.HandlerFunc, api *fake.Clientset,
	nodes func() []*corev1.Node,
) []time.Duration {
	t.Helper()
	var began []time.Duration
	file := writeFile(t, "token", token)
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		good := newServer()
		client, err := spcapi.NewClient(spcapi.Options{
			BaseURL: "https://spc.example", TokenFile: file, Organization: 111, Cluster: 23391,
			Transport: handlerTransport(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/orgs/111/clusters/23391/nodes" {
					good.ServeHTTP(w, r)
					return
				}
				began = append(began, time.Since(start))
				if h := respond(len(began)); h != nil {
					h(w, r)
					return
				}
				good.ServeHTTP(w, r)
			}),
		})
		require.NoError(t, err)
		publisher := &spcapi.Publisher{
			Client: client, ConfigMaps: api.CoreV1().ConfigMaps(namespace), Name: inventory,
			Nodes:   func(context.Context) ([]*corev1.Node, error) { return nodes(), nil },
			Metrics: spcapi.NewMetrics(), Log: slog.New(slog.DiscardHandler),
			RecordEvent: func(*corev1.ObjectReference, string, string, string) {},
		}
		ctx, cancel := context.WithTimeout(t.Context(), duration)
		defer cancel()
		require.ErrorIs(t, publisher.Run(ctx), context.DeadlineExceeded)
	})
	return began
}

func always(h http.HandlerFunc) func(int) http.HandlerFunc {
	return func(int) http.HandlerFunc { return h }
}

func noNodes() []*corev1.Node { return nil }

func TestRefreshInterval(t *testing.T) {
	began := recordRefreshes(t, time.Hour, always(nil), fake.NewClientset(), noNodes)
	require.Greater(t, len(began), 54)
	require.LessOrEqual(t, len(began), 60)
	require.Zero(t, began[0])
	different := false
	for i := 1; i < len(began); i++ {
		require.GreaterOrEqual(t, began[i]-began[i-1], time.Minute)
		different = different || began[i]-began[i-1] != began[1]
	}
	require.True(t, different, "the pauses have no jitter")
}

func TestBackoff(t *testing.T) {
	failures := spcserver.Failures()
	began := recordRefreshes(t, time.Hour, always(failures["500"]), fake.NewClientset(), noNodes)
	for i, least := range []time.Duration{1, 2, 4, 8, 10, 10} {
		pause := began[i+1] - began[i]
		require.GreaterOrEqual(t, pause, least*time.Minute)
		require.Less(t, pause, least*time.Minute*5/4)
	}
	require.LessOrEqual(t, len(began), 9)

	// A successful refresh ends the backoff.
	began = recordRefreshes(t, 40*time.Minute, func(n int) http.HandlerFunc {
		if n != 5 {
			return failures["html"]
		}
		return nil
	}, fake.NewClientset(), noNodes)
	require.Less(t, began[5]-began[4], 75*time.Second)
	require.Less(t, began[6]-began[5], 75*time.Second, "the next failure must start a new backoff")
}

func TestRetryAfter(t *testing.T) {
	for name, c := range map[string]struct {
		header      string
		least, most time.Duration
	}{
		"seconds":         {"1200", 20 * time.Minute, 22 * time.Minute},
		"a few seconds":   {"3", time.Minute, 75 * time.Second},
		"negative number": {"-5", time.Minute, 75 * time.Second},
		"word":            {"soon", time.Minute, 75 * time.Second},
		"a year":          {"31536000", time.Hour, 66 * time.Minute},
		// The clock of synctest starts in 2000.
		"date":      {"Sat, 01 Jan 2000 00:30:00 GMT", 30 * time.Minute, 33 * time.Minute},
		"past date": {"Fri, 31 Dec 1999 00:00:00 GMT", time.Minute, 75 * time.Second},
		"empty":     {"", time.Minute, 75 * time.Second},
		"overflow":  {"99999999999999999999", time.Minute, 75 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			began := recordRefreshes(t, 2*time.Hour, always(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", c.header)
				w.WriteHeader(http.StatusServiceUnavailable)
			}), fake.NewClientset(), noNodes)
			require.GreaterOrEqual(t, began[1], c.least)
			require.LessOrEqual(t, began[1], c.most)
		})
	}
}

// The API may refuse only the requests after that for the machines.
func TestRetryAfterOfPools(t *testing.T) {
	inBubble(t, func(t *testing.T, s *fixture) {
		s.failAt("/nodepools", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "1200")
			w.WriteHeader(http.StatusTooManyRequests)
		})
		s.lead(t, s.publisher(t))
		attempted := s.status(t)["attempted"]
		<-time.After(20 * time.Minute)
		synctest.Wait()
		require.Equal(t, attempted, s.status(t)["attempted"])
		require.Empty(t, s.published(t).Records)
		<-time.After(2 * time.Minute)
		synctest.Wait()
		require.NotEqual(t, attempted, s.status(t)["attempted"])
	})
}

// A new leader sends its first request no earlier than the previous leader would have.
func TestNewLeaderKeepsInterval(t *testing.T) {
	for name, c := range map[string]struct {
		attempted   string
		least, most time.Duration
	}{
		"just now": {"1999-12-31T23:59:50Z", 50 * time.Second, 50 * time.Second},
		"long ago": {"1999-12-31T23:00:00Z", 0, 0},
		"future":   {"2000-01-01T01:00:00Z", 0, 0},
		"invalid":  {"yesterday", 0, 0},
		"none":     {"", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			api := fake.NewClientset(&corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: inventory + spcapi.StatusSuffix},
				Data:       map[string]string{"attempted": c.attempted},
			})
			began := recordRefreshes(t, 2*time.Minute, always(nil), api, noNodes)
			require.GreaterOrEqual(t, began[0], c.least)
			require.LessOrEqual(t, began[0], c.most)
		})
	}
}

// A new leader keeps the published list and its age while the API is down. The age also grows if
// the clock of the last leader was ahead.
func TestNewLeaderKeepsList(t *testing.T) {
	packed, err := spcapi.Encode(&spc.Inventory{Organization: 111, Cluster: 23391, Records: []spc.Record{fullRecord()}})
	require.NoError(t, err)
	for succeeded, want := range map[string][]string{
		"1999-12-31T23:00:00Z": {"1999-12-31T23:00:00Z", "1h1m0s old"},
		"2000-01-02T00:00:00Z": {"2000-01-01T00:00:00Z", "1m0s old"},
	} {
		api := fake.NewClientset(configMap(packed), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: inventory + spcapi.StatusSuffix},
			Data:       map[string]string{"succeeded": succeeded, "attempted": "2000-01-01T00:00:00Z"},
		})
		recordRefreshes(t, 90*time.Second, always(spcserver.Failures()["500"]), api, noNodes)
		configMaps := api.CoreV1().ConfigMaps(namespace)
		list, err := configMaps.Get(t.Context(), inventory, metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, packed, list.BinaryData[spcapi.InventoryKey])
		status, err := configMaps.Get(t.Context(), inventory+spcapi.StatusSuffix, metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, want, []string{status.Data["succeeded"], status.Data["age"]})
		require.Contains(t, status.Data["problem"], "responded with 500")
	}
}

// The deletion of the newest Node does not make AsOf earlier. Otherwise the other Nodes
// would wait for another list.
func TestAsOfAfterNodeDeletion(t *testing.T) {
	api := fake.NewClientset()
	old := time.Date(2026, 8, 1, 10, 0, 0, 0, time.UTC)
	young := old.Add(time.Hour)
	nodeOf := func(at time.Time) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: at.Format("15"), CreationTimestamp: metav1.NewTime(at)}}
	}
	refreshes := 0
	began := recordRefreshes(t, 3*time.Minute, always(nil), api, func() []*corev1.Node {
		if refreshes++; refreshes == 1 {
			return []*corev1.Node{nodeOf(old), nodeOf(young)}
		}
		return []*corev1.Node{nodeOf(old)}
	})
	require.Greater(t, len(began), 1)
	made, err := api.CoreV1().ConfigMaps(namespace).Get(t.Context(), inventory, metav1.GetOptions{})
	require.NoError(t, err)
	read, err := spcapi.Decode(made)
	require.NoError(t, err)
	require.True(t, young.Equal(read.AsOf), "as of %s", read.AsOf)
}
