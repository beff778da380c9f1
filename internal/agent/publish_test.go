package agent

import (
	"context"
	"errors"
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
	t      *testing.T
	said   func() string
	writes []write
	refuse error
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
				if s.refuse != nil {
					return s.refuse
				}
				s.writes = append(s.writes, write{time.Since(began), o})
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
		ended := make(chan error)
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
	require.NoError(s.t, pause(s.t.Context(), d))
	synctest.Wait()
}

// nonces are the nonces that were published, in order.
func (s *stage) nonces() []string {
	var found []string
	for _, w := range s.writes {
		if w.obs == nil {
			found = append(found, "taken out")
			continue
		}
		found = append(found, w.obs.Nonce)
	}
	return found
}

func atOnce(context.Context, *stage) v1alpha1.Observation {
	return v1alpha1.Observation{Linearizable: true}
}

func TestAnEntryIsWrittenWhenAskedOnChangeAndEveryMinute(t *testing.T) {
	problem := ""
	play(t, func(context.Context, *stage) v1alpha1.Observation {
		return v1alpha1.Observation{Problem: problem}
	}, func(s *stage) {
		s.cluster("c1", "a")
		s.wait(0)
		require.Equal(t, []string{"a"}, s.nonces())
		require.Equal(t, testNode, s.writes[0].obs.Node)
		require.Equal(t, types.UID("uid-1"), s.writes[0].obs.NodeUID)
		require.Equal(t, testMember, s.writes[0].obs.LocalMember)

		s.cluster("c1", "b")
		s.wait(0)
		require.Equal(t, []string{"a", "b"}, s.nonces(), "what is seen has not changed, but it was asked for")

		s.see(local(2))
		s.wait(0)
		require.Len(t, s.writes, 2, "another process of the same member changes nothing that is published")

		problem = "etcd is ill"
		s.see(local(3))
		s.wait(0)
		require.Len(t, s.writes, 3, "a change is published at once")

		s.wait(10 * time.Minute)
		require.InDelta(t, 13, len(s.writes), 1, "an entry is written every minute")

		s.cluster("c2", "b")
		s.wait(0)
		last := s.writes[len(s.writes)-1]
		require.Equal(t, 10*time.Minute, last.at, "an object made anew has no entry yet")
	})
}

// A probe of a dead member takes all of its budget, and the webhook asks twice a second at most (F5).
func TestAMemberThatHangsDelaysNoAnswerBeyondTheProbesBudget(t *testing.T) {
	const budget = 1500 * time.Millisecond
	play(t, func(ctx context.Context, _ *stage) v1alpha1.Observation {
		_ = pause(ctx, budget)
		return v1alpha1.Observation{Linearizable: true}
	}, func(s *stage) {
		asked := map[string]time.Duration{}
		for i, nonce := range strings.Fields("a b c d e f g h i j k l") {
			asked[nonce] = time.Duration(i) * 500 * time.Millisecond
			s.cluster("c1", nonce)
			s.wait(500 * time.Millisecond)
		}
		s.wait(budget)
		require.Len(t, s.writes, len(asked))
		for _, w := range s.writes {
			require.Equal(t, asked[w.obs.Nonce]+budget, w.at, "nonce %s", w.obs.Nonce)
		}
	})
}

func TestLooksAreBoundedAndTheLastQuestionIsAnswered(t *testing.T) {
	running, most := 0, 0
	play(t, func(ctx context.Context, _ *stage) v1alpha1.Observation {
		running++
		most = max(most, running)
		_ = pause(ctx, time.Second)
		running--
		return v1alpha1.Observation{}
	}, func(s *stage) {
		for i := range 50 {
			s.cluster("c1", strings.Repeat("x", i+1))
			s.wait(time.Millisecond)
		}
		s.wait(3 * time.Second)
		require.Equal(t, roundsAtOnce, most)
		require.Equal(t, strings.Repeat("x", 50), s.writes[len(s.writes)-1].obs.Nonce)
	})
}

