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
// 500 ms. The complete results are published nevertheless: a review that needs the slow member
// waits for them.
func TestReporterFrequentProbes(t *testing.T) {
	const slow, interval = 700 * time.Millisecond, 500 * time.Millisecond
	for _, early := range []bool{false, true} {
		t.Run(fmt.Sprintf("early %v", early), func(t *testing.T) {
			runReporter(t, func(ctx context.Context, _ *reporterFixture) v1alpha1.Observation {
				_ = pause(ctx, slow)
				return v1alpha1.Observation{Linearizable: true}
			}, func(f *reporterFixture) {
				if early {
					f.early.set(v1alpha1.Observation{Linearizable: true, Incomplete: true})
				}
				for i := range 20 {
					f.setCluster("c1", fmt.Sprint(i))
					f.wait(interval)
				}
				complete := 0
				for _, e := range f.published() {
					if !e.observation.Incomplete {
						complete++
					}
				}
				require.NotZero(t, complete, "in 10 s no complete result was published: %v", f.nonces())
			})
		})
	}
}
