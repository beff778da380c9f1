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

	"github.com/holdfast-dev/holdfast/internal/spcapi"
	"github.com/holdfast-dev/holdfast/pkg/spc"
	"github.com/holdfast-dev/holdfast/test/spcserver"
)

// paced runs a publisher in a time of its own, so long, and returns when its refreshes began. The API server is a fake,
// since a real one has no time but everybody's.
func paced(t *testing.T, so time.Duration, answer func(n int) http.HandlerFunc, api *fake.Clientset) []time.Duration {
	t.Helper()
	return pacedBeside(t, so, answer, api, func() []*corev1.Node { return nil })
}

// pacedBeside is paced in a cluster that has these Nodes.
func pacedBeside(t *testing.T, so time.Duration, answer func(n int) http.HandlerFunc, api *fake.Clientset, nodes func() []*corev1.Node) []time.Duration {
	t.Helper()
	var began []time.Duration
	file := written(t, "token", token)
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		good := &spcserver.Server{Token: token, Organization: "111", Cluster: "23391"}
		client, err := spcapi.NewClient(spcapi.Options{
			BaseURL: "https://spc.example", TokenFile: file, Organization: 111, Cluster: 23391,
			Transport: direct(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/orgs/111/clusters/23391/nodes" {
					good.ServeHTTP(w, r)
					return
				}
				began = append(began, time.Since(start))
				if h := answer(len(began)); h != nil {
					h(w, r)
					return
				}
				good.ServeHTTP(w, r)
			}),
		})
		require.NoError(t, err)
		publisher := &spcapi.Publisher{
			Client: client, ConfigMaps: api.CoreV1().ConfigMaps(namespace), Name: inventory, Metrics: spcapi.NewMetrics(),
			Nodes: func(context.Context) ([]*corev1.Node, error) { return nodes(), nil }, Log: slog.New(slog.DiscardHandler),
		}
		ctx, cancel := context.WithTimeout(t.Context(), so)
		defer cancel()
		require.ErrorIs(t, publisher.Run(ctx), context.DeadlineExceeded)
	})
	return began
}

func always(h http.HandlerFunc) func(int) http.HandlerFunc {
	return func(int) http.HandlerFunc { return h }
}

func TestOneRefreshAMinute(t *testing.T) {
	began := paced(t, time.Hour, always(nil), fake.NewClientset())
	require.Greater(t, len(began), 54)
	require.LessOrEqual(t, len(began), 60)
	require.Zero(t, began[0])
	different := false
	for i := 1; i < len(began); i++ {
		require.GreaterOrEqual(t, began[i]-began[i-1], time.Minute)
		different = different || began[i]-began[i-1] != began[1]
	}
	require.True(t, different, "chance spreads them")
}

func TestFailuresSlowItDown(t *testing.T) {
	failures := spcserver.Failures()
	began := paced(t, time.Hour, always(failures["500"]), fake.NewClientset())
	for i, least := range []time.Duration{1, 2, 4, 8, 10, 10} {
		pause := began[i+1] - began[i]
		require.GreaterOrEqual(t, pause, least*time.Minute)
		require.Less(t, pause, least*time.Minute*11/10)
	}
	require.LessOrEqual(t, len(began), 9)

	// Once it answers, it is asked as before.
	began = paced(t, 40*time.Minute, func(n int) http.HandlerFunc {
		if n != 5 {
			return failures["html"]
		}
		return nil
	}, fake.NewClientset())
	require.Less(t, began[5]-began[4], 67*time.Second)
	require.Less(t, began[6]-began[5], 67*time.Second, "the next failure is a first one")
}

