package machinehook

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/machine"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
)

// A waitingFixture has Machines that wait for their hooks, and one Node each.
type waitingFixture struct {
	*staleFixture
	// reads is the number of live lists of Nodes, readErr their error, and listed the number of Nodes
	// in the last one.
	reads, listed int
	readErr       error
	// reviewed has when each review began, by Machine.
	reviewed map[string][]time.Duration
	// order has the Machines in the order of their reviews.
	order   []string
	message string
	// reviewTime is how long a review takes, and allows decides.
	reviewTime time.Duration
	allows     func(name string) bool
}

func newWaitingFixture(t *testing.T, machines int) *waitingFixture {
	t.Helper()
	waiting := func(i int) *unstructured.Unstructured {
		return staleMachine("1", func(m *unstructured.Unstructured) {
			hooked(m)
			deleting(m)
			m.SetName(fmt.Sprint("m", i))
			m.SetUID(types.UID(fmt.Sprint("m", i)))
			m.Object["spec"] = map[string]any{"providerID": fmt.Sprint("cloud:///n", i)}
			require.NoError(t, unstructured.SetNestedField(m.Object, "2026-11-22T00:00:00Z",
				"status", "deletion", "waitForPreTerminateHookStartTime"))
		})
	}
	f := &waitingFixture{
		staleFixture: newStaleFixture(t, waiting(0), waiting(0)), reviewed: map[string][]time.Duration{},
		message: "refused", allows: func(string) bool { return false },
	}
	for i := range machines {
		require.NoError(t, f.objects.Add(recordOf(t, f.machines, waiting(i))))
		if i > 0 {
			require.NoError(t, f.client.Tracker().Add(waiting(i)))
		}
		n := staleNode()
		n.Name, n.UID, n.Spec.ProviderID = fmt.Sprint("n", i), types.UID(fmt.Sprint("n", i)), fmt.Sprint("cloud:///n", i)
		f.cached = append(f.cached, n)
	}
	f.live = append(f.live, f.cached...)
	for i := range 100 {
		f.live = append(f.live, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("worker-", i)}})
	}
	f.LiveClusters = func(context.Context) ([]*v1alpha1.EtcdCluster, error) { return f.clusters, nil }
	f.LiveNodes = func(_ context.Context, isWanted func(*corev1.Node) bool) (found []*corev1.Node, err error) {
		f.reads++
		for _, n := range f.live {
			if isWanted(n) {
				found = append(found, n)
			}
		}
		f.listed = len(found)
		return found, f.readErr
	}
	began := time.Now()
	f.Review = func(
		ctx context.Context, m machine.Object, list func(context.Context) ([]*corev1.Node, error), _ string,
	) (bool, string) {
		f.reviewed[m.Name] = append(f.reviewed[m.Name], time.Since(began))
		f.order = append(f.order, m.Name)
		<-time.After(f.reviewTime)
		if _, err := list(ctx); err != nil {
			return false, err.Error()
		}
		return f.allows(m.Name), f.message
	}
	return f
}

// TestSharedRead: one list of Nodes serves all Machines that wait, and has only their Nodes.
func TestSharedRead(t *testing.T) {
	for name, c := range map[string]struct {
		reviewTime time.Duration
		readErr    error
	}{
		"fast reviews":     {},
		"a list fails":     {readErr: errors.New("timeout")},
		"reviews time out": {reviewTime: 8 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newWaitingFixture(t, 20)
				f.reviewTime, f.readErr = c.reviewTime, c.readErr
				require.NoError(t, f.reconcile(t))
				require.Equal(t, 1, f.reads)
				require.Len(t, f.reviewed, 20)
				require.Equal(t, 20, f.listed, "ordinary Nodes are not kept")
				require.Len(t, f.events, 20)
			})
		})
	}
}

// TestSharedReadIsTooOld: a review that allows does not remove the hook if the Nodes that it rests
// on were read too long ago. The next round begins with that Machine.
func TestSharedReadIsTooOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newWaitingFixture(t, 3)
		f.Tick = time.Hour
		f.reviewTime = reviewValidity/2 + time.Millisecond
		f.allows = func(name string) bool { return name == "m1" }
		require.NoError(t, f.reconcile(t))
		require.Equal(t, 1, f.reads)
		require.Equal(t, []string{"m0", "m1", "m2"}, f.order)
		require.True(t, f.isHooked(t, "m1"))

		require.NotEmpty(t, f.wake)
		require.NoError(t, f.reconcile(t))
		require.Equal(t, 2, f.reads)
		require.Equal(t, []string{"m0", "m1", "m2", "m1"}, f.order)
		require.False(t, f.isHooked(t, "m1"))
	})
}

