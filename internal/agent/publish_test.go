package agent

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

func atOnce(context.Context, *stage) v1alpha1.Observation {
	return v1alpha1.Observation{Linearizable: true}
}

func TestAnEntryIsWrittenWhenAskedOnChangeAndEveryMinute(t *testing.T) {
	problem := latest[string]{}
	play(t, func(context.Context, *stage) v1alpha1.Observation {
		said, _ := problem.take()
		return v1alpha1.Observation{Problem: said}
	}, func(s *stage) {
		s.cluster("c1", "a")
		s.wait(0)
		require.Equal(t, []string{"a"}, s.nonces())
		require.Equal(t, testNode, s.written()[0].obs.Node)
		require.Equal(t, types.UID("uid-1"), s.written()[0].obs.NodeUID)
		require.Equal(t, testMember, s.written()[0].obs.LocalMember)

		s.cluster("c1", "b")
		s.wait(0)
		require.Equal(t, []string{"a", "b"}, s.nonces(), "what is seen has not changed, but it was asked for")

		s.see(local(2))
		s.wait(0)
		require.Len(t, s.written(), 2, "another process of the same member changes nothing that is published")

		problem.put("etcd is ill")
		s.see(local(3))
		s.wait(0)
		require.Len(t, s.written(), 3, "a change is published at once")

		s.wait(10 * time.Minute)
		require.InDelta(t, 13, len(s.written()), 1, "an entry is written every minute")

		s.cluster("c2", "b")
		s.wait(0)
		last := s.written()[len(s.written())-1]
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
		require.Len(t, s.written(), len(asked))
		for _, w := range s.written() {
			require.Equal(t, asked[w.obs.Nonce]+budget, w.at, "nonce %s", w.obs.Nonce)
		}
	})
}

func TestLooksAreBoundedAndTheLastQuestionIsAnswered(t *testing.T) {
	running, most := atomic.Int64{}, atomic.Int64{}
	play(t, func(ctx context.Context, _ *stage) v1alpha1.Observation {
		most.Store(max(most.Load(), running.Add(1)))
		_ = pause(ctx, time.Second)
		running.Add(-1)
		return v1alpha1.Observation{}
	}, func(s *stage) {
		for i := range 50 {
			s.cluster("c1", strings.Repeat("x", i+1))
			s.wait(time.Millisecond)
		}
		s.wait(3 * time.Second)
		require.Equal(t, int64(roundsAtOnce), most.Load())
		require.Equal(t, strings.Repeat("x", 50), s.written()[len(s.written())-1].obs.Nonce)
	})
}

// Server-side apply knows no order: what was asked for first must not replace what was asked for later (F4).
func TestALookThatWasOvertakenIsNotPublished(t *testing.T) {
	looks := atomic.Int64{}
	play(t, func(ctx context.Context, _ *stage) v1alpha1.Observation {
		if looks.Add(1) == 1 {
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
	looks := atomic.Int64{}
	play(t, func(ctx context.Context, s *stage) v1alpha1.Observation {
		look := looks.Add(1)
		if look == 1 {
			s.cluster("c1", "during")
		}
		_ = pause(ctx, time.Duration(look)*time.Second)
		return v1alpha1.Observation{}
	}, func(s *stage) {
		s.cluster("c1", "before")
		s.wait(time.Minute / 2)
		require.Equal(t, []string{"before", "during"}, s.nonces())
	})
}

func TestAFailedWriteIsSaidOnceAndTriedAgain(t *testing.T) {
	play(t, atOnce, func(s *stage) {
		s.refused.put(apierrors.NewInternalError(errors.New("etcdserver: request timed out")))
		s.cluster("c1", "a")
		s.wait(30 * time.Second)
		require.Equal(t, 1, strings.Count(s.said(), "cannot be published"), s.said())
		s.refused.put(nil)
		s.wait(10 * time.Second)
		require.Equal(t, []string{"a"}, s.nonces())
	})
}

// Certificates that are being replaced, an election, a server that is just starting: over before the next minute.
func TestAClusterThatCannotBeSeenIsLookedAtAgainSoon(t *testing.T) {
	looks, ill := atomic.Int64{}, atomic.Bool{}
	ill.Store(true)
	play(t, func(context.Context, *stage) v1alpha1.Observation {
		if looks.Add(1); ill.Load() {
			return v1alpha1.Observation{Problem: "private key does not match public key"}
		}
		return v1alpha1.Observation{Linearizable: true}
	}, func(s *stage) {
		s.cluster("c1", "a")
		s.wait(500 * time.Millisecond)
		require.Equal(t, int64(1), looks.Load())
		ill.Store(false)
		s.wait(time.Second)
		require.Equal(t, []string{"a", "a"}, s.nonces(), "the question is answered after all")
		require.Empty(t, s.written()[1].obs.Problem)
		s.wait(10 * time.Second)
		require.Equal(t, int64(2), looks.Load(), "and nobody is asked without need")

		ill.Store(true)
		s.wait(10 * time.Minute)
		before := looks.Load()
		s.wait(10 * time.Minute)
		require.LessOrEqual(t, looks.Load()-before, int64(22), "a trouble that lasts is not looked at ever faster")
	})
}

func TestAnObjectThatIsNotThereYetIsWaitedFor(t *testing.T) {
	play(t, atOnce, func(s *stage) {
		require.NoError(t, (&reflected[*v1alpha1.EtcdCluster]{s.clusters}).Replace(nil, ""))
		s.wait(5 * time.Minute)
		require.Empty(t, s.written())
		require.Equal(t, 1, strings.Count(s.said(), "waiting for the webhook's leader"))
		s.cluster("c1", "a")
		s.wait(0)
		require.Equal(t, []string{"a"}, s.nonces())
	})
}

// The watch may be ahead of, or behind, what the write finds.
func TestAnObjectThatIsGoneIsWaitedFor(t *testing.T) {
	play(t, atOnce, func(s *stage) {
		s.refused.put(apierrors.NewNotFound(schema.GroupResource{Resource: v1alpha1.Resource}, string(testCluster)))
		s.cluster("c1", "a")
		s.wait(time.Second)
		s.refused.put(nil)
		s.wait(2 * time.Minute)
		require.NotEmpty(t, s.written())
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
		require.Equal(t, testMember, s.written()[1].obs.LocalMember)
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

		s.refused.put(errors.New("the server is away"))
		s.see()
		s.wait(0)
		require.Equal(t, []string{"a"}, s.nonces())
		s.refused.put(nil)
		s.wait(2 * time.Minute)
		require.Equal(t, "taken out", s.nonces()[1])

		before := len(s.written())
		s.cluster("c1", "b", v1alpha1.Observation{Node: "another"})
		s.wait(5 * time.Minute)
		require.Len(t, s.written(), before, "the entries of others are theirs")
	})
}
