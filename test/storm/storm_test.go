package storm

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
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

	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/test/site"
)

const (
	deletions = 200
	clients   = 16
	// leastAllowed and leastRefused are how many deletions of nodes with etcd must end so, for the storm to say anything. On
	// a machine that has much else to do the clients go on until so many were allowed, at longest for longest.
	leastAllowed, leastRefused = 10, 10
	longest                    = 2 * time.Minute
)

// storm is everything that happens at once.
type storm struct {
	*site.Site
	client   kubernetes.Interface
	history  *history
	clusters []*cluster
	// nodes are the addresses of the nodes with etcd, by name.
	nodes map[string]int
	// condemned takes the nodes whose machines are to die.
	condemned map[string]chan struct{}

	mu sync.Mutex // guards what follows
	// uids are the Nodes that are there, by name; one that was deleted is not.
	uids    map[string]types.UID
	counts  map[string]int
	outages []span
}

func TestStorm(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if given := os.Getenv("HOLDFAST_STORM_SEED"); given != "" {
		var err error
		seed, err = strconv.ParseUint(given, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("the seed is %d; HOLDFAST_STORM_SEED=%d makes the same choices again", seed, seed)
	s := start(t)
	begun := time.Now()
	// The first blow falls while both clusters are whole and seen to be so, which is when an old answer is most welcome.
	require.NoError(t, s.ambush(t.Context(), "etcd-6", rand.New(rand.NewPCG(seed, 0))))
	require.Equal(t, map[string]int{"etcd refused": 1}, s.counts, "one of three hangs or is dead, and another was to go")

	g, ctx := errgroup.WithContext(t.Context())
	weather, end := context.WithCancel(ctx)
	var asking errgroup.Group
	var left atomic.Int64
	left.Store(deletions)
	for i := range clients {
		random := rand.New(rand.NewPCG(seed, uint64(1+i)))
		asking.Go(func() error { return s.deleteMany(ctx, random, &left) })
	}
	g.Go(func() error { defer end(); return asking.Wait() })
	for i, c := range s.clusters {
		random := rand.New(rand.NewPCG(seed, uint64(100+i)))
		g.Go(func() error { return s.hurt(weather, c, random) })
	}
	for node := range s.nodes {
		random := rand.New(rand.NewPCG(seed, uint64(200+s.nodes[node])))
		g.Go(func() error { return s.keep(ctx, weather, node, random) })
	}
	g.Go(func() error { return s.crash(weather, &left) })
	err := g.Wait()

	t.Logf("the deletions of %s: %v", time.Since(begun).Round(time.Second), s.counts)
	require.NoError(t, s.history.judge())
	require.NoError(t, err)
	require.GreaterOrEqual(t, s.counts["etcd allowed"], leastAllowed)
	require.GreaterOrEqual(t, s.counts["etcd refused"], leastRefused)
	require.Zero(t, s.counts["ordinary refused"])
	for _, c := range s.clusters {
		require.NoError(t, c.healAll())
		require.NoError(t, c.read(t.Context()))
	}
}

// start builds Holdfast and starts everything: a cluster of five on the nodes 1 to 5, one of three on 4 to 6.
func start(t *testing.T) *storm {
	t.Helper()
	root, err := testenv.RepositoryRoot()
	require.NoError(t, err)
	for _, dir := range []string{"api", "cmd", "internal", "pkg"} {
		require.NoError(t, testenv.Reads(filepath.Join(root, dir)))
	}
	bin := t.TempDir()
	for name, dir := range map[string]string{"agent": "./cmd/agent", "webhook": "./cmd/webhook"} {
		build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(bin, name), dir)
		build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
		out, err := build.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	s := &storm{
		history: newHistory(), nodes: map[string]int{}, condemned: map[string]chan struct{}{},
		uids: map[string]types.UID{}, counts: map[string]int{},
	}
	s.Site, err = site.New(site.Options{
		Name: "storm", Out: t.Output(), Agent: filepath.Join(bin, "agent"), Webhook: filepath.Join(bin, "webhook"),
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close(context.WithoutCancel(t.Context()), !t.Failed())) })
	ctx := t.Context()
	require.NoError(t, s.Start(ctx))
	admin := s.API.Admin()
	admin.WarningHandler = rest.NoWarnings{}
	s.client, err = kubernetes.NewForConfig(admin)
	require.NoError(t, err)
	s.startEtcd(t, "five", false, 1, 2, 3, 4, 5)
	s.startEtcd(t, "three", true, 4, 5, 6)
	for node := range s.nodes {
		_, err = s.register(ctx, node)
		require.NoError(t, err)
	}
	require.NoError(t, s.Install(ctx))
	require.NoError(t, s.StartWebhooks(ctx))
	for node := range s.nodes {
		require.NoError(t, s.StartAgent(ctx, node))
	}
	require.NoError(t, s.Until(ctx, "both clusters to be seen healthy", func(ctx context.Context) error {
		out, err := s.API.Kubectl(ctx, "get", "etcdclusters", "-o", "jsonpath={.items[*].status.healthy}")
		if err == nil && out != "5 3" && out != "3 5" {
			err = fmt.Errorf("the summaries say %q", out)
		}
		return err
	}))
	return s
}

// startEtcd starts a cluster with a member on each of some nodes.
func (s *storm) startEtcd(t *testing.T, name string, events bool, on ...int) {
	t.Helper()
	c := &cluster{
		name: name, history: s.history, members: map[string]*testenv.Member{}, nodes: map[int]string{}, hurt: map[*testenv.Member]bool{},
	}
	for i, n := range on {
		node := fmt.Sprintf("etcd-%d", n)
		c.nodes[i+1] = node
		s.nodes[node], s.condemned[node] = n, make(chan struct{}, 1)
	}
	began := time.Now()
	var err error
	c.etcd, err = s.StartEtcd(t.Context(), testenv.EtcdOptions{
		Dir: filepath.Join(s.Dir, name), Members: len(on), Events: events, Node: c.nodeOf,
		IP:       func(i int) string { return s.Net.IP(s.nodes[c.nodeOf(i)]) },
		Settings: map[string]string{"ETCD_MAX_LEARNERS": "3"},
	})
	require.NoError(t, err)
	var ids []memberID
	for _, m := range c.etcd.Members() {
		c.members[m.Node] = m
		s.history.up(c.id(m))
		ids = append(ids, c.id(m))
	}
	s.history.changeVoters(name, began, ids)
	s.clusters = append(s.clusters, c)
}

// register makes a Node of a machine.
func (s *storm) register(ctx context.Context, node string) (*corev1.Node, error) {
	made, err := s.Register(ctx, node, s.Net.IP(s.nodes[node]), true)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uids[node] = made.UID
	return made, nil
}
