package spcapi_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/internal/spcapi"
	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/pkg/spc"
	"github.com/holdfast-dev/holdfast/test/spcserver"
)

const (
	namespace = "holdfast-system"
	inventory = "holdfast-spc-inventory"
	soon      = 20 * time.Second
)

// said collects everything that leaves the publisher: logs, events.
type said struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func (s *said) tell(about *corev1.ConfigMap, reason, message string) {
	fmt.Fprintf(s, "event on %s: %s: %s\n", about.Name, reason, message)
}

// scrape is what /metrics would show.
func scrape(t require.TestingT, m *spcapi.Metrics) string {
	registry := prometheus.NewRegistry()
	require.NoError(t, registry.Register(m))
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError}).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	require.Equal(t, http.StatusOK, answer.Code, answer.Body.String())
	return answer.Body.String()
}

// site is an API server with Holdfast's rights, and an SPC server.
type site struct {
	*testenv.APIServer
	spc     *spcserver.Server
	options spcapi.Options
	said    said
	metrics *spcapi.Metrics
	asked   atomic.Int32 // requests of agents to the API server
}

// TestWithAnAPIServer shares one among all that need it. Each leaves it as it was.
func TestWithAnAPIServer(t *testing.T) {
	server := testenv.NewInstalledAPIServer(t)
	for name, test := range map[string]func(*testing.T, *site){
		"the inventory reaches the agents":              testReachesTheAgents,
		"a large inventory":                             testALargeInventory,
		"a machine that never becomes a node is told":   testNeverANode,
		"the token is nowhere":                          testTheTokenIsNowhere,
		"nodes without a machine and machines with two": testNodesWithoutAMachine,
	} {
		t.Run(name, func(t *testing.T) {
			s := &site{APIServer: server, metrics: spcapi.NewMetrics()}
			s.spc, s.options = serve(t)
			t.Cleanup(func() {
				ctx := context.WithoutCancel(t.Context())
				require.NoError(t, server.Client().CoreV1().Nodes().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
				for _, name := range []string{inventory, inventory + spcapi.StatusSuffix} {
					require.NoError(t, server.Client().CoreV1().ConfigMaps(namespace).Delete(ctx, name, metav1.DeleteOptions{}))
				}
			})
			test(t, s)
		})
	}
}

func (s *site) configMaps(t *testing.T, account, node string) typedcorev1.ConfigMapInterface {
	t.Helper()
	config, err := s.ServiceAccountConfig(t.Context(), namespace, account, node)
	require.NoError(t, err)
	if node != "" {
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return counting{next, &s.asked} })
	}
	return configMapsOf(t, config)
}

func configMapsOf(t *testing.T, config *rest.Config) typedcorev1.ConfigMapInterface {
	t.Helper()
	client, err := typedcorev1.NewForConfig(config)
	require.NoError(t, err)
	return client.ConfigMaps(namespace)
}

type counting struct {
	next  http.RoundTripper
	count *atomic.Int32
}

func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	c.count.Add(1)
	return c.next.RoundTrip(r)
}

func (s *site) publisher(t *testing.T, o spcapi.Options) *spcapi.Publisher {
	client, err := spcapi.NewClient(o)
	require.NoError(t, err)
	return &spcapi.Publisher{
		Client: client, ConfigMaps: s.configMaps(t, "holdfast-webhook", ""), Name: inventory, Metrics: s.metrics, Tell: s.said.tell,
		Log: slog.New(slog.NewTextHandler(&s.said, nil)), Interval: 20 * time.Millisecond, Nodes: s.nodes,
	}
}

func (s *site) nodes(ctx context.Context) ([]*corev1.Node, error) {
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

// running runs the parts until the test ends.
func running(t *testing.T, parts ...func(context.Context) error) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(t.Context()))
	group, ctx := errgroup.WithContext(ctx)
	for _, part := range parts {
		group.Go(func() error { return part(ctx) })
	}
	over := errors.New("the test is over")
	t.Cleanup(func() {
		cancel(over)
		require.ErrorIs(t, group.Wait(), over)
	})
}

// refreshed waits for so many more refreshes to have begun, and so one less to have ended.
func (s *site) refreshed(t *testing.T, more int) {
	t.Helper()
	before := s.spc.Requests()
	require.Eventually(t, func() bool { return s.spc.Requests() > before+3*more }, soon, 5*time.Millisecond)
}

