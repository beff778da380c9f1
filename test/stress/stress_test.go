package stress

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/testenv/etcd"
	"github.com/holdfast-dev/holdfast/internal/testenv/process"
	"github.com/holdfast-dev/holdfast/test/fixture"
)

const (
	deletions = 100
	clients   = 16
	// leastAllowed and leastRefused are the numbers of etcd deletions that a valid run needs.
	// On a busy machine the clients continue until leastAllowed is reached, but not beyond
	// longest.
	leastAllowed, leastRefused = 5, 10
	longest                    = 12 * time.Minute
	// mostUnanswered is the largest number of deletions that the webhook may answer too late. An idle
	// machine has none.
	mostUnanswered = deletions / 5
)

// A stressTest has the state of one run.
type stressTest struct {
	*fixture.Environment
	client   kubernetes.Interface
	history  *deletionHistory
	clusters []*stressCluster
	// nodes maps the nodes with etcd to the numbers of their addresses.
	nodes map[string]int
	// toReplace receives a signal when a node's machine must be replaced.
	toReplace map[string]chan struct{}
	// users counts the users that have deleted a node.
	users atomic.Int64

	mu sync.Mutex // guards the fields below
	// uids maps the existing nodes with etcd to their UIDs.
	uids    map[string]types.UID
	counts  map[string]int
	outages []timeSpan
}

func TestMain(m *testing.M) {
	flag.Duration("soak", 0, "how long TestSoak runs, for example 2h; it is skipped without")
	flag.String("record", "", "the `file` for the samples of TestSoak, as CSV")
	os.Exit(fixture.RunTests(m.Run))
}

