package agent

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// TestReporterFrequentProbes: a member answers after 700 ms, and reviews request a probe every
// 500 ms. The results are published nevertheless.
func TestReporterFrequentProbes(t *testing.T) {
	const slow, interval = 700 * time.Millisecond, 500 * time.Millisecond
	runReporter(t, func(ctx context.Context, _ *reporterFixture) v1alpha1.Observation {
		_ = pause(ctx, slow)
		return v1alpha1.Observation{Linearizable: true}
	}, func(f *reporterFixture) {
		for i := range 20 {
			f.setCluster("c1", fmt.Sprint(i))
			f.wait(interval)
		}
		require.GreaterOrEqual(t, len(f.published()), 18, "in 10 s: %v", f.nonces())
	})
}
