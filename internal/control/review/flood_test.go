package review

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore/storetest"
	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

const (
	// floodWriters is the number of requests at a time of the flood, and floodReviews that of the
	// reviews in each measurement.
	floodWriters, floodReviews = 40, 5
	floodRounds                = 6
	// floodWithout is a lower bound of how much longer reviews take where the flood has the seats
	// of all priority levels. Measured: 2.2 to 2.7 times.
	floodWithout = 1.4
)

// TestFlood: root on one worker has the token of its agent, and updates the observation of that
// node as often as the API server lets it. All reviews are answered, with the shipped policies and
// priorities and the real accounts of all parties, and sooner than without the priority level. Both
// are measured beside the same flood: its client uses the same processors as the servers.
func TestFlood(t *testing.T) {
	server := apiserver.NewInstalled(t)
	// The test calls the reviewer itself. Without a webhook, the API server would delete no Node.
	configurations := server.Client().AdmissionregistrationV1().ValidatingWebhookConfigurations()
	require.NoError(t, configurations.Delete(t.Context(), "holdfast", metav1.DeleteOptions{}))
	worker, _, err := server.AddNode(t.Context(), apiserver.NodeSpec{Name: "worker"})
	require.NoError(t, err)
	f := storetest.New(t, server.Admin(), 0x78)
	clientOf := func(account, node string) client.Client {
		config, err := server.ServiceAccountConfig(t.Context(), "holdfast-system", account, node)
		require.NoError(t, err)
		config.QPS = -1
		c, err := client.New(config, client.Options{Scheme: f.Client.Scheme()})
		require.NoError(t, err)
		return c
	}
	f.CreateBound()
	f.CreateObservation(f.Cluster(), worker.Name)
	f.AgentClients = map[string]client.Client{}
	for _, n := range f.Nodes {
		f.AgentClients[n.Name] = clientOf("holdfast-agent", n.Name)
	}
	f.RunAgents()
	waitForLevel(t, server, worker.Name)
	webhook := clientOf("holdfast-webhook", "")
	reviewer := newReviewer(f, 0, func(o *clusterstore.Options) {
		o.Client, o.Reader = webhook, webhook
		o.ProbeInterval = 20 * time.Millisecond // Otherwise, the pace of the requests is measured.
	})
	report := v1alpha1.Observation{Node: worker.Name, NodeUID: worker.UID}
	evil, name := clientOf("holdfast-agent", worker.Name), v1alpha1.ObservationName(f.ClusterID, worker.Name)
	shipped := setSeats(t, server, 400)
	var flooded, glass, without time.Duration
	isSlower := func() bool { return without.Seconds() > floodWithout*max(flooded, glass).Seconds() }
	// Other tests use the same processors. So one good round is enough.
	for round := 0; round < floodRounds && !isSlower(); round++ {
		setSeats(t, server, shipped)
		calm := reviewer.median(t, f, nil)
		flood := newFlood(t, evil, report, name)
		flooded = reviewer.median(t, f, nil)
		glass = reviewer.median(t, f, &quorum.BreakGlass{Until: time.Now().Add(time.Minute), Reason: "test"})
		setSeats(t, server, 400)
		without = reviewer.median(t, f, nil)
		flood.stop()
		t.Logf("a review: %s; during %s: %s, with break-glass %s, without the priority level %s",
			calm, flood, flooded, glass, without)
		require.Positive(t, flood.writes.Load())
	}
	// The policy keeps an EtcdCluster with grants from being deleted after the test. Only the webhook
	// may end them.
	clear := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"grants":null}}`))
	require.NoError(t, webhook.Patch(t.Context(), f.EmptyCluster(), clear))
	require.True(t, isSlower())
}

// setSeats gives shares to the priority level of observations, and returns those that it had.
func setSeats(t *testing.T, server *apiserver.Server, shares int32) int32 {
	t.Helper()
	levels := server.Client().FlowcontrolV1().PriorityLevelConfigurations()
	level, err := levels.Get(t.Context(), "holdfast-observations", metav1.GetOptions{})
	require.NoError(t, err)
	before := *level.Spec.Limited.NominalConcurrencyShares
	*level.Spec.Limited.NominalConcurrencyShares = shares
	_, err = levels.Update(t.Context(), level, metav1.UpdateOptions{})
	require.NoError(t, err)
	return before
}

// waitForLevel waits until the requests of an agent have the priority level of the manifests.
func waitForLevel(t *testing.T, server *apiserver.Server, node string) {
	t.Helper()
	config, err := server.ServiceAccountConfig(t.Context(), "holdfast-system", "holdfast-agent", node)
	require.NoError(t, err)
	agent, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		level, err := server.Client().FlowcontrolV1().PriorityLevelConfigurations().Get(
			t.Context(), "holdfast-observations", metav1.GetOptions{})
		require.NoError(t, err)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
			config.Host+"/apis/holdfast.dev/v1alpha1/etcdobservations", nil)
		require.NoError(t, err)
		response, err := agent.Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		return response.Header.Get("X-Kubernetes-Pf-Prioritylevel-Uid") == string(level.UID)
	}, storetest.WaitTimeout, storetest.PollInterval)
}

// median makes some reviews, which must be allowed, and returns the median of their durations.
func (reviewer testReviewer) median(t *testing.T, f *storetest.Fixture, glass *quorum.BreakGlass) time.Duration {
	t.Helper()
	took := make([]time.Duration, floodReviews)
	for i := range took {
		req := f.Request(0)
		req.Version, req.User = fmt.Sprint(time.Now().UnixNano()), fmt.Sprint("user-", time.Now().UnixNano())
		if glass != nil {
			req.BreakGlass = glass
			req.BreakGlass.UID = req.UID
		}
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
		begun := time.Now()
		decision, err := reviewer.Review(ctx, req)
		took[i] = time.Since(begun)
		cancel()
		require.NoError(t, err)
		require.True(t, decision.Allowed, decision.Message)
	}
	t.Logf("reviews: %s", took)
	slices.Sort(took)
	return took[floodReviews/2]
}

// A flood updates an EtcdObservation with floodWriters requests at a time.
type flood struct {
	began            time.Time
	took             time.Duration
	writes, failures atomic.Int64
	cancel           context.CancelFunc
	writers          sync.WaitGroup
}

func newFlood(t *testing.T, as client.Client, report v1alpha1.Observation, name string) *flood {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	f := &flood{began: time.Now(), cancel: cancel}
	var latest atomic.Pointer[v1alpha1.EtcdObservation]
	first := &v1alpha1.EtcdObservation{}
	require.NoError(t, as.Get(ctx, client.ObjectKey{Name: name}, first))
	latest.Store(first)
	for w := range floodWriters {
		f.writers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				o := latest.Load().DeepCopy()
				o.Observation = report
				o.Time, o.Problem, o.Nonce = metav1.Now(), fmt.Sprint(w, " ", i), fmt.Sprint(w, " ", i)
				if as.Update(ctx, o) == nil {
					latest.Store(o)
					f.writes.Add(1)
					continue
				}
				f.failures.Add(1)
				if now := (&v1alpha1.EtcdObservation{}); as.Get(ctx, client.ObjectKey{Name: name}, now) == nil {
					latest.Store(now)
				}
			}
		})
	}
	t.Cleanup(f.stop)
	require.Eventually(t, func() bool { return f.writes.Load()+f.failures.Load() > 2*floodWriters },
		storetest.WaitTimeout, storetest.PollInterval)
	return f
}

// stop ends the flood.
func (f *flood) stop() {
	f.cancel()
	f.writers.Wait()
	if f.took == 0 {
		f.took = time.Since(f.began)
	}
}

func (f *flood) String() string {
	perSecond := func(n int64) float64 { return float64(n) / f.took.Seconds() }
	return fmt.Sprintf("%.0f updates/s and %.0f failures/s", perSecond(f.writes.Load()), perSecond(f.failures.Load()))
}
