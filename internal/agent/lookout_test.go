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

// vigil is a lookout on a host that the test plays, in a bubble of its own time.
type vigil struct {
	*lookout
	t     *testing.T
	said  func() string
	looks atomic.Int64
	tells atomic.Int64
	// host is what a look shows, unread what it cannot read.
	host   latest[[]protect.Sighting]
	unread latest[[]string]
	begun  bell
}

// watchOver runs a lookout until the bubble ends. Its first look comes when act first waits, and so sees what act showed
// before, whichever goroutine the scheduler runs first.
func watchOver(t *testing.T, identify func(context.Context, protect.Sighting) protect.Answer, act func(*vigil)) {
	synctest.Test(t, func(t *testing.T) {
		log, said := record(t)
		v := &vigil{t: t, said: said, begun: newBell()}
		v.lookout = &lookout{
			etcd: func(context.Context) ([]protect.Sighting, []string) {
				v.looks.Add(1)
				found, _ := v.host.take()
				unread, _ := v.unread.take()
				return found, unread
			},
			identify: identify, log: log, woken: newBell(), told: func() { v.tells.Add(1) }, patience: lookPatience,
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1) // nobody takes it if act fails
		go func() {
			<-v.begun
			ended <- v.run(ctx)
		}()
		act(v)
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
	})
}

// shows changes the host, and lets the watch see it.
func (v *vigil) shows(found ...protect.Sighting) {
	v.host.put(found)
	v.woken.ring()
}

func (v *vigil) wait(d time.Duration) {
	v.begun.ring()
	elapse(v.t, d)
}

// answers are what the servers have said, by where they are: the member, or the problem.
func (v *vigil) answers() map[string]string {
	seen, _ := v.evidence.take()
	found := map[string]string{}
	for _, f := range seen.Found {
		if found[f.Where] = f.Problem; f.Answered() {
			found[f.Where] = string(f.Ref.Member)
		}
	}
	return found
}

const justFound = "it has only just been found, and is being asked who it is"

func answer(id string) protect.Answer {
	return protect.Answer{Ref: protect.MemberRef{Cluster: testCluster, Member: v1alpha1.MemberID(id)}}
}

func TestLooksComeOnEventsAtMostFourASecondAndEveryMinute(t *testing.T) {
	watchOver(t, nil, func(v *vigil) {
		for range 100 { // a storm of one second
			v.wait(10 * time.Millisecond)
			v.woken.ring()
		}
		storm := v.looks.Load()
		require.LessOrEqual(t, storm, int64(5))
		require.GreaterOrEqual(t, storm, int64(4))
		v.wait(10 * time.Minute)
		require.InDelta(t, 10+1, v.looks.Load()-storm, 1)
		require.Equal(t, int64(1), v.tells.Load(), "what has not changed is not told again")
	})
}

func TestAServerThatHangsHidesNothing(t *testing.T) {
	watchOver(t, func(ctx context.Context, s protect.Sighting) protect.Answer {
		switch s.Where {
		case "slow":
			if pause(ctx, time.Second) == nil {
				return answer("1")
			}
		case "quick":
			return answer("2")
		}
		<-ctx.Done() // a server that takes the connection and never answers, and a probe without a budget
		return protect.Answer{Problem: s.Where + " does not answer"}
	}, func(v *vigil) {
		v.shows(protect.Sighting{Where: "hung", PID: 1}, protect.Sighting{Where: "slow", PID: 2}, protect.Sighting{Where: "pod", InCluster: true, PID: 3})
		v.unread.put([]string{"the bus: refused"})
		v.wait(headStart)
		require.Equal(t, map[string]string{"hung": justFound, "slow": justFound, "pod": ""}, v.answers(), "told at once, whoever hangs")
		seen, _ := v.evidence.take()
		require.Equal(t, []string{"the bus: refused"}, seen.Unknown)

		// Another server is started while the first still hangs.
		v.shows(protect.Sighting{Where: "hung", PID: 1}, protect.Sighting{Where: "slow", PID: 2}, protect.Sighting{Where: "quick", PID: 4})
		v.wait(lookGap)
		require.Equal(t, map[string]string{"hung": justFound, "slow": justFound, "quick": "2"}, v.answers())
		v.wait(time.Second)
		require.Equal(t, map[string]string{"hung": justFound, "slow": "1", "quick": "2"}, v.answers())
		v.wait(lookBudget)
		require.Equal(t, map[string]string{"hung": "hung does not answer", "slow": "1", "quick": "2"}, v.answers())
		v.wait(10 * time.Minute)
		require.Equal(t, 1, strings.Count(v.said(), "hung does not answer"), "what is seen is logged when it changes")
	})
}

