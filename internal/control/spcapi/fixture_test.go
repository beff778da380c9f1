package spcapi_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/holdfast-dev/holdfast/internal/control/spcapi"
	"github.com/holdfast-dev/holdfast/pkg/spc"
	"github.com/holdfast-dev/holdfast/test/spcserver"
)

const (
	token     = "a12f59e2788386a302c5d199b5506725dc85692a880aed3303c5b6b195164a94"
	namespace = "holdfast-system"
	inventory = "holdfast-spc-inventory"
)

// serve starts an SPC server and returns the options of a client.
func serve(t *testing.T) (*spcserver.Server, spcapi.Options) {
	t.Helper()
	s := newServer()
	web := httptest.NewServer(s)
	t.Cleanup(web.Close)
	return s, spcapi.Options{
		BaseURL: web.URL, TokenFile: writeFile(t, "token", token+"\n"), Organization: 111, Cluster: 23391,
	}
}

func newServer() *spcserver.Server {
	return &spcserver.Server{Token: token, Organization: "111", Cluster: "23391"}
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

func refresh(t *testing.T, o spcapi.Options) (spcapi.RefreshResult, error) {
	t.Helper()
	client, err := spcapi.NewClient(o)
	require.NoError(t, err)
	return client.Refresh(t.Context())
}

// fullRecord has a value in every field of every generation of the API.
func fullRecord() spc.Record {
	return spc.Record{
		PK: 331, Cluster: 23391, Pool: 108, PoolName: "Default Worker Pool", InstanceID: "spcp19ss7c-worker-1",
		ProviderNodeID: "i-038f00f3b164f86bb", Role: "worker", GroupName: "autoscaling-spcp19ss7c-pool-1",
		PrivateIP: "10.138.0.3", PublicIP: "35.203.171.134", Location: "us-west1-a", Zone: "us-west1-a",
		Size: "n1-standard-1", State: "provisioned", IsFailed: true, Created: "2017-10-19T17:07:38.276642Z",
	}
}

// configMap returns the inventory's ConfigMap with this compressed data.
func configMap(packed []byte) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: inventory},
		BinaryData: map[string][]byte{spcapi.InventoryKey: packed},
	}
}

// compress returns a text in the format of the ConfigMap.
func compress(t testing.TB, text []byte) []byte {
	t.Helper()
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, err := w.Write(text)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return packed.Bytes()
}

// scrape returns the text of /metrics.
func scrape(t require.TestingT, m *spcapi.Metrics) string {
	registry := prometheus.NewRegistry()
	require.NoError(t, registry.Register(m))
	response := httptest.NewRecorder()
	handler := promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError})
	handler.ServeHTTP(response, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	require.Equal(t, http.StatusOK, response.Code, response.Body.String())
	return response.Body.String()
}

// fixture has an SPC server and a fake API server, because a real one does not run in a bubble of
// synctest. The tests of cmd/webhook publish to a real one, and those of cmd/agent read from it,
// with the shipped RBAC.
type fixture struct {
	api     *fake.Clientset
	spc     *spcserver.Server
	token   string // the file
	output  bytes.Buffer
	metrics *spcapi.Metrics
	// broken is the end of the paths that failure answers, or empty.
	broken  string
	failure http.HandlerFunc
}

// inBubble runs a test in a bubble of synctest.
func inBubble(t *testing.T, test func(*testing.T, *fixture)) {
	t.Helper()
	file := writeFile(t, "token", token)
	synctest.Test(t, func(t *testing.T) {
		test(t, &fixture{api: fake.NewClientset(), spc: newServer(), token: file, metrics: spcapi.NewMetrics()})
	})
}

func (s *fixture) publisher(t *testing.T) *spcapi.Publisher {
	t.Helper()
	client, err := spcapi.NewClient(spcapi.Options{
		BaseURL: "https://spc.example", TokenFile: s.token, Organization: 111, Cluster: 23391,
		Transport: handlerTransport(func(w http.ResponseWriter, r *http.Request) {
			if s.broken != "" && strings.HasSuffix(r.URL.Path, s.broken) {
				s.failure(w, r)
				return
			}
			s.spc.ServeHTTP(w, r)
		}),
	})
	require.NoError(t, err)
	return &spcapi.Publisher{
		Client: client, ConfigMaps: s.configMaps(), Name: inventory, Metrics: s.metrics,
		RecordEvent: func(about *corev1.ObjectReference, _, reason, message string) {
			fmt.Fprintf(&s.output, "event on %s: %s: %s\n", about.Name, reason, message)
		},
		Log: slog.New(slog.NewTextHandler(&s.output, nil)),
		Nodes: func(ctx context.Context) (nodes []*corev1.Node, err error) {
			list, err := s.api.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
			require.NoError(t, err)
			for i := range list.Items {
				nodes = append(nodes, &list.Items[i])
			}
			return nodes, nil
		},
	}
}

// lead runs a publisher until the test ends or the returned function is called. Its first refresh
// has ended.
func (s *fixture) lead(t *testing.T, publisher *spcapi.Publisher) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var group errgroup.Group
	group.Go(func() error { return publisher.Run(ctx) })
	stop = func() { // also a second time
		cancel()
		require.ErrorIs(t, group.Wait(), context.Canceled)
	}
	t.Cleanup(stop)
	synctest.Wait()
	return stop
}

// failAt makes the API fail at the paths with this end.
func (s *fixture) failAt(end string, failure http.HandlerFunc) {
	s.broken, s.failure = end, failure
}

// waitForRefresh waits for the next refresh, also after failures.
func (s *fixture) waitForRefresh(t *testing.T) {
	t.Helper()
	for before := s.status(t)["attempted"]; s.status(t)["attempted"] == before; synctest.Wait() {
		<-time.After(time.Minute)
	}
}

func (s *fixture) configMaps() typedcorev1.ConfigMapInterface {
	return s.api.CoreV1().ConfigMaps(namespace)
}

// addNode adds a Node that is as old as the clock of the bubble.
func (s *fixture) addNode(t *testing.T, name, ip string) *corev1.Node {
	t.Helper()
	node, err := s.api.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Now(), Labels: map[string]string{}},
		Status: corev1.NodeStatus{
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip}},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	return node
}

// data returns the data of a ConfigMap, or nil.
func (s *fixture) data(t *testing.T, suffix string) map[string]string {
	t.Helper()
	m, err := s.configMaps().Get(t.Context(), inventory+suffix, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(t, err)
	return m.Data
}

func (s *fixture) status(t *testing.T) map[string]string {
	t.Helper()
	return s.data(t, spcapi.StatusSuffix)
}

// published returns the whole inventory that is published.
func (s *fixture) published(t *testing.T) *spc.Inventory {
	t.Helper()
	m, err := s.configMaps().Get(t.Context(), inventory, metav1.GetOptions{})
	require.NoError(t, err)
	list, err := spcapi.Decode(m)
	require.NoError(t, err)
	return list
}

// quotingTransport fails with an error that quotes the token.
type quotingTransport struct{}

func (quotingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	return nil, errors.New("cannot send " + r.Header.Get("Authorization"))
}

// handlerTransport passes requests to a handler without a network, as synctest requires.
type handlerTransport http.HandlerFunc

func (h handlerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	response := httptest.NewRecorder()
	h(response, r)
	return response.Result(), r.Context().Err()
}