func TestTheAPIAsksToBeLeftAlone(t *testing.T) {
	for name, c := range map[string]struct {
		header      string
		least, most time.Duration
	}{
		"seconds":               {"1200", 20 * time.Minute, 22 * time.Minute},
		"less than we wait":     {"3", time.Minute, 67 * time.Second},
		"nonsense":              {"-5", time.Minute, 67 * time.Second},
		"words":                 {"soon", time.Minute, 67 * time.Second},
		"a year":                {"31536000", time.Hour, 66 * time.Minute},
		"a date":                {"Sat, 01 Jan 2000 00:30:00 GMT", 30 * time.Minute, 33 * time.Minute}, // synctest begins in 2000
		"a date that is over":   {"Fri, 31 Dec 1999 00:00:00 GMT", time.Minute, 67 * time.Second},
		"nothing":               {"", time.Minute, 67 * time.Second},
		"more than a number is": {"99999999999999999999", time.Minute, 67 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			began := paced(t, 2*time.Hour, always(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", c.header)
				w.WriteHeader(http.StatusServiceUnavailable)
			}), fake.NewClientset())
			require.GreaterOrEqual(t, began[1], c.least)
			require.LessOrEqual(t, began[1], c.most)
		})
	}
}

// A leader that takes over asks no sooner than the one before it would have.
func TestANewLeaderKeepsThePace(t *testing.T) {
	for name, c := range map[string]struct {
		attempted   string
		least, most time.Duration
	}{
		"just now":           {"1999-12-31T23:59:50Z", 50 * time.Second, 50 * time.Second},
		"long ago":           {"1999-12-31T23:00:00Z", 0, 0},
		"in the future":      {"2000-01-01T01:00:00Z", 0, 0},
		"something unknown":  {"yesterday", 0, 0},
		"nothing before, no": {"", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			api := fake.NewClientset(&corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: inventory + spcapi.StatusSuffix},
				Data:       map[string]string{"attempted": c.attempted},
			})
			began := paced(t, 2*time.Minute, always(nil), api)
			require.GreaterOrEqual(t, began[0], c.least)
			require.LessOrEqual(t, began[0], c.most)
		})
	}
}

// Whoever takes over while the API is down goes on with the list that the last one published, and knows its age.
func TestANewLeaderKeepsTheList(t *testing.T) {
	packed, err := spcapi.Encode(&spc.Inventory{Organization: 111, Cluster: 23391, Records: []spc.Record{full()}})
	require.NoError(t, err)
	api := fake.NewClientset(
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: inventory}, BinaryData: map[string][]byte{spcapi.InventoryKey: packed}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: inventory + spcapi.StatusSuffix}, Data: map[string]string{"succeeded": "1999-12-31T23:00:00Z"}},
	)
	paced(t, time.Minute, always(spcserver.Failures()["500"]), api)
	list, err := api.CoreV1().ConfigMaps(namespace).Get(t.Context(), inventory, metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, packed, list.BinaryData[spcapi.InventoryKey])
	status, err := api.CoreV1().ConfigMaps(namespace).Get(t.Context(), inventory+spcapi.StatusSuffix, metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "1h0m0s old", status.Data["age"])
	require.Equal(t, "1999-12-31T23:00:00Z", status.Data["succeeded"])
	require.Contains(t, status.Data["problem"], "answered 500")
}

// TestTheListGrowsNoOlderWhenTheNewestNodeGoes: or the Nodes that were matched with it would have to wait for another.
func TestTheListGrowsNoOlderWhenTheNewestNodeGoes(t *testing.T) {
	api := fake.NewClientset()
	old, young := time.Date(2026, 8, 1, 10, 0, 0, 0, time.UTC), time.Date(2026, 8, 1, 11, 0, 0, 0, time.UTC)
	born := func(at time.Time) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: at.Format("15"), CreationTimestamp: metav1.NewTime(at)}}
	}
	rounds := 0
	began := pacedBeside(t, 3*time.Minute, func(int) http.HandlerFunc { return nil }, api, func() []*corev1.Node {
		if rounds++; rounds == 1 {
			return []*corev1.Node{born(old), born(young)}
		}
		return []*corev1.Node{born(old)}
	})
	require.Greater(t, len(began), 1)
	made, err := api.CoreV1().ConfigMaps(namespace).Get(t.Context(), inventory, metav1.GetOptions{})
	require.NoError(t, err)
	read, err := spcapi.Decode(made)
	require.NoError(t, err)
	require.True(t, young.Equal(read.AsOf), "as of %s", read.AsOf)
}