func (s *site) status(t *testing.T) map[string]string {
	t.Helper()
	m, err := s.Client().CoreV1().ConfigMaps(namespace).Get(t.Context(), inventory+spcapi.StatusSuffix, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(t, err)
	return m.Data
}

// testReachesTheAgents publishes with the webhook's rights and reads with an agent's, as they are shipped.
func testReachesTheAgents(t *testing.T, s *site) {
	_, _, err := s.AddNode(t.Context(), testenv.NodeSpec{Name: "worker-1"})
	require.NoError(t, err)
	changes := &atomic.Int32{}
	reader := &spcapi.Reader{ConfigMaps: s.configMaps(t, "holdfast-agent", "worker-1"), Name: inventory, Log: slog.New(slog.DiscardHandler)}
	require.Nil(t, reader.Latest(), "nothing was read yet, which is not an empty list")
	running(t, s.publisher(t, s.options).Run, func(ctx context.Context) error {
		return reader.Run(ctx, func() { changes.Add(1) })
	})

	first := spc.Record{PK: 1, Cluster: 23391, InstanceID: "a", State: "building"}
	s.spc.SetNodes(first)
	reads(t, reader, first)
	ready := spc.Record{PK: 1, Cluster: 23391, InstanceID: "a", State: "running"}
	s.spc.SetNodes(ready)
	reads(t, reader, ready)

	settled, asked := changes.Load(), s.asked.Load()
	s.refreshed(t, 5)
	require.Equal(t, settled, changes.Load(), "a list that has not changed is not written again")
	require.Equal(t, asked, s.asked.Load(), "an agent asks the API server for nothing while the list stands")

	// A young node makes the list younger than itself, and nothing else does.
	before := reader.Latest().Inventory().AsOf
	young, _, err := s.AddNode(t.Context(), testenv.NodeSpec{Name: "worker-2"})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		at := reader.Latest().Inventory().AsOf
		return !at.Before(young.CreationTimestamp.Time) && !at.Before(before)
	}, soon, 5*time.Millisecond)
	require.NoError(t, s.Client().CoreV1().Nodes().Delete(t.Context(), "worker-2", metav1.DeleteOptions{}))
	s.refreshed(t, 3)
	require.False(t, reader.Latest().Inventory().AsOf.Before(young.CreationTimestamp.Time), "it does not grow older again")

	s.spc.Fail(spcserver.Failures()["500"])
	require.Eventually(t, func() bool {
		return strings.Contains(s.status(t)["problem"], "answered 500")
	}, soon, 5*time.Millisecond)
	reads(t, reader, ready)

	// Somebody deletes the list: machines do not change because it was lost.
	require.NoError(t, s.Client().CoreV1().ConfigMaps(namespace).Delete(t.Context(), inventory, metav1.DeleteOptions{}))
	reads(t, reader, ready)
	s.spc.Fail(nil)
	require.Eventually(t, func() bool {
		_, err := s.Client().CoreV1().ConfigMaps(namespace).Get(t.Context(), inventory, metav1.GetOptions{})
		return err == nil && s.status(t)["problem"] == ""
	}, soon, 5*time.Millisecond)
}

// reads waits until the reader has exactly this record.
func reads(t *testing.T, r *spcapi.Reader, want spc.Record) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		got := r.Latest().Inventory()
		require.NotNil(c, got)
		require.Equal(c, []spc.Record{want}, got.Records)
	}, soon, 5*time.Millisecond)
}

func configMap(packed []byte) *corev1.ConfigMap {
	return &corev1.ConfigMap{BinaryData: map[string][]byte{spcapi.InventoryKey: packed}}
}

// A cluster of 15,000 machines must fit into one ConfigMap, whose limit is 1 MiB, and reach the agents through the API
// server with all of it.
func testALargeInventory(t *testing.T, s *site) {
	_, _, err := s.AddNode(t.Context(), testenv.NodeSpec{Name: "worker-1"})
	require.NoError(t, err)
	var machines []spc.Record
	for i := range 15000 {
		machines = append(machines, spc.Record{
			PK: int64(90000 + i), Cluster: 23391, Pool: 1224, PoolName: "Default Worker Pool", InstanceID: fmt.Sprintf("netatt9dgn-worker-%d", i),
			ProviderNodeID: fmt.Sprintf("i-0%016x", uint64(i)*0x9e3779b97f4a7c15), Role: "worker", GroupName: "autoscaling-netatt9dgn-pool-1",
			PrivateIP: fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255), PublicIP: fmt.Sprintf("198.%d.%d.%d", i*7919>>16&255, i*7919>>8&255, i*7919&255),
			Location: "us-west-2:us-west-2a", Zone: "us-west-2a", Size: "c4.xlarge", State: "running",
			Created: time.Date(2019, 1, 1, 0, 0, i, i*7919, time.UTC).Format(time.RFC3339Nano),
		})
	}
	s.spc.SetNodes(machines...)
	reader := &spcapi.Reader{ConfigMaps: s.configMaps(t, "holdfast-agent", "worker-1"), Name: inventory, Log: slog.New(slog.DiscardHandler)}
	running(t, s.publisher(t, s.options).Run, func(ctx context.Context) error { return reader.Run(ctx, func() {}) })
	require.Eventually(t, func() bool {
		return reader.Latest() != nil && len(reader.Latest().Inventory().Records) == len(machines)
	}, 2*soon, 20*time.Millisecond)
	got := reader.Latest().Inventory().Records[14999]
	want := machines[14999]
	want.Created = ""
	require.Equal(t, want, got)
	stored, err := s.Client().CoreV1().ConfigMaps(namespace).Get(t.Context(), inventory, metav1.GetOptions{})
	require.NoError(t, err)
	size := len(stored.BinaryData[spcapi.InventoryKey])
	t.Logf("%d KiB for %d machines", size>>10, len(machines))
	require.Less(t, size, 600<<10)
	require.Eventually(t, func() bool {
		return strings.Contains(s.status(t)["machines-without-a-node"], "and 14900 more")
	}, soon, 20*time.Millisecond)
	require.Less(t, len(fmt.Sprint(s.status(t))), 64<<10)
}
