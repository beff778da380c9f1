package clusterstore

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// A tableReader is an API server that can be read only.
type tableReader struct {
	client.Reader
	takes   time.Duration // for an observation; twice as long for a Node
	isDown  string        // the Node that cannot be read
	mu      sync.Mutex
	objects map[string]*v1alpha1.EtcdObservation
	reads   []string
}

func (r *tableReader) Get(ctx context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	takes := r.takes
	if _, isNode := o.(*corev1.Node); isNode {
		takes *= 2
	}
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		return ctx.Err()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reads = append(r.reads, key.Name)
	if into, ok := o.(*v1alpha1.EtcdObservation); ok {
		if r.objects[key.Name] == nil {
			return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
		}
		r.objects[key.Name].DeepCopyInto(into)
	}
	if key.Name == r.isDown {
		return errors.New("no answer")
	}
	return nil
}

// takeReads returns the sorted names of what was read since the last call.
func (r *tableReader) takeReads() string {
	reads := r.reads
	r.reads = nil
	slices.Sort(reads)
	return strings.Join(reads, " ")
}

// TestView: observations and Nodes are read side by side, each once, and now. A Node that cannot be
// read, or not in time, has no known state.
func TestView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		requester := newTestRequester(&slowServer{})
		requester.addObservation(observed("worker", "w", ""))
		reader := &tableReader{takes: 50 * time.Millisecond}
		s := &Store{reader: reader, requester: requester}
		for range 2 {
			begun := time.Now()
			view, err := s.View(t.Context(), clusterVersion("10", ""), "1", "2")
			require.NoError(t, err)
			require.Equal(t, 100*time.Millisecond, time.Since(begun))
			require.Equal(t, "10", view.Cluster.ResourceVersion)
			require.Equal(t, "0 1 2 c1.0 c1.1 c1.2 c1.worker", reader.takeReads())
		}
		reader.isDown = "1"
		view, err := s.View(t.Context(), clusterVersion("10", ""))
		require.NoError(t, err)
		require.True(t, view.Nodes["0"].Known)
		require.False(t, view.Nodes["1"].Known)

		hasty, cancel := context.WithTimeout(t.Context(), 70*time.Millisecond)
		defer cancel()
		view, err = s.View(hasty, clusterVersion("10", ""))
		require.NoError(t, err)
		require.False(t, view.Nodes["0"].Known)
	})
}

// A View whose observations cannot be read waits for no Node: it is an error whatever they are.
func TestViewWithoutObservations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader := &tableReader{takes: 50 * time.Millisecond, isDown: "c1.0"}
		s := &Store{reader: reader, requester: newTestRequester(&slowServer{})}
		reader.objects = map[string]*v1alpha1.EtcdObservation{"c1.0": observed("0", "u0", "")}
		begun := time.Now()
		_, err := s.View(t.Context(), clusterVersion("10", ""))
		require.ErrorContains(t, err, "reading EtcdObservation c1.0: no answer")
		require.Equal(t, 50*time.Millisecond, time.Since(begun))
	})
}

// F1d: a grant has ended because its member has left every list. The watch of the EtcdClusters
// delivers the new ledger, and that of the observations has not delivered the lists yet. With the
// older list, in which the member is still healthy, the member would count as healthy again.
func TestViewReadsObservationsLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &slowServer{}
		requester := newTestRequester(server)
		reader := &tableReader{objects: map[string]*v1alpha1.EtcdObservation{}}
		s := &Store{reader: reader, requester: requester}
		probe, err := requester.request(t.Context(), clusterVersion("1", ""))
		require.NoError(t, err)
		list := func(ids ...v1alpha1.MemberID) []*v1alpha1.EtcdObservation {
			var all []*v1alpha1.EtcdObservation
			for _, b := range clusterVersion("", "").Spec.Members {
				o := observed(b.Node, b.NodeUID, server.nonces[0])
				o.Linearizable = true
				for _, id := range ids {
					o.Members = append(o.Members, v1alpha1.MemberStatus{ID: id, Healthy: true})
				}
				reader.objects[o.Name] = o
				all = append(all, o)
			}
			return all
		}
		for _, o := range list("a", "b") { // Both the API server and the watch have these.
			requester.addObservation(o)
		}
		list("a") // The watch has not delivered these.
		settled := clusterVersion("70", server.nonces[0])
		settled.Spec.Ledger = 2
		requester.addVersion(settled)

		view, err := s.View(t.Context(), probe.Result().Cluster, "0")
		require.NoError(t, err)
		require.Equal(t, int64(2), view.Cluster.Spec.Ledger)
		require.Len(t, view.Cluster.Observations, 2)
		for _, o := range view.Cluster.Observations {
			require.Len(t, o.Members, 1, "the list of before the end of the grant")
		}
		require.Equal(t, "0 1 c1.0 c1.1", reader.takeReads(), "Nodes and observations, each once")
	})
}

// A patch that fails because of any of these is a conflict, and not an invalid object.
func TestIsSameTested(t *testing.T) {
	for name, change := range map[string]func(*v1alpha1.EtcdCluster){
		"UID":       func(c *v1alpha1.EtcdCluster) { c.UID = "v" },
		"ledger":    func(c *v1alpha1.EtcdCluster) { c.Spec.Ledger++ },
		"bindings":  func(c *v1alpha1.EtcdCluster) { c.Spec.Members = []v1alpha1.Binding{{MemberID: "a"}} },
		"observers": func(c *v1alpha1.EtcdCluster) { c.Spec.Observers = v1alpha1.NodesWithRole },
		"named":     func(c *v1alpha1.EtcdCluster) { c.Annotations = map[string]string{quorum.ResolveAnnotation: "u"} },
	} {
		before, after := &v1alpha1.EtcdCluster{}, &v1alpha1.EtcdCluster{}
		after.Spec.Nonce = "n"
		require.True(t, isSameTested(before, after))
		change(after)
		require.False(t, isSameTested(before, after), name)
	}
}
