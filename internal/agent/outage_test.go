package agent

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/protect"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// slowTick is the default of --tick, and within what time a held node is released whatever was lost.
const slowTick = 10 * time.Second

// lonely is an agent in a bubble whose host tells it nothing by itself: no inotify, no D-Bus.
type lonely struct {
	t     *testing.T
	api   *remote
	agent *Agent
	facts latest[readiness.Facts]
}

// alone runs an agent of a node that is held, and then what happens to it.
func alone(t *testing.T, node *corev1.Node, policy readiness.Policy, act func(*lonely)) {
	synctest.Test(t, func(t *testing.T) {
		node.UID, node.ResourceVersion = "uid-1", "5"
		l := &lonely{t: t, api: &remote{node: node}}
		l.facts.put(closed())
		var err error
		l.agent, err = New(Config{
			Node: node.Name, Nodes: l.api, Events: l.api, Clusters: &Clusters{},
			Network: func(context.Context) readiness.Facts { f, _ := l.facts.take(); return f },
			Etcd:    func(context.Context) ([]protect.Sighting, []string) { return nil, nil },
			Watch:   func(ctx context.Context, _ func()) error { <-ctx.Done(); return context.Cause(ctx) },
			Policy:  policy, Tick: slowTick, Log: discard(),
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- l.agent.Run(ctx) }()
		elapse(t, 5*time.Second)
		require.Equal(t, corev1.ConditionTrue, status(l.node(), readiness.NetworkHeld), "it is held, and says why")
		act(l)
		cancel()
		l.api.locked(func() { l.api.away = refuses })
		require.ErrorIs(t, <-ended, context.Canceled)
		elapse(t, time.Minute) // what hangs ends
	})
}

func (l *lonely) node() (n *corev1.Node) {
	l.api.locked(func() { n = l.api.node.DeepCopy() })
	return n
}

// free says that nothing of a hold is left.
func free(n *corev1.Node) bool {
	return released(n) && !n.Spec.Unschedulable && status(n, corev1.NodeNetworkUnavailable) == corev1.ConditionFalse &&
		status(n, readiness.NetworkHeld) == corev1.ConditionFalse
}

// within waits for the Node to be as wanted and returns how long that took.
func (l *lonely) within(limit time.Duration, wanted func(*corev1.Node) bool) time.Duration {
	l.t.Helper()
	began := time.Now()
	for !wanted(l.node()) {
		require.LessOrEqual(l.t, time.Since(began), limit, "%+v", l.node())
		elapse(l.t, 10*time.Millisecond)
	}
	return time.Since(began)
}

// outage lets so much time pass while the server is away, in which no request is answered and the agent counts as alive, and
// brings the server back.
func (l *lonely) outage(lasts time.Duration) {
	l.t.Helper()
	answered, failed := 0, 0
	l.api.locked(func() { answered, failed = l.api.answered, l.api.failed })
	before := l.node()
	for began := time.Now(); time.Since(began) < lasts; elapse(l.t, 100*time.Millisecond) {
		require.NoError(l.t, l.agent.Healthy(time.Now()))
	}
	require.Equal(l.t, before, l.node())
	l.api.locked(func() {
		require.Equal(l.t, answered, l.api.answered, "not one request was answered")
		require.Greater(l.t, l.api.failed, failed+2, "and some were made")
		require.Less(l.t, l.api.failed, failed+60, "but not many")
		l.api.away = nil
	})
}

// TestTheServerIsAwayForAMinute in the middle of a hold and in the middle of a release. Of the lengths, each a bit longer
// than the last, some end just when a request has begun to hang.
func TestTheServerIsAwayForAMinute(t *testing.T) {
	for how, away := range map[string]func(context.Context) error{"it refuses connections": refuses, "it hangs": hangs} {
		for name, leave := range map[string]func(*lonely, func()){
			"before the gates open": func(l *lonely, goes func()) {
				l.api.locked(goes)
				elapse(l.t, 20*time.Second)
				l.facts.put(open())
			},
			"between the two writes of a release": func(l *lonely, goes func()) {
				l.api.locked(func() {
					l.api.wrote = func(*corev1.Node) error { goes(); return nil }
				})
				l.facts.put(open())
				l.within(slowTick, func(n *corev1.Node) bool { return !n.Spec.Unschedulable })
				require.True(l.t, released(l.node()))
				require.Equal(l.t, corev1.ConditionTrue, status(l.node(), corev1.NodeNetworkUnavailable), "the second is still to come")
			},
			"with the answer to the first": func(l *lonely, goes func()) {
				l.api.locked(func() {
					l.api.wrote = func(*corev1.Node) error { goes(); return context.DeadlineExceeded }
				})
				l.facts.put(open())
				l.within(slowTick, func(n *corev1.Node) bool { return !n.Spec.Unschedulable })
			},
		} {
			t.Run(how+" "+name, func(t *testing.T) {
				longest := time.Duration(0)
				for i := range 12 {
					alone(t, bornHeld(testNode), readiness.Policy{}, func(l *lonely) {
						leave(l, func() { l.api.wrote = nil; l.api.goes(away, how == "it hangs") })
						l.outage(time.Minute + time.Duration(i)*900*time.Millisecond)
						longest = max(longest, l.within(slowTick+50*time.Millisecond, free))
						elapse(l.t, time.Minute)
						require.True(l.t, free(l.node()))
						if name != "with the answer to the first" { // Who has not heard that it was the one cannot tell of it.
							require.Equal(l.t, []string{readiness.EventReleased}, l.api.told, "it is told once")
						}
					})
				}
				t.Logf("released at most %s after the server was back", longest)
			})
		}
	}
}

// TestNoEventIsNeeded: the network comes and the host tells nothing of it, and what others do to the Node comes at last by no
// watch either.
func TestNoEventIsNeeded(t *testing.T) {
	t.Run("the host's are lost", func(t *testing.T) {
		for i := range 20 {
			alone(t, bornHeld(testNode), readiness.Policy{}, func(l *lonely) {
				elapse(l.t, time.Duration(i)*700*time.Millisecond)
				l.facts.put(open())
				l.within(slowTick, free)
			})
		}
	})

	t.Run("systemd's are lost: a unit finishes", func(t *testing.T) {
		unit := readiness.Unit{Name: "network-plugin.service", Presence: readiness.Present, ActiveState: "activating", SubState: "start"}
		works := func(u readiness.Unit) readiness.Facts {
			f := open()
			f.Units = []readiness.Unit{u}
			return f
		}
		alone(t, bornHeld(testNode), readiness.Policy{Force: []string{readiness.GateUnit + unit.Name}}, func(l *lonely) {
			l.facts.put(works(unit))
			elapse(l.t, time.Minute)
			require.Equal(l.t, readiness.WaitingForUnit, condition(l.node(), readiness.NetworkHeld).Reason)
			unit.ActiveState, unit.SubState = "active", "exited"
			l.facts.put(works(unit))
			l.within(slowTick, free)
		})
	})

	t.Run("logind's are lost: a shutdown is called off", func(t *testing.T) {
		alone(t, bornHeld(testNode), readiness.Policy{}, func(l *lonely) {
			going, stays := open(), open()
			going.GoingDown, stays.StaysUp = true, true
			l.facts.put(going)
			elapse(l.t, time.Minute)
			require.Equal(l.t, readiness.GoingDown, condition(l.node(), readiness.NetworkHeld).Reason)
			l.facts.put(stays)
			l.within(slowTick, free)
		})
	})

	t.Run("the host's are lost, and a change of the Node with them", func(t *testing.T) {
		alone(t, bornHeld(testNode), readiness.Policy{}, func(l *lonely) {
			l.api.locked(func() {
				l.api.mute = true
				moved := l.api.node.DeepCopy()
				moved.Annotations["somebody/else"] = "was here"
				l.api.becomes(moved)
			})
			l.facts.put(open())
			l.within(slowTick, free)
			require.Equal(l.t, "was here", l.node().Annotations["somebody/else"])
		})
	})

	t.Run("the watch of the host fails, again and again", func(t *testing.T) {
		alone(t, bornHeld(testNode), readiness.Policy{}, func(l *lonely) {
			ctx, cancel := context.WithCancel(l.t.Context())
			ended := make(chan error, 1)
			starts := 0
			go func() {
				ended <- persist(ctx, discard(), func(context.Context, func()) error {
					starts++
					return fmt.Errorf("no inotify and no bus, for the time %d", starts)
				}, l.agent.hostChanged)
			}()
			elapse(l.t, time.Minute)
			l.facts.put(open())
			l.within(slowTick, free)
			cancel()
			require.ErrorIs(l.t, <-ended, context.Canceled)
		})
	})
}

// TestNoWallClockIsMeasuredBy: whoever sets a host's clock makes no pass and no look older. What a time is compared with is
// the monotonic clock, as long as nobody strips it of that reading; a bubble has none, so this is in the time of all others.
func TestNoWallClockIsMeasuredBy(t *testing.T) {
	l := &loop{
		cfg: Config{Node: testNode, Tick: slowTick, Log: discard()}, woken: newBell(),
		own: &mirror[*corev1.Node]{changed: func() {}, log: discard(), objects: map[string]*corev1.Node{}},
	}
	o := &lookout{
		etcd: func(context.Context) ([]protect.Sighting, []string) { return nil, nil }, patience: lookPatience,
		log: discard(), woken: newBell(), told: func() {},
	}
	ctx, cancel := context.WithCancel(t.Context())
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return l.run(ctx) })
	group.Go(func() error { return o.run(ctx) })
	noted := func(of *latest[time.Time]) func() bool {
		return func() bool { at, ever := of.take(); return ever && strings.Contains(at.String(), " m=") }
	}
	require.Eventually(t, noted(&l.turned), soon, time.Millisecond)
	require.Eventually(t, noted(&o.looked), soon, time.Millisecond)
	cancel()
	require.ErrorIs(t, group.Wait(), context.Canceled)
	require.Contains(t, l.began.String(), " m=")
}

// TestAClockThatIsSetChangesNothing: the same Node and host by clocks that are hours apart.
func TestAClockThatIsSetChangesNothing(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for name, s := range map[string]situation{
		"held, gates closed":     {node: bornMarked(), facts: closed(), evidence: &protect.HostEvidence{}},
		"held, gates open":       {node: bornMarked(), facts: open(), evidence: &protect.HostEvidence{}},
		"held, etcd on the host": {node: bornMarked(), facts: open(), evidence: &protect.HostEvidence{Found: []protect.Found{local(812)}}},
	} {
		t.Run(name, func(t *testing.T) {
			var all []outcome
			for _, off := range []time.Duration{0, -9 * time.Hour, 9 * time.Hour} {
				s.now = now.Add(off)
				o, err := decide(s)
				require.NoError(t, err)
				if o.hold.Record != nil {
					require.Equal(t, s.now, o.hold.Record.Since, "it is written down")
					o.hold.Record.Since = time.Time{}
				}
				delete(o.urgent.Annotations, readiness.HoldAnnotation)
				delete(o.all.Annotations, readiness.HoldAnnotation)
				all = append(all, o)
			}
			require.Equal(t, all[0], all[1])
			require.Equal(t, all[0], all[2])
		})
	}
}