func TestStress(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if given := os.Getenv("HOLDFAST_STRESS_SEED"); given != "" {
		var err error
		seed, err = strconv.ParseUint(given, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("the seed is %d; HOLDFAST_STRESS_SEED=%d repeats its choices", seed, seed)
	s := newStressTest(t)
	begun := time.Now()
	// The first fault comes while both clusters are observed healthy. This is when a decision
	// from older observations would be most likely.
	require.NoError(t, s.deleteDuringFault(t.Context(), "etcd-6", rand.New(rand.NewPCG(seed, 0))))
	require.Equal(t, map[string]int{"etcd refused": 1}, s.counts,
		"with one of three members down, the deletion of another must be refused")

	g, ctx := errgroup.WithContext(t.Context())
	faultsContext, stopFaults := context.WithCancel(ctx)
	var deleters errgroup.Group
	var left atomic.Int64
	left.Store(deletions)
	for i := range clients {
		random := rand.New(rand.NewPCG(seed, uint64(1+i)))
		deleters.Go(func() error { return s.deleteNodes(ctx, random, &left) })
	}
	g.Go(func() error { defer stopFaults(); return deleters.Wait() })
	for i, c := range s.clusters {
		random := rand.New(rand.NewPCG(seed, uint64(100+i)))
		g.Go(func() error { return s.injectFaults(faultsContext, c, random) })
	}
	for node := range s.nodes {
		random := rand.New(rand.NewPCG(seed, uint64(200+s.nodes[node])))
		g.Go(func() error { return s.replaceMachines(ctx, faultsContext, node, random) })
	}
	g.Go(func() error { return s.restartWebhook(faultsContext, &left) })
	err := g.Wait()

	t.Logf("the deletions of %s: %v", time.Since(begun).Round(time.Second), s.counts)
	require.NoError(t, s.history.verify())
	require.NoError(t, err)
	require.GreaterOrEqual(t, s.counts["etcd allowed"], leastAllowed)
	require.GreaterOrEqual(t, s.counts["etcd refused"], leastRefused)
	require.Zero(t, s.counts["ordinary refused"])
	require.LessOrEqual(t, s.counts["etcd unanswered"]+s.counts["ordinary unanswered"], mostUnanswered)
	for _, c := range s.clusters {
		require.NoError(t, c.recoverAll())
		require.NoError(t, c.checkRead(t.Context()))
	}
}

// newStressTest starts everything: a cluster of five members on the nodes 1 to 5, and one of three
// members on the nodes 4 to 6.
func newStressTest(t *testing.T) *stressTest {
	t.Helper()
	s := newEnvironment(t)
	s.startEtcd(t, "five", false, 1, 2, 3, 4, 5)
	s.startEtcd(t, "three", true, 4, 5, 6)
	s.startHoldfast(t, 3, 5)
	return s
}

// newEnvironment starts a kube-apiserver.
func newEnvironment(t *testing.T) *stressTest {
	t.Helper()
	root, err := process.RepositoryRoot()
	require.NoError(t, err)
	for _, dir := range []string{"api", "cmd", "internal", "pkg"} {
		require.NoError(t, process.TrackInputs(filepath.Join(root, dir)))
	}
	agent, webhook := fixture.BuiltPrograms()
	s := &stressTest{
		history: newDeletionHistory(), nodes: map[string]int{}, toReplace: map[string]chan struct{}{},
		uids: map[string]types.UID{}, counts: map[string]int{},
	}
	s.Environment, err = fixture.New(fixture.Options{
		Name: "stress", Out: t.Output(), Agent: agent, Webhook: webhook, Metrics: true,
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close(context.WithoutCancel(t.Context()), !t.Failed())) })
	require.NoError(t, s.Start(t.Context()))
	t.Logf("the addresses of the nodes are in %s", s.Net)
	admin := s.API.Admin()
	admin.WarningHandler = rest.NoWarnings{}
	s.client, err = kubernetes.NewForConfig(admin)
	require.NoError(t, err)
	return s
}

// startHoldfast registers the nodes with etcd, installs Holdfast, starts it, and waits until the
// clusters have as many healthy members, in ascending order.
func (s *stressTest) startHoldfast(t *testing.T, healthy ...int32) {
	t.Helper()
	ctx := t.Context()
	for node := range s.nodes {
		_, err := s.register(ctx, node)
		require.NoError(t, err)
	}
	require.NoError(t, s.Install(ctx))
	require.NoError(t, s.StartWebhooks(ctx))
	for node := range s.nodes {
		require.NoError(t, s.StartAgent(ctx, node))
	}
	require.NoError(t, s.WaitUntil(ctx, "all members to be reported healthy", func(ctx context.Context) error {
		text, err := s.client.CoreV1().RESTClient().Get().AbsPath("/apis/holdfast.dev/v1alpha1/etcdclusters").DoRaw(ctx)
		if err != nil {
			return err
		}
		var list v1alpha1.EtcdClusterList
		if err := json.Unmarshal(text, &list); err != nil {
			return err
		}
		var said []int32
		for i := range list.Items {
			if healthy := list.Items[i].Status.Healthy; healthy != nil {
				said = append(said, *healthy)
			}
		}
		if slices.Sort(said); !slices.Equal(said, healthy) {
			err = fmt.Errorf("the summaries say %d", said)
		}
		return err
	}))
}

// startEtcd starts a cluster with one member on each of the given nodes.
func (s *stressTest) startEtcd(t *testing.T, name string, events bool, on ...int) {
	t.Helper()
	c := &stressCluster{
		name: name, history: s.history, members: map[string]*etcd.Member{}, nodes: map[int]string{},
		faulty: map[*etcd.Member]bool{},
	}
	for i, n := range on {
		node := fmt.Sprintf("etcd-%d", n)
		c.nodes[i+1] = node
		s.nodes[node], s.toReplace[node] = n, make(chan struct{}, 1)
	}
	began := time.Now()
	var err error
	c.etcd, err = s.StartEtcd(t.Context(), etcd.Options{
		Dir: filepath.Join(s.Dir, name), Members: len(on), Events: events, Node: c.nodeOf,
		IP:       func(i int) string { return s.Net.IP(s.nodes[c.nodeOf(i)]) },
		Settings: map[string]string{"ETCD_MAX_LEARNERS": "3"},
	})
	require.NoError(t, err)
	var ids []memberID
	for _, m := range c.etcd.Members() {
		c.members[m.Node] = m
		s.history.recordStart(c.memberID(m))
		ids = append(ids, c.memberID(m))
	}
	s.history.changeVoters(name, began, ids)
	s.clusters = append(s.clusters, c)
}

// register registers the Node of a machine.
func (s *stressTest) register(ctx context.Context, node string) (*corev1.Node, error) {
	made, err := s.RegisterNode(ctx, node, s.Net.IP(s.nodes[node]), true)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uids[node] = made.UID
	return made, nil
}
