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

// TestReporterBriefMember checks that a member which joined and left between two reads of the
// stored list, and which a probe found in between, does not stay in the published list.
func TestReporterBriefMember(t *testing.T) {
	one := []v1alpha1.MemberStatus{{ID: testMember, Name: "etcd1"}}
	two := append(one[:1:1], v1alpha1.MemberStatus{ID: "2"})
	probes, isMember := atomic.Int64{}, atomic.Bool{}
	runReporter(t, func(context.Context, *reporterFixture) v1alpha1.Observation {
		probes.Add(1)
		if isMember.Swap(false) {
			return v1alpha1.Observation{Linearizable: true, Members: two}
		}
		return v1alpha1.Observation{Linearizable: true, Members: one}
	}, func(f *reporterFixture) {
		f.list.set(one)
		f.setCluster("c1", "a")
		f.wait(10 * time.Second)
		before := probes.Load()
		isMember.Store(true)
		f.setCluster("c1", "b")
		f.wait(2 * listInterval)
		published := f.published()
		require.Equal(t, two, published[len(published)-2].observation.Members)
		require.Equal(t, one, published[len(published)-1].observation.Members)
		f.wait(30 * time.Second)
		require.Equal(t, before+2, probes.Load(), "no probe without a reason")
	})
}

// TestReporterOldStoredList: the server is down, so its stored list stays as it was, and the other
// members have another list.
func TestReporterOldStoredList(t *testing.T) {
	one := []v1alpha1.MemberStatus{{ID: testMember, Name: "etcd1"}}
	probes := atomic.Int64{}
	runReporter(t, func(context.Context, *reporterFixture) v1alpha1.Observation {
		probes.Add(1)
		return v1alpha1.Observation{Linearizable: true, Members: append(one[:1:1], v1alpha1.MemberStatus{ID: "2"})}
	}, func(f *reporterFixture) {
		f.list.set(one)
		f.setCluster("c1", "a")
		f.wait(10 * time.Second)
		before := probes.Load()
		f.wait(10 * time.Minute)
		require.InDelta(t, 20, probes.Load()-before, 4, "each heartbeat, and one more probe")
	})
}
