package agent

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

func TestLooksComeOnEventsAtMostFourASecondAndEveryMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, _ := record(t)
		looks := atomic.Int64{}
		l := &lookout{
			etcd: func(context.Context) ([]protect.Sighting, []string) {
				looks.Add(1)
				return nil, nil
			},
			log: log, woken: newBell(), told: func() {},
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- l.run(ctx) }()
		for range 100 { // a storm of one second
			elapse(t, 10*time.Millisecond)
			l.woken.ring()
		}
		storm := looks.Load()
		require.LessOrEqual(t, storm, int64(5))
		require.GreaterOrEqual(t, storm, int64(4))
		elapse(t, 10*time.Minute)
		require.InDelta(t, 10+1, looks.Load()-storm, 1)
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
	})
}

func TestALookAsksAllServersAtOnceAndIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, said := record(t)
		told := atomic.Int64{}
		l := &lookout{
			etcd: func(context.Context) ([]protect.Sighting, []string) {
				return []protect.Sighting{{Where: "a"}, {Where: "b"}, {Where: "pod", InCluster: true}}, []string{"the bus: refused"}
			},
			identify: func(ctx context.Context, s protect.Sighting) protect.Answer {
				if s.Where == "b" && pause(ctx, time.Second) == nil {
					return protect.Answer{Name: "b"}
				}
				<-ctx.Done() // a server that takes the connection and never answers, and a probe without a budget
				return protect.Answer{Problem: s.Where + " does not answer"}
			},
			log: log, woken: newBell(), told: func() { told.Add(1) },
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- l.run(ctx) }()
		elapse(t, lookBudget+time.Second)
		seen, ever := l.evidence.take()
		require.True(t, ever)
		require.Equal(t, int64(1), told.Load())
		require.Equal(t, []string{"the bus: refused"}, seen.Unknown)
		require.Equal(t, "a does not answer", seen.Found[0].Problem)
		require.Equal(t, "b", seen.Found[1].Name, "one that answers does not wait for one that hangs")
		require.Empty(t, seen.Found[2].Problem, "what Kubernetes runs is not asked unless it is to be protected")
		elapse(t, 10*time.Minute)
		require.Equal(t, 1, strings.Count(said(), "a does not answer"), "what is seen is logged when it changes")
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
	})
}

func TestSubjects(t *testing.T) {
	const events = v1alpha1.ClusterID("e1")
	main, other := protect.MemberRef{Cluster: testCluster, Member: testMember}, protect.MemberRef{Cluster: events, Member: "b"}
	seen := func(where string, ref protect.MemberRef) protect.Found {
		return protect.Found{Sighting: protect.Sighting{Where: where}, Answer: protect.Answer{Ref: ref}}
	}
	silent := func(where string) protect.Found {
		return protect.Found{Sighting: protect.Sighting{Where: where}, Answer: protect.Answer{Problem: "no answer"}}
	}
	before := map[v1alpha1.ClusterID]subject{testCluster: {protect.Sighting{Where: "etcd"}, protect.Answer{Ref: main}}}
	tests := []struct {
		name      string
		found     []protect.Found
		before    map[v1alpha1.ClusterID]subject
		announced []protect.MemberRef
		pods      bool
		want      map[v1alpha1.ClusterID]v1alpha1.MemberID
	}{
		{name: "nothing there", announced: []protect.MemberRef{main}},
		{name: "answered", found: []protect.Found{seen("etcd", main)}, want: map[v1alpha1.ClusterID]v1alpha1.MemberID{testCluster: testMember}},
		{
			name: "two clusters", found: []protect.Found{seen("etcd", main), seen("etcd-events", other)},
			want: map[v1alpha1.ClusterID]v1alpha1.MemberID{testCluster: testMember, events: "b"},
		},
		{name: "silent and never known", found: []protect.Found{silent("etcd")}},
		{
			name: "silent, known from before", found: []protect.Found{silent("etcd")}, before: before,
			want: map[v1alpha1.ClusterID]v1alpha1.MemberID{testCluster: testMember},
		},
		{
			name: "stopped, only its data is seen now", before: map[v1alpha1.ClusterID]subject{testCluster: {
				protect.Sighting{Where: "etcd", PID: 5, Config: protect.Config{DataDir: "/var/lib/etcd"}}, protect.Answer{Ref: main},
			}},
			found: []protect.Found{{Sighting: protect.Sighting{Where: "data", Config: protect.Config{DataDir: "/var/lib/etcd"}}}},
			want:  map[v1alpha1.ClusterID]v1alpha1.MemberID{testCluster: testMember},
		},
		{name: "another server than the one before is silent", found: []protect.Found{silent("etcd-events")}, before: before},
		{
			name: "silent, the agent is new, the node announces one", found: []protect.Found{silent("etcd")},
			announced: []protect.MemberRef{main}, want: map[v1alpha1.ClusterID]v1alpha1.MemberID{testCluster: testMember},
		},
		{
			name: "one silent, one announced besides the other", found: []protect.Found{silent("etcd"), seen("etcd-events", other)},
			announced: []protect.MemberRef{main, other}, want: map[v1alpha1.ClusterID]v1alpha1.MemberID{testCluster: testMember, events: "b"},
		},
		{name: "two silent, two announced: nobody knows which is which", found: []protect.Found{silent("a"), silent("b")}, announced: []protect.MemberRef{main, other}},
		{
			name:  "removed",
			found: []protect.Found{{Sighting: protect.Sighting{Where: "etcd"}, Answer: protect.Answer{Ref: main, Removed: true}}}, announced: []protect.MemberRef{main},
		},
		{name: "static pod, not wanted", found: []protect.Found{{Sighting: protect.Sighting{InCluster: true}, Answer: protect.Answer{Ref: main}}}},
		{
			name: "static pod, wanted", pods: true, found: []protect.Found{{Sighting: protect.Sighting{InCluster: true}, Answer: protect.Answer{Ref: main}}},
			want: map[v1alpha1.ClusterID]v1alpha1.MemberID{testCluster: testMember},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := map[v1alpha1.ClusterID]v1alpha1.MemberID{}
			for cluster, s := range subjects(protect.HostEvidence{Found: test.found}, test.before, test.announced, test.pods) {
				got[cluster] = s.answer.Ref.Member
			}
			if test.want == nil {
				test.want = map[v1alpha1.ClusterID]v1alpha1.MemberID{}
			}
			require.Equal(t, test.want, got)
		})
	}
}

func TestALookThatDoesNotEndIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, _ := record(t)
		hangs, looks := make(chan struct{}), atomic.Int64{}
		l := &lookout{
			etcd: func(context.Context) ([]protect.Sighting, []string) {
				if looks.Add(1) == 3 {
					<-hangs // a read that no context ends
				}
				return nil, nil
			},
			log: log, woken: newBell(), told: func() {}, patience: lookPatience,
		}
		require.Empty(t, l.blind(time.Now()), "it has not begun")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- l.run(ctx) }()
		elapse(t, 4*time.Minute)
		require.Equal(t, int64(3), looks.Load())
		require.Empty(t, l.blind(time.Now()))
		elapse(t, 4*time.Minute)
		require.Contains(t, l.blind(time.Now()), "no look at the host has ended since 2000-01-01T00:0")
		require.ErrorContains(t, (&Agent{loop: &loop{}, lookout: l}).Healthy(time.Now()), "no look at the host has ended since")
		close(hangs)
		elapse(t, time.Second)
		require.Empty(t, l.blind(time.Now()))
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
	})
}