func TestAServerThatIsStartedAnewIsWhoItWasUntilItSaysOtherwise(t *testing.T) {
	hang := atomic.Bool{}
	watchOver(t, func(ctx context.Context, s protect.Sighting) protect.Answer {
		if hang.Load() {
			<-ctx.Done()
			return protect.Answer{Problem: "no answer"}
		}
		said := answer("1")
		said.Removed = s.Where == "removed"
		return said
	}, func(v *vigil) {
		v.shows(protect.Sighting{Where: "etcd", PID: 1}, protect.Sighting{Where: "removed"})
		v.wait(headStart)
		require.Equal(t, map[string]string{"etcd": "1", "removed": "1"}, v.answers())
		hang.Store(true)
		v.shows(protect.Sighting{Where: "etcd", PID: 2}, protect.Sighting{Where: "removed"})
		v.wait(2 * headStart)
		seen, _ := v.evidence.take()
		require.Equal(t, map[string]string{"etcd": "1", "removed": "1"}, v.answers())
		require.Equal(t, 2, seen.Found[0].PID)
		require.True(t, seen.Found[1].Removed, "nothing about it has changed")

		// What had left its cluster may be about to join it again: until it is known, it counts.
		v.shows(protect.Sighting{Where: "etcd", PID: 2}, protect.Sighting{Where: "removed", PID: 3})
		v.wait(2 * headStart)
		require.Equal(t, map[string]string{"etcd": "1", "removed": justFound}, v.answers())
		v.wait(lookBudget)
		require.Equal(t, map[string]string{"etcd": "no answer", "removed": "no answer"}, v.answers())
	})
}

// A server that was started a moment ago does not answer yet, and nothing tells when it will.
func TestASilentServerIsAskedAgainSoonAndThenEveryMinute(t *testing.T) {
	asked, up := atomic.Int64{}, atomic.Bool{}
	watchOver(t, func(context.Context, protect.Sighting) protect.Answer {
		asked.Add(1)
		if up.Load() {
			return answer("1")
		}
		return protect.Answer{Problem: "connection refused"}
	}, func(v *vigil) {
		v.shows(protect.Sighting{Where: "etcd", PID: 1}, protect.Sighting{Where: "data"})
		v.wait(4 * time.Second)
		require.InDelta(t, 2*3, asked.Load(), 2)
		up.Store(true)
		v.wait(4500 * time.Millisecond)
		require.Equal(t, "1", v.answers()["etcd"])

		up.Store(false)
		v.shows(protect.Sighting{Where: "etcd", PID: 2}, protect.Sighting{Where: "data"})
		v.wait(10 * time.Minute)
		before := asked.Load()
		v.wait(10 * time.Minute)
		require.InDelta(t, 2*10, asked.Load()-before, 4, "one that stays silent is asked every minute")

		v.shows(protect.Sighting{Where: "etcd", PID: 3}, protect.Sighting{Where: "data"})
		v.wait(headStart)
		before = asked.Load()
		v.wait(1500 * time.Millisecond)
		require.Greater(t, asked.Load(), before, "another process is another chance")

		v.shows(protect.Sighting{Where: "data"})
		v.wait(time.Minute)
		before = asked.Load()
		v.wait(10 * time.Minute)
		require.InDelta(t, 10, asked.Load()-before, 2, "one that does not run need not answer soon")
	})
}

func TestQuestionsThatHangForEverAreBoundedAndTold(t *testing.T) {
	asked, hangs := atomic.Int64{}, (chan struct{})(nil)
	watchOver(t, func(context.Context, protect.Sighting) protect.Answer {
		asked.Add(1)
		<-hangs // a read of a certificate that no context ends
		return answer("1")
	}, func(v *vigil) {
		hangs = make(chan struct{})
		v.shows(protect.Sighting{Where: "etcd", PID: 1})
		v.wait(10 * time.Minute)
		require.Equal(t, int64(1), asked.Load(), "the question is under way")
		require.Contains(t, v.answers()["etcd"], "it has been asked since 2000-01-01T00:00:00Z who it is, and the question hangs")
		for pid := range 40 {
			v.shows(protect.Sighting{Where: "etcd", PID: pid + 2})
			v.wait(time.Second)
		}
		require.Equal(t, int64(asksAtOnce), asked.Load())
		require.Contains(t, v.answers()["etcd"], "too many questions hang")
		require.Empty(t, v.blind(time.Now()), "the host is looked at all the same")
		close(hangs)
		v.wait(2 * time.Minute)
		require.Equal(t, "1", v.answers()["etcd"])
	})
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
		ended := make(chan error, 1)
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

// A look that is cut short has seen nothing, which is not to say that there is nothing.
func TestAnAgentThatEndsTellsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, _ := record(t)
		l := &lookout{
			etcd: func(ctx context.Context) ([]protect.Sighting, []string) { <-ctx.Done(); return nil, nil },
			log:  log, woken: newBell(), told: func() {},
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- l.run(ctx) }()
		elapse(t, time.Second)
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
		_, ever := l.evidence.take()
		require.False(t, ever)
	})
}
