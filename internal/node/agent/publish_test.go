package agent

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// reporterFixture is a clusterReporter in a bubble, with fakes around it.
type reporterFixture struct {
	*clusterReporter
	t    *testing.T
	logs func() string
	// entries are the published entries. If refused is set, publishing fails with this error.
	entries latest[[]publishedEntry]
	// elapsed returns the time since the reporter began.
	elapsed func() time.Duration
	refused latest[error]
	// list is the member list that the local server stores. If unlisted is set, reading it fails.
	list     latest[[]v1alpha1.MemberStatus]
	unlisted latest[error]
}

type publishedEntry struct {
	at          time.Duration
	observation *v1alpha1.Observation
	// over is the version that the write replaces.
	over string
}

// runReporter runs a reporter whose probes are made by observe, and then act.
func runReporter(
	t *testing.T, observe func(context.Context, *reporterFixture) v1alpha1.Observation, act func(*reporterFixture),
) {
	synctest.Test(t, func(t *testing.T) {
		log, logs := recordLog(t)
		began := time.Now()
		f := &reporterFixture{t: t, logs: logs, elapsed: func() time.Duration { return time.Since(began) }}
		f.clusterReporter = &clusterReporter{
			wake: loop.NewSignal(), results: make(chan clusterProbe, maxProbes),
			reports: map[v1alpha1.ClusterID]*clusterReport{}, evidence: &latest[evidence.Scan]{}, metrics: newMetrics(),
			cfg: Config{
				Node: testNode, StaticPods: true, Log: log,
				Observe: func(ctx context.Context, _ evidence.Server, a evidence.Identity) v1alpha1.Observation {
					o := observe(ctx, f)
					o.LocalMember = a.Ref.Member
					return o
				},
			},
			publish: func(
				_ context.Context, o *v1alpha1.EtcdObservation, _ metav1.UpdateOptions,
			) (*v1alpha1.EtcdObservation, error) {
				if err, _ := f.refused.get(); err != nil {
					return nil, err
				}
				f.entries.set(append(f.published(), publishedEntry{f.elapsed(), &o.Observation, o.ResourceVersion}))
				made := *o
				made.ResourceVersion = strconv.Itoa(100 + len(f.published()))
				return &made, nil
			},
		}
		f.lists.read = func(
			context.Context, evidence.Server, evidence.Identity,
		) ([]v1alpha1.MemberStatus, error) {
			list, _ := f.list.get()
			err, _ := f.unlisted.get()
			return list, err
		}
		f.lists.changed = f.wake.Notify
		f.nodes = newStore[*corev1.Node](log, f.wake.Notify)
		f.clusters = newClusterStores(log, f.wake.Notify)
		replace(t, f.nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: testNode, UID: "uid-1"}})
		f.setEvidence(foundMember(1))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		go func() { ended <- f.run(ctx) }()
		go func() { ended <- f.lists.run(ctx) }()
		act(f)
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
		require.ErrorIs(t, <-ended, context.Canceled)
	})
}

// setEvidence ends a scan of the host with this result.
func (f *reporterFixture) setEvidence(found ...evidence.FoundServer) {
	f.evidence.set(evidence.Scan{Found: found})
	f.wake.Notify()
}

// setCluster delivers the EtcdCluster and the EtcdObservation of the node through the watches.
func (f *reporterFixture) setCluster(uid types.UID, nonce string) {
	f.deliver(&v1alpha1.EtcdCluster{
		ObjectMeta: metav1.ObjectMeta{Name: string(testCluster), UID: uid},
		Spec:       v1alpha1.EtcdClusterSpec{Nonce: nonce},
	})
}

func (f *reporterFixture) deliver(c *v1alpha1.EtcdCluster) {
	o := &v1alpha1.EtcdObservation{Cluster: testCluster, Observation: v1alpha1.Observation{Node: testNode}}
	o.Name = v1alpha1.ObservationName(testCluster, testNode)
	o.UID, o.ResourceVersion = "of "+c.UID, "1"
	o.OwnerReferences = []metav1.OwnerReference{{UID: c.UID}}
	replace(f.t, f.clusters.observations, o)
	replace(f.t, f.clusters.clusters, c)
}

func (f *reporterFixture) wait(d time.Duration) { elapse(f.t, d) }

func (f *reporterFixture) published() []publishedEntry {
	entries, _ := f.entries.get()
	return entries
}

// nonces returns the published nonces, in order.
func (f *reporterFixture) nonces() []string {
	var found []string
	for _, e := range f.published() {
		found = append(found, e.observation.Nonce)
	}
	return found
}

func healthyCluster(context.Context, *reporterFixture) v1alpha1.Observation {
	return v1alpha1.Observation{Linearizable: true}
}

// TestReporter checks that an observation is written for each nonce, on each change, and every
// minute.
func TestReporter(t *testing.T) {
	problem := latest[string]{}
	runReporter(t, func(context.Context, *reporterFixture) v1alpha1.Observation {
		text, _ := problem.get()
		return v1alpha1.Observation{Problem: text}
	}, func(f *reporterFixture) {
		f.setCluster("c1", "a")
		f.wait(0)
		require.Equal(t, []string{"a"}, f.nonces())
		require.Equal(t, testNode, f.published()[0].observation.Node)
		require.Equal(t, types.UID("uid-1"), f.published()[0].observation.NodeUID)
		require.Equal(t, testMember, f.published()[0].observation.LocalMember)

		f.setCluster("c1", "b")
		f.wait(0)
		require.Equal(t, []string{"a", "b"}, f.nonces(), "a new nonce needs an answer, even without a change")

		f.setEvidence(foundMember(2))
		f.wait(0)
		require.Len(t, f.published(), 2, "a new process of the same member changes no published field")

		problem.set("etcd is ill")
		f.setEvidence(foundMember(3))
		f.wait(0)
		require.Len(t, f.published(), 3, "a change is published immediately")

		f.wait(10 * time.Minute)
		require.InDelta(t, 13, len(f.published()), 1, "an entry is written every minute")

		f.setCluster("c2", "b")
		f.wait(0)
		last := f.published()[len(f.published())-1]
		require.Equal(t, 10*time.Minute, last.at, "a new object of the same name has no entry yet")
	})
}

