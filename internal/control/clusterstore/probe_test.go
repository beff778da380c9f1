package clusterstore

import (
	"context"
	"encoding/json"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// A slowServer stands for an API server with slow or failing writes: the test sets how long
// a write takes and how it ends.
type slowServer struct {
	client.Writer
	takes time.Duration
	fail  error

	mu       sync.Mutex
	version  int
	nonces   []string
	attempts int
}

func (server *slowServer) Patch(
	ctx context.Context, obj client.Object, patch client.Patch, _ ...client.PatchOption,
) error {
	server.mu.Lock()
	server.attempts++
	server.mu.Unlock()
	select {
	case <-time.After(server.takes):
	case <-ctx.Done():
		return ctx.Err()
	}
	if server.fail != nil {
		return server.fail
	}
	body, err := patch.Data(obj)
	if err != nil {
		return err
	}
	var ops []Operation
	if err := json.Unmarshal(body, &ops); err != nil {
		return err
	}
	server.mu.Lock()
	defer server.mu.Unlock()
	latest := ""
	if len(server.nonces) > 0 {
		latest = server.nonces[len(server.nonces)-1]
	}
	if tested, _ := ops[1].Value.(string); tested != latest {
		return apierrors.NewInvalid(schema.GroupKind{}, "c1", nil)
	}
	server.write(ops[2].Value.(string))
	*obj.(*v1alpha1.EtcdCluster) = *clusterVersion(strconv.Itoa(server.version), server.nonces[len(server.nonces)-1])
	return nil
}

// write writes a nonce. The caller holds the lock if there are other goroutines.
func (server *slowServer) write(nonce string) {
	server.version += 10
	server.nonces = append(server.nonces, nonce)
}

func (server *slowServer) read(context.Context, string) (*v1alpha1.EtcdCluster, error) {
	return server.latest(), nil
}

// latest returns the object.
func (server *slowServer) latest() *v1alpha1.EtcdCluster {
	server.mu.Lock()
	defer server.mu.Unlock()
	c := clusterVersion(strconv.Itoa(server.version), "")
	if len(server.nonces) > 0 {
		c.Spec.Nonce = server.nonces[len(server.nonces)-1]
	}
	return c
}

func newTestRequester(server *slowServer) *ProbeRequester {
	return newProbeRequester(server, server.read, 0, prometheus.NewCounter(prometheus.CounterOpts{Name: "probes"}))
}

// clusterVersion returns a version of the cluster with UID c, whose members are bound to the Nodes
// 0 and 1.
func clusterVersion(rv, nonce string) *v1alpha1.EtcdCluster {
	c := &v1alpha1.EtcdCluster{}
	c.Name, c.UID, c.ResourceVersion, c.Spec.Nonce = "c1", "c", rv, nonce
	c.Spec.Members = []v1alpha1.Binding{
		{MemberID: "a", Node: "0", NodeUID: "u0"}, {MemberID: "b", Node: "1", NodeUID: "u1"},
	}
	return c
}

// F18: etcd was that of kube-apiserver: commits were late, and a restore reverted grants.
func TestNoncesOfResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &slowServer{version: 100, takes: 100 * time.Millisecond}
		requester := newTestRequester(server)
		var g errgroup.Group
		g.Go(func() error { // while the nonce, which makes version 110, is being written
			<-time.After(50 * time.Millisecond)
			requester.addVersion(clusterVersion("99", "before"))
			requester.addVersion(clusterVersion("112", "early"))
			return nil
		})
		probe, err := requester.request(t.Context(), clusterVersion("1", ""))
		require.NoError(t, err)
		require.NoError(t, g.Wait())

		requester.addVersion(clusterVersion("130", "last"))
		requester.addVersion(clusterVersion("120", "overtaken"))
		requester.addVersion(clusterVersion("121", "overtaken")) // the status was written
		requester.addVersion(clusterVersion("109", "too old"))
		requester.addVersion(clusterVersion("bogus", "unordered"))
		remade := clusterVersion("140", "other object")
		remade.UID = "other"
		requester.addVersion(remade)

		got := probe.Result()
		require.Equal(t, []string{server.nonces[0], "early", "last", "overtaken"}, got.Nonces)
		require.Equal(t, "130", got.Cluster.ResourceVersion)
	})
}

func TestResultChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		requester := newTestRequester(&slowServer{})
		probe, err := requester.request(t.Context(), clusterVersion("1", ""))
		require.NoError(t, err)
		before := probe.Result()
		requester.addVersion(clusterVersion("50", ""))
		<-before.Changed
		require.Equal(t, "50", probe.Result().Cluster.ResourceVersion)
	})
}

// A review may begin before its EtcdCluster is deleted, and request the probe after that.
func TestProbeOfDeletedCluster(t *testing.T) {
	requester := newTestRequester(&slowServer{fail: apierrors.NewNotFound(schema.GroupResource{}, "c1")})
	requester.removeCluster("c")
	_, err := requester.request(t.Context(), clusterVersion("1", ""))
	require.Error(t, err)
	require.Empty(t, requester.queues)
}

func TestRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &slowServer{}
		requester := newTestRequester(server)
		for range 10 {
			probe, err := requester.request(t.Context(), server.latest())
			require.NoError(t, err)
			probe.Release()
			<-time.After(time.Second)
		}
		require.Empty(t, requester.queues["c"].open)
		requester.removeCluster("c")
		require.Empty(t, requester.queues)
	})
}

// observed returns the observation of a Node of the cluster with UID c.
func observed(node string, uid types.UID, nonce string) *v1alpha1.EtcdObservation {
	o := &v1alpha1.EtcdObservation{Cluster: "c1"}
	o.Name, o.OwnerReferences = "c1."+node, []metav1.OwnerReference{{UID: "c"}}
	o.Node, o.NodeUID, o.Nonce = node, uid, nonce
	return o
}

// TestIsAnswered: the next request waits for the agents of bound Nodes that have ever reported.
func TestIsAnswered(t *testing.T) {
	c := &v1alpha1.EtcdCluster{Spec: v1alpha1.EtcdClusterSpec{
		Nonce: "b", Members: []v1alpha1.Binding{{Node: "0"}, {Node: "1"}, {Node: "2"}},
	}}
	all := map[string]*v1alpha1.EtcdObservation{
		"0": observed("0", "u0", "b"), "1": observed("1", "u1", "a"), "2": observed("2", "", ""),
		"worker": observed("worker", "w", "a"),
	}
	require.False(t, isAnswered(c, all))
	all["1"].Nonce = "b"
	require.True(t, isAnswered(c, all))
}

// TestAnswers: each answer wakes those that wait. An agent of a Node without a member wakes them
// once, however often it writes.
func TestAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &slowServer{}
		requester := newTestRequester(server)
		requester.addObservation(observed("gone", "g", "x"))
		probe, err := requester.request(t.Context(), clusterVersion("1", ""))
		require.NoError(t, err)
		isWoken := func(o *v1alpha1.EtcdObservation) bool {
			before := probe.Result().Changed
			requester.addObservation(o)
			select {
			case <-before:
				return true
			default:
				return false
			}
		}
		require.False(t, isWoken(observed("0", "u0", "before")))
		require.Empty(t, probe.Result().Answers)
		for range 2 {
			require.True(t, isWoken(observed("0", "u0", server.nonces[0])))
		}
		require.True(t, isWoken(observed("worker", "w", server.nonces[0])))
		require.False(t, isWoken(observed("worker", "w", server.nonces[0])), "a flood")
		require.Equal(t, map[string]types.UID{"0": "u0", "worker": "w"}, probe.Result().Answers)
		require.Len(t, requester.observationsOf("c"), 3)
		requester.removeObservation(observed("worker", "w", ""))
		require.Equal(t, map[string]types.UID{"0": "u0"}, probe.Result().Answers)
	})
}
