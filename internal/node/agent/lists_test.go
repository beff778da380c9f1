package agent

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// TestReporterListChange checks that a change of the local server's list is published soon, and
// that nothing else is observed because of it (F32).
func TestReporterListChange(t *testing.T) {
	probes := atomic.Int64{}
	runReporter(t, func(_ context.Context, f *reporterFixture) v1alpha1.Observation {
		probes.Add(1)
		list, _ := f.list.get()
		return v1alpha1.Observation{Linearizable: true, Members: list}
	}, func(f *reporterFixture) {
		one := []v1alpha1.MemberStatus{{ID: testMember, Name: "etcd1"}}
		f.list.set(one)
		f.setCluster("c1", "a")
		f.wait(10 * time.Second)
		require.Len(t, f.published(), 1)
		before := probes.Load()
		f.wait(10*time.Minute - 10*time.Second)
		require.InDelta(t, 11, probes.Load()-before, 2, "an unchanged list causes no probe")

		for _, next := range [][]v1alpha1.MemberStatus{
			append(one[:1:1], v1alpha1.MemberStatus{ID: "2", Learner: true}),
			append(one[:1:1], v1alpha1.MemberStatus{ID: "2", Learner: true, Name: "etcd2"}),
			append(one[:1:1], v1alpha1.MemberStatus{ID: "2", Name: "etcd2"}),
			one,
		} {
			count := len(f.published())
			f.list.set(next)
			f.wait(listInterval)
			require.Greater(t, len(f.published()), count, "%+v", next)
			require.Equal(t, next, f.published()[count].observation.Members)
		}

		before = probes.Load()
		f.unlisted.set(errors.New("connection refused"))
		f.list.set(nil)
		f.wait(30 * time.Second)
		require.LessOrEqual(t, probes.Load()-before, int64(1), "a list that cannot be read has not changed")
	})
}
