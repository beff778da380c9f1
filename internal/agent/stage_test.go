package agent

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

const (
	testNode    = "n1"
	testCluster = v1alpha1.ClusterID("cdf818194e3a8c32")
	testMember  = v1alpha1.MemberID("3a1575389de83a83")
)

// stage is a reporter among fakes, in a bubble of its own time.
type stage struct {
	*reporter
	t    *testing.T
	said func() string
	// writes are what was published; refused is what publishing fails with, if it does.
	writes  latest[[]write]
	refused latest[error]
}

type write struct {
	at  time.Duration
	obs *v1alpha1.Observation
}

// play runs a reporter whose looks are made by observe, until the bubble ends.
func play(t *testing.T, observe func(context.Context, *stage) v1alpha1.Observation, act func(*stage)) {
	synctest.Test(t, func(t *testing.T) {
		log, said := record(t)
		evidence := &latest[protect.HostEvidence]{}
		s := &stage{t: t, said: said}
		began := time.Now()
		s.reporter = &reporter{
			node: testNode, pods: true, log: log, woken: newBell(), finished: make(chan round, roundsAtOnce),
			topics: map[v1alpha1.ClusterID]*topic{}, evidence: evidence,
			observe: func(ctx context.Context, _ protect.Sighting, a protect.Answer) v1alpha1.Observation {
				seen := observe(ctx, s)
				seen.LocalMember = a.Ref.Member
				return seen
			},
			publish: func(_ context.Context, _ v1alpha1.ClusterID, _ string, o *v1alpha1.Observation) error {
				if err, _ := s.refused.take(); err != nil {
					return err
				}
				s.writes.put(append(s.written(), write{time.Since(began), o}))
				return nil
			},
		}
		s.own = &mirror[*corev1.Node]{changed: s.woken.ring, log: log, objects: map[string]*corev1.Node{}}
		s.clusters = &mirror[*v1alpha1.EtcdCluster]{changed: s.woken.ring, log: log, objects: map[string]*v1alpha1.EtcdCluster{}}
		require.NoError(t, (&reflected[*corev1.Node]{s.own}).Replace([]any{&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: testNode, UID: "uid-1"},
		}}, ""))
		s.see(local(1))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.run(ctx) }()
		act(s)
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
	})
}

func local(pid int) protect.Found {
	return protect.Found{
		Sighting: protect.Sighting{Source: protect.SystemdUnit, Where: "systemd unit etcd.service", PID: pid},
		Answer:   protect.Answer{Ref: protect.MemberRef{Cluster: testCluster, Member: testMember}},
	}
}

// see is a look at the host that ends with this.
func (s *stage) see(found ...protect.Found) {
	s.evidence.put(protect.HostEvidence{Found: found})
	s.woken.ring()
}

// cluster is the EtcdCluster as it comes from the watch.
func (s *stage) cluster(uid types.UID, nonce string, entries ...v1alpha1.Observation) {
	require.NoError(s.t, (&reflected[*v1alpha1.EtcdCluster]{s.clusters}).Replace([]any{&v1alpha1.EtcdCluster{
		ObjectMeta: metav1.ObjectMeta{Name: string(testCluster), UID: uid},
		Spec:       v1alpha1.EtcdClusterSpec{Nonce: nonce},
		Status:     v1alpha1.EtcdClusterStatus{Observations: entries},
	}}, ""))
}

func (s *stage) wait(d time.Duration) {
	elapse(s.t, d)
}

func (s *stage) written() []write {
	writes, _ := s.writes.take()
	return writes
}

// nonces are the nonces that were published, in order.
func (s *stage) nonces() []string {
	var found []string
	for _, w := range s.written() {
		if w.obs == nil {
			found = append(found, "taken out")
			continue
		}
		found = append(found, w.obs.Nonce)
	}
	return found
}
