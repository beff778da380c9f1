package spcapi_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/holdfast-dev/holdfast/internal/control/spcapi"
	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/pkg/spc"
	"github.com/holdfast-dev/holdfast/test/spcserver"
)

const (
	token     = "a12f59e2788386a302c5d199b5506725dc85692a880aed3303c5b6b195164a94"
	namespace = "holdfast-system"
	inventory = "holdfast-spc-inventory"
	soon      = 20 * time.Second
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

// outputBuffer collects the logs and events of a publisher.
type outputBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (s *outputBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buffer.Write(p)
}

func (s *outputBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buffer.String()
}

func (s *outputBuffer) recordEvent(about *corev1.ObjectReference, _, reason, message string) {
	fmt.Fprintf(s, "event on %s: %s: %s\n", about.Name, reason, message)
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

// fixture has an API server with Holdfast's RBAC, and an SPC server.
type fixture struct {
	*apiserver.Server
	spc           *spcserver.Server
	options       spcapi.Options
	output        outputBuffer
	metrics       *spcapi.Metrics
	agentRequests atomic.Int32 // of agents to the API server
	agentBytes    atomic.Int64 // of the API server to agents
}

// newFixture uses an API server that other tests use as well, and removes its objects
// afterwards.
func newFixture(t *testing.T, server *apiserver.Server) *fixture {
	t.Helper()
	s := &fixture{Server: server, metrics: spcapi.NewMetrics()}
	s.spc, s.options = serve(t)
	t.Cleanup(func() {
		ctx, core := context.WithoutCancel(t.Context()), server.Client().CoreV1()
		require.NoError(t, core.Nodes().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
		list, err := core.ConfigMaps(namespace).List(ctx, metav1.ListOptions{})
		require.NoError(t, err)
		for _, m := range list.Items {
			if strings.HasPrefix(m.Name, inventory) {
				require.NoError(t, core.ConfigMaps(namespace).Delete(ctx, m.Name, metav1.DeleteOptions{}))
			}
		}
	})
	return s
}

// configMaps returns a client with the rights of a service account. It counts the requests
// of agents.
func (s *fixture) configMaps(t *testing.T, account, node string) typedcorev1.ConfigMapInterface {
	t.Helper()
	config, err := s.ServiceAccountConfig(t.Context(), namespace, account, node)
	require.NoError(t, err)
	config.QPS = -1
	if node != "" {
		config.AcceptContentTypes = runtime.ContentTypeProtobuf // as package apiaccess
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return countingTransport{next, &s.agentRequests, &s.agentBytes}
		})
	}
	client, err := typedcorev1.NewForConfig(config)
	require.NoError(t, err)
	return client.ConfigMaps(namespace)
}

func (s *fixture) publisher(t *testing.T) *spcapi.Publisher {
	t.Helper()
	client, err := spcapi.NewClient(s.options)
	require.NoError(t, err)
	return &spcapi.Publisher{
		Client: client, ConfigMaps: s.configMaps(t, "holdfast-webhook", ""), Name: inventory, Metrics: s.metrics,
		RecordEvent: s.output.recordEvent, Log: slog.New(slog.NewTextHandler(&s.output, nil)),
		Interval: 20 * time.Millisecond, Nodes: s.nodes,
	}
}

func (s *fixture) reader(t *testing.T, node string) *spcapi.Reader {
	t.Helper()
	return &spcapi.Reader{
		ConfigMaps: s.configMaps(t, "holdfast-agent", node), Name: spcapi.PartName(inventory, node),
		Log: slog.New(slog.DiscardHandler),
	}
}

func (s *fixture) nodes(ctx context.Context) ([]*corev1.Node, error) {
	list, err := s.Client().CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var nodes []*corev1.Node
	for i := range list.Items {
		nodes = append(nodes, &list.Items[i])
	}
	return nodes, nil
}

// waitForRefreshes waits until this many more refreshes have begun. All but the last one
// have ended.
func (s *fixture) waitForRefreshes(t *testing.T, more int) {
	t.Helper()
	before := s.spc.Requests()
	require.Eventually(t, func() bool { return s.spc.Requests() > before+3*more }, 4*soon, 5*time.Millisecond)
}

// published returns the whole inventory that is published, or nil.
func (s *fixture) published(t *testing.T) *spc.Inventory {
	t.Helper()
	m, err := s.Client().CoreV1().ConfigMaps(namespace).Get(t.Context(), inventory, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(t, err)
	list, err := spcapi.Decode(m)
	require.NoError(t, err)
	return list
}

// status returns the data of the status ConfigMap.
func (s *fixture) status(t *testing.T) map[string]string {
	t.Helper()
	name := inventory + spcapi.StatusSuffix
	m, err := s.Client().CoreV1().ConfigMaps(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(t, err)
	return m.Data
}

// runUntilTestEnds runs the parts until the test ends.
func runUntilTestEnds(t *testing.T, parts ...func(context.Context) error) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(t.Context()))
	group, ctx := errgroup.WithContext(ctx)
	for _, part := range parts {
		group.Go(func() error { return part(ctx) })
	}
	ended := errors.New("the test has ended")
	t.Cleanup(func() {
		cancel(ended)
		require.ErrorIs(t, group.Wait(), ended)
	})
}

// countingTransport counts requests, and the bytes of their responses.
type countingTransport struct {
	next     http.RoundTripper
	requests *atomic.Int32
	bytes    *atomic.Int64
}

func (c countingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	c.requests.Add(1)
	response, err := c.next.RoundTrip(r)
	if err == nil {
		response.Body = countingBody{response.Body, c.bytes}
	}
	return response, err
}

type countingBody struct {
	io.ReadCloser
	bytes *atomic.Int64
}

func (b countingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.bytes.Add(int64(n))
	return n, err
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
	return response.Result(), nil
}