// TestBackoff: a Machine is reviewed less and less often while its refusal and what it depends on
// stay the same.
func TestBackoff(t *testing.T) {
	cluster := func() *v1alpha1.EtcdCluster {
		return &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{UID: "c"}}
	}
	for name, c := range map[string]struct {
		// change is made at 100 s.
		change func(*testing.T, *waitingFixture)
		want   []int // seconds
	}{
		"nothing changes": {want: []int{0, 15, 45, 105, 225, 345, 465}},
		"the text changes": {
			change: func(_ *testing.T, f *waitingFixture) { f.message = "refused for another reason" },
			want:   []int{0, 15, 45, 105, 120, 150, 210, 330, 450},
		},
		"its Node changes, such as with break-glass": {
			change: func(_ *testing.T, f *waitingFixture) {
				f.cached[0] = f.cached[0].DeepCopy()
				f.cached[0].ResourceVersion = "2"
			},
			want: []int{0, 15, 45, 100, 115, 145, 205, 325, 445},
		},
		"another Node changes": {
			change: func(_ *testing.T, f *waitingFixture) {
				f.cached = append(f.cached, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "other"}})
			},
			want: []int{0, 15, 45, 105, 225, 345, 465},
		},
		"a member is healthy again": {
			change: func(_ *testing.T, f *waitingFixture) {
				f.clusters = []*v1alpha1.EtcdCluster{cluster()}
				f.clusters[0].Status.Healthy = new(int32(3))
			},
			want: []int{0, 15, 45, 100, 115, 145, 205, 325, 445},
		},
		"an observation is written": {
			change: func(_ *testing.T, f *waitingFixture) {
				f.clusters = []*v1alpha1.EtcdCluster{cluster()}
				f.clusters[0].Observations = []v1alpha1.Observation{{Node: "n0"}}
			},
			want: []int{0, 15, 45, 105, 225, 345, 465},
		},
		"the Machine changes": {
			change: func(t *testing.T, f *waitingFixture) {
				found, isRecord := f.objects.List()[0].(*record)
				require.True(t, isRecord)
				found.parsed.Node = "n0"
			},
			want: []int{0, 15, 45, 100, 115, 145, 205, 325, 445},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newWaitingFixture(t, 1)
				f.clusters = []*v1alpha1.EtcdCluster{cluster()}
				for second := range 500 {
					if second == 100 && c.change != nil {
						c.change(t, f)
					}
					require.NoError(t, f.reconcile(t))
					<-time.After(time.Second)
				}
				var got []int
				for _, at := range f.reviewed["m0"] {
					got = append(got, int(at/time.Second))
				}
				require.Equal(t, c.want, got)
			})
		})
	}
}

// TestHoldersOf: a Machine keeps its hook while its Node may hold etcd. A grant whose member has
// left is enough to name the Node.
func TestHoldersOf(t *testing.T) {
	c := quorumtest.Voters(3).Removed(0).Cluster.DeepCopy()
	c.Spec.Members, c.Spec.Grants = c.Spec.Members[1:], []v1alpha1.Grant{quorumtest.GrantFor(0)}
	c.Observations = slices.DeleteFunc(c.Observations, func(o v1alpha1.Observation) bool { return o.Node == "w1" })
	node := func(name string, uid types.UID, labels map[string]string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: uid, Labels: labels}}
	}
	var names []string
	for _, n := range holdersOf([]*corev1.Node{
		node("labelled", "l", map[string]string{observation.EtcdMemberLabel: observation.EtcdMemberLabelValue}),
		node("ordinary", "o", nil), node("w1", "u1", nil), node("w2", "u2", nil),
	}, []*v1alpha1.EtcdCluster{c}) {
		names = append(names, n.Name)
	}
	require.Equal(t, []string{"labelled", "w1", "w2"}, names)
}
