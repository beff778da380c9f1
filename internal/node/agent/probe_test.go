package agent

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// TestReporterHangingMember checks the delay of answers. A probe of a dead member takes the
// whole timeout, and the webhook writes up to two nonces a second.
func TestReporterHangingMember(t *testing.T) {
	const timeout = 1500 * time.Millisecond
	runReporter(t, func(ctx context.Context, _ *reporterFixture) v1alpha1.Observation {
		_ = pause(ctx, timeout)
		return v1alpha1.Observation{Linearizable: true}
	}, func(f *reporterFixture) {
		asked := map[string]time.Duration{}
		for i, nonce := range strings.Fields("a b c d e f g h i j k l") {
			asked[nonce] = time.Duration(i) * 500 * time.Millisecond
			f.setCluster("c1", nonce)
			f.wait(500 * time.Millisecond)
		}
		f.wait(timeout)
		require.Len(t, f.published(), len(asked))
		for _, e := range f.published() {
			require.Equal(t, asked[e.observation.Nonce]+timeout, e.at, "nonce %s", e.observation.Nonce)
		}
	})
}

func TestReporterMaxProbes(t *testing.T) {
	running, most := atomic.Int64{}, atomic.Int64{}
	runReporter(t, func(ctx context.Context, _ *reporterFixture) v1alpha1.Observation {
		most.Store(max(most.Load(), running.Add(1)))
		_ = pause(ctx, time.Second)
		running.Add(-1)
		return v1alpha1.Observation{}
	}, func(f *reporterFixture) {
		for i := range 50 {
			f.setCluster("c1", strings.Repeat("x", i+1))
			f.wait(time.Millisecond)
		}
		f.wait(3 * time.Second)
		require.Equal(t, int64(maxProbes), most.Load())
		require.Equal(t, strings.Repeat("x", 50), f.published()[len(f.published())-1].observation.Nonce)
	})
}

// TestReporterNonce checks which probe answers which nonce.
func TestReporterNonce(t *testing.T) {
	// An older observation must not replace a newer one.
	t.Run("overtaken probe", func(t *testing.T) {
		probes := atomic.Int64{}
		runReporter(t, func(ctx context.Context, _ *reporterFixture) v1alpha1.Observation {
			if probes.Add(1) == 1 {
				_ = pause(ctx, 3*time.Second)
			}
			return v1alpha1.Observation{}
		}, func(f *reporterFixture) {
			f.setCluster("c1", "slow")
			f.wait(time.Millisecond)
			f.setCluster("c1", "fast")
			f.wait(10 * time.Second)
			require.Equal(t, []string{"fast"}, f.nonces())
		})
	})

	// A probe answers the nonce that it began with, and no later one.
	t.Run("nonce during a probe", func(t *testing.T) {
		probes := atomic.Int64{}
		runReporter(t, func(ctx context.Context, f *reporterFixture) v1alpha1.Observation {
			n := probes.Add(1)
			if n == 1 {
				f.setCluster("c1", "during")
			}
			_ = pause(ctx, time.Duration(n)*time.Second)
			return v1alpha1.Observation{}
		}, func(f *reporterFixture) {
			f.setCluster("c1", "before")
			f.wait(time.Minute / 2)
			require.Equal(t, []string{"before", "during"}, f.nonces())
		})
	})
}

// TestReporterProbeRetry checks that a probe that fails is repeated soon. Its cause may be the
// replacement of certificates, an election, or a server that is starting.
func TestReporterProbeRetry(t *testing.T) {
	probes, ill := atomic.Int64{}, atomic.Bool{}
	ill.Store(true)
	runReporter(t, func(context.Context, *reporterFixture) v1alpha1.Observation {
		if probes.Add(1); ill.Load() {
			return v1alpha1.Observation{Problem: "private key does not match public key"}
		}
		return v1alpha1.Observation{Linearizable: true}
	}, func(f *reporterFixture) {
		f.setCluster("c1", "a")
		f.wait(500 * time.Millisecond)
		require.Equal(t, int64(1), probes.Load())
		ill.Store(false)
		f.wait(time.Second)
		require.Equal(t, []string{"a", "a"}, f.nonces(), "the retry answers the nonce")
		require.Empty(t, f.published()[1].observation.Problem)
		f.wait(10 * time.Second)
		require.Equal(t, int64(2), probes.Load(), "no probe without a reason")

		ill.Store(true)
		f.wait(10 * time.Minute)
		before := probes.Load()
		f.wait(10 * time.Minute)
		require.LessOrEqual(t, probes.Load()-before, int64(22), "probes of a cluster that stays ill become rare")
	})
}

func TestReporterSilentServer(t *testing.T) {
	runReporter(t, healthyCluster, func(f *reporterFixture) {
		f.setCluster("c1", "a")
		f.wait(0)
		silent := foundMember(1)
		silent.Identity = evidence.Identity{Problem: "no answer within 1.5 s"}
		f.setEvidence(silent)
		f.setCluster("c1", "b")
		f.wait(0)
		require.Equal(t, []string{"a", "b"}, f.nonces())
		require.Equal(t, testMember, f.published()[1].observation.LocalMember)
	})
}