func TestReporterFailedWrite(t *testing.T) {
	t.Run("server error", func(t *testing.T) {
		runReporter(t, healthyCluster, func(f *reporterFixture) {
			f.refused.set(apierrors.NewInternalError(errors.New("etcdserver: request timed out")))
			f.setCluster("c1", "a")
			f.wait(30 * time.Second)
			require.Equal(t, 1, strings.Count(f.logs(), "failed to publish"), f.logs())
			f.refused.set(nil)
			f.wait(10 * time.Second)
			require.Equal(t, []string{"a"}, f.nonces())
		})
	})

	// After an outage, an entry must not stay as old as one of an agent that does not run.
	t.Run("heartbeat", func(t *testing.T) {
		runReporter(t, healthyCluster, func(f *reporterFixture) {
			f.setCluster("c1", "a")
			f.wait(10 * time.Second)
			f.refused.set(errors.New("connection refused"))
			f.wait(3 * time.Minute)
			require.Len(t, f.published(), 1)
			f.refused.set(nil)
			f.wait(12 * time.Second) // the longest delay of a retry is 10 s
			require.Len(t, f.published(), 2)
		})
	})

	// The watch may be behind the write.
	t.Run("deleted cluster", func(t *testing.T) {
		runReporter(t, healthyCluster, func(f *reporterFixture) {
			f.refused.set(apierrors.NewNotFound(schema.GroupResource{Resource: v1alpha1.Resource}, string(testCluster)))
			f.setCluster("c1", "a")
			f.wait(time.Second)
			f.refused.set(nil)
			f.wait(2 * time.Minute)
			require.NotEmpty(t, f.published())
		})
	})

	t.Run("absent cluster", func(t *testing.T) {
		runReporter(t, healthyCluster, func(f *reporterFixture) {
			replace(t, f.clusters.clusters)
			f.wait(5 * time.Minute)
			require.Empty(t, f.published())
			require.Equal(t, 1, strings.Count(f.logs(), "waiting for the webhook's leader"))
			f.setCluster("c1", "a")
			f.wait(0)
			require.Equal(t, []string{"a"}, f.nonces())
		})
	})
}

// TestReporterVersions: each write replaces the version that the one before made. The watch is
// behind.
func TestReporterVersions(t *testing.T) {
	runReporter(t, healthyCluster, func(f *reporterFixture) {
		for _, nonce := range []string{"a", "b"} {
			f.setCluster("c1", nonce)
			f.wait(0)
		}
		require.Equal(t, "1", f.published()[0].over)
		require.Equal(t, "101", f.published()[1].over)

		f.setCluster("c2", "c") // another object
		f.wait(0)
		require.Equal(t, "1", f.published()[2].over)

		// After a restore of the API server, all versions are older than those that were written.
		f.refused.set(refusal(http.StatusConflict))
		f.setCluster("c2", "d")
		f.wait(time.Second)
		f.refused.set(nil)
		f.wait(time.Minute)
		require.Equal(t, "1", f.published()[3].over)
	})
}

// boundHere returns the EtcdCluster with a binding of the local member to the node.
func boundHere(nonce string) *v1alpha1.EtcdCluster {
	return &v1alpha1.EtcdCluster{
		ObjectMeta: metav1.ObjectMeta{Name: string(testCluster), UID: "c1"},
		Spec: v1alpha1.EtcdClusterSpec{
			Nonce: nonce, Members: []v1alpha1.Binding{{MemberID: testMember, Node: testNode, NodeUID: "uid-1"}},
		},
	}
}

// TestReporterNoMember checks that the agent of a bound node reports that its host is empty, once,
// and that its entry keeps the last list: it shows what ran where (F30).
func TestReporterNoMember(t *testing.T) {
	runReporter(t, func(context.Context, *reporterFixture) v1alpha1.Observation {
		return v1alpha1.Observation{
			Linearizable: true, Members: []v1alpha1.MemberStatus{{ID: testMember, Name: "etcd1", Healthy: true}},
		}
	}, func(f *reporterFixture) {
		f.deliver(boundHere("a"))
		f.wait(0)
		require.Equal(t, []string{"a"}, f.nonces())
		last := *f.published()[0].observation
		require.False(t, last.NoMember)
		f.evidence.set(evidence.Scan{Unknown: []string{"the process table: permission denied"}})
		f.wait(0)
		f.deliver(boundHere("b"))
		f.wait(2 * time.Minute)
		require.Len(t, f.published(), 1, "the scan is not complete")

		f.refused.set(errors.New("the server is away"))
		f.setEvidence()
		f.wait(time.Second)
		f.refused.set(nil)
		f.wait(2 * time.Minute)
		reported := *f.published()[1].observation
		require.True(t, reported.NoMember)
		require.Equal(t, "a", reported.Nonce, "it answers no probe request")
		require.Equal(t, last.Members, reported.Members)
		count := len(f.published())
		f.deliver(boundHere("c"))
		f.wait(10 * time.Minute)
		require.Len(t, f.published(), count)

		f.setEvidence(foundMember(2))
		f.wait(0)
		again := f.published()[count].observation
		require.Equal(t, "c", again.Nonce)
		require.False(t, again.NoMember)
	})
}