// Server-side apply knows no order: what was asked for first must not replace what was asked for later (F4).
func TestALookThatWasOvertakenIsNotPublished(t *testing.T) {
	looks := 0
	play(t, func(ctx context.Context, _ *stage) v1alpha1.Observation {
		looks++
		if looks == 1 {
			_ = pause(ctx, 3*time.Second)
		}
		return v1alpha1.Observation{}
	}, func(s *stage) {
		s.cluster("c1", "slow")
		s.wait(time.Millisecond)
		s.cluster("c1", "fast")
		s.wait(10 * time.Second)
		require.Equal(t, []string{"fast"}, s.nonces())
	})
}

// The nonce that is published is the one that was there before the look began, whatever comes meanwhile (F4).
func TestALookAnswersTheQuestionThatItBeganWith(t *testing.T) {
	looks := 0
	play(t, func(ctx context.Context, s *stage) v1alpha1.Observation {
		looks++
		if looks == 1 {
			s.cluster("c1", "during")
		}
		_ = pause(ctx, time.Duration(looks)*time.Second)
		return v1alpha1.Observation{}
	}, func(s *stage) {
		s.cluster("c1", "before")
		s.wait(time.Minute / 2)
		require.Equal(t, []string{"before", "during"}, s.nonces())
	})
}

func TestAFailedWriteIsSaidOnceAndTriedAgain(t *testing.T) {
	play(t, atOnce, func(s *stage) {
		s.refuse = apierrors.NewInternalError(errors.New("etcdserver: request timed out"))
		s.cluster("c1", "a")
		s.wait(30 * time.Second)
		require.Equal(t, 1, strings.Count(s.said(), "cannot be published"), s.said())
		s.refuse = nil
		s.wait(10 * time.Second)
		require.Equal(t, []string{"a"}, s.nonces())
	})
}

func TestAnObjectThatIsNotThereYetIsWaitedFor(t *testing.T) {
	play(t, atOnce, func(s *stage) {
		require.NoError(t, (&reflected[*v1alpha1.EtcdCluster]{s.clusters}).Replace(nil, ""))
		s.wait(5 * time.Minute)
		require.Empty(t, s.writes)
		require.Equal(t, 1, strings.Count(s.said(), "waiting for the webhook's leader"))
		s.cluster("c1", "a")
		s.wait(0)
		require.Equal(t, []string{"a"}, s.nonces())
	})
}

// The watch may be ahead of, or behind, what the write finds.
func TestAnObjectThatIsGoneIsWaitedFor(t *testing.T) {
	play(t, atOnce, func(s *stage) {
		s.refuse = apierrors.NewNotFound(schema.GroupResource{Resource: v1alpha1.Resource}, string(testCluster))
		s.cluster("c1", "a")
		s.wait(time.Second)
		s.refuse = nil
		s.wait(2 * time.Minute)
		require.NotEmpty(t, s.writes)
	})
}

func TestAServerThatFallsSilentIsStillReportedOn(t *testing.T) {
	play(t, atOnce, func(s *stage) {
		s.cluster("c1", "a")
		s.wait(0)
		hung := local(1)
		hung.Answer = protect.Answer{Problem: "no answer within 1.5 s"}
		s.see(hung)
		s.cluster("c1", "b")
		s.wait(0)
		require.Equal(t, []string{"a", "b"}, s.nonces())
		require.Equal(t, testMember, s.writes[1].obs.LocalMember)
	})
}

func TestAnEntryIsTakenOutOnlyWhenTheMemberHasProvablyGone(t *testing.T) {
	play(t, atOnce, func(s *stage) {
		s.cluster("c1", "a", v1alpha1.Observation{Node: "another"}, v1alpha1.Observation{Node: testNode})
		s.wait(0)
		s.evidence.put(protect.HostEvidence{Unknown: []string{"the process table: permission denied"}})
		s.woken.ring()
		s.wait(5 * time.Minute)
		require.Equal(t, []string{"a"}, s.nonces(), "it may be there and not be seen")

		s.refuse = errors.New("the server is away")
		s.see()
		s.wait(0)
		require.Equal(t, []string{"a"}, s.nonces())
		s.refuse = nil
		s.wait(2 * time.Minute)
		require.Equal(t, "taken out", s.nonces()[1])

		before := len(s.writes)
		s.cluster("c1", "b", v1alpha1.Observation{Node: "another"})
		s.wait(5 * time.Minute)
		require.Len(t, s.writes, before, "the entries of others are theirs")
	})
}
