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
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// TestProbedView: the reviews that share a request share its reads. None gets the result of a read
// that began before it asked, and each Node is read once unless that failed.
func TestProbedView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		requester := newTestRequester(&slowServer{})
		reader := &tableReader{takes: 50 * time.Millisecond}
		s := &Store{reader: reader, requester: requester}
		probe, err := requester.request(t.Context(), clusterVersion("1", ""))
		require.NoError(t, err)
		var g errgroup.Group
		ask := func(node, version string) {
			g.Go(func() error {
				view, err := s.ProbedView(t.Context(), probe, node)
				require.Equal(t, version, view.Cluster.ResourceVersion)
				require.Equal(t, node != reader.isDown, view.Nodes[node].Known)
				return err
			})
		}
		ask("0", "10")
		synctest.Wait()
		ask("1", "20") // The others ask during the first read.
		synctest.Wait()
		requester.addVersion(clusterVersion("20", ""))
		ask("w1", "20")
		ask("w2", "20")
		require.NoError(t, g.Wait())
		require.Equal(t, "0 1 c1.0 c1.0 c1.1 c1.1 c1.w1 c1.w2 w1 w2", reader.takeReads())

		for _, reader.isDown = range []string{"w3", "w3", ""} {
			ask("w3", "20")
			require.NoError(t, g.Wait())
			require.Equal(t, "c1.0 c1.1 c1.w1 c1.w2 c1.w3 w3", reader.takeReads())
		}
		ask("w3", "20")
		require.NoError(t, g.Wait())
		require.Equal(t, "c1.0 c1.1 c1.w1 c1.w2 c1.w3", reader.takeReads())

		// The second read is that of a caller with little time. It ends before the Nodes are read.
		hasty, cancel := context.WithTimeout(t.Context(), 170*time.Millisecond)
		defer cancel()
		ask("w4", "20")
		synctest.Wait()
		g.Go(func() error {
			view, err := s.ProbedView(hasty, probe, "w5")
			require.False(t, view.Nodes["w5"].Known)
			return err
		})
		synctest.Wait()
		ask("w6", "20")
		require.NoError(t, g.Wait())
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

		view, err := s.ProbedView(t.Context(), probe, "0")
		require.NoError(t, err)
		require.Equal(t, int64(2), view.Cluster.Spec.Ledger)
		require.Len(t, view.Cluster.Observations, 2)
		for _, o := range view.Cluster.Observations {
			require.Len(t, o.Members, 1, "the list of before the end of the grant")
		}
		require.Equal(t, "0 1 c1.0 c1.1", reader.takeReads(), "Nodes and observations, each once")
	})
}

func TestLastWriters(t *testing.T) {
	at := func(minute int) *metav1.Time {
		return new(metav1.NewTime(time.Date(2026, 5, 1, 12, minute, 0, 0, time.UTC)))
	}
	c := &v1alpha1.EtcdCluster{}
	require.Empty(t, lastWriters(c))
	c.ManagedFields = []metav1.ManagedFieldsEntry{
		{Manager: "old", Time: at(1)},
		{Manager: "kubectl\nedit", Time: at(3)},
		{Manager: "unknown"},
		{Manager: "holdfast-webhook", Time: at(2)},
	}
	require.Equal(t, "kubectl edit at 2026-05-01T12:03:00Z, holdfast-webhook at 2026-05-01T12:02:00Z", lastWriters(c))
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
