package agent

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/pkg/openstack"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// refuseMachine is a policy that refuses the part of a write that identifies the machine.
func (f *bubbleFixture) refuseMachine() {
	f.api.beforeWrite = func(body string) error {
		if strings.Contains(body, openstack.Annotation) {
			return refusal(http.StatusForbidden)
		}
		return nil
	}
}

// outage lets time pass while the server is away, and then brings it back. No request may be
// answered, and the agent must stay healthy.
func (f *bubbleFixture) outage(lasts time.Duration) {
	f.t.Helper()
	answered, failed := 0, 0
	f.api.locked(func() { answered, failed = f.api.answered, f.api.failed })
	before := f.node()
	for began := time.Now(); time.Since(began) < lasts; elapse(f.t, time.Second) {
		require.NoError(f.t, f.agent.Healthy(time.Now()))
	}
	require.Equal(f.t, before, f.node())
	f.api.locked(func() {
		require.Equal(f.t, answered, f.api.answered, "no request is answered")
		require.Greater(f.t, f.api.failed, failed+2, "some requests are made")
		require.Less(f.t, f.api.failed, failed+60, "few requests are made")
		f.api.away = nil
	})
}

// TestOutage takes the server away in the middle of a hold, and in the middle of a release. The
// outages have different lengths, so that some of them end just when a request begins to hang.
func TestOutage(t *testing.T) {
	uncordoned := func(n *corev1.Node) bool { return !n.Spec.Unschedulable }
	for kind, away := range map[string]func(context.Context) error{"refused": refuses, "hangs": hangs} {
		for moment, leave := range map[string]func(f *bubbleFixture, leave func()){
			"before the gates open": func(f *bubbleFixture, leave func()) {
				f.api.locked(leave)
				elapse(f.t, 20*time.Second)
				f.facts.set(openNetwork())
			},
			"between two writes": func(f *bubbleFixture, leave func()) {
				f.api.locked(func() { f.api.afterWrite = func(*corev1.Node) error { leave(); return nil } })
				f.facts.set(openNetwork())
				f.within(slowTick, uncordoned)
				require.True(f.t, isReleased(f.node()))
				require.Equal(f.t, corev1.ConditionTrue, status(f.node(), corev1.NodeNetworkUnavailable))
			},
			"answer lost": func(f *bubbleFixture, leave func()) {
				f.api.locked(func() {
					f.api.afterWrite = func(*corev1.Node) error { leave(); return context.DeadlineExceeded }
				})
				f.facts.set(openNetwork())
				f.within(slowTick, uncordoned)
			},
		} {
			t.Run(kind+" "+moment, func(t *testing.T) {
				longest := time.Duration(0)
				for i := range 12 {
					whileHeld(t, readiness.Policy{}, func(f *bubbleFixture) {
						leave(f, func() { f.api.afterWrite = nil; f.api.leave(away, kind == "hangs") })
						f.outage(time.Minute + time.Duration(i)*900*time.Millisecond)
						longest = max(longest, f.within(slowTick+50*time.Millisecond, isFree))
						elapse(f.t, time.Minute)
						require.True(f.t, isFree(f.node()))
						if moment != "answer lost" { // otherwise the agent does not know its write
							require.Equal(f.t, []string{readiness.EventReleased}, f.api.eventReasons, "the event is recorded once")
						}
					})
				}
				t.Logf("released at most %s after the return of the server", longest)
			})
		}
	}
}

// TestLostEvents opens the network of a host that causes no event. In some cases the watch of
// the Node is silent too.
func TestLostEvents(t *testing.T) {
	t.Run("inotify", func(t *testing.T) {
		for i := range 20 {
			whileHeld(t, readiness.Policy{}, func(f *bubbleFixture) {
				elapse(f.t, time.Duration(i)*700*time.Millisecond)
				f.facts.set(openNetwork())
				f.within(slowTick, isFree)
			})
		}
	})

	t.Run("systemd", func(t *testing.T) {
		unit := readiness.Unit{
			Name: "network-plugin.service", Presence: readiness.Present, ActiveState: "activating", SubState: "start",
		}
		withUnit := func(u readiness.Unit) readiness.Facts {
			facts := openNetwork()
			facts.Units = []readiness.Unit{u}
			return facts
		}
		whileHeld(t, readiness.Policy{Force: []string{readiness.GateUnit + unit.Name}}, func(f *bubbleFixture) {
			f.facts.set(withUnit(unit))
			elapse(f.t, time.Minute)
			require.Equal(f.t, readiness.WaitingForUnit, condition(f.node(), readiness.NetworkHeld).Reason)
			unit.ActiveState, unit.SubState = "active", "exited"
			f.facts.set(withUnit(unit))
			f.within(slowTick, isFree)
		})
	})

	t.Run("logind", func(t *testing.T) {
		whileHeld(t, readiness.Policy{}, func(f *bubbleFixture) {
			going, stays := openNetwork(), openNetwork()
			going.GoingDown, stays.StaysUp = true, true
			f.facts.set(going)
			elapse(f.t, time.Minute)
			require.Equal(f.t, readiness.GoingDown, condition(f.node(), readiness.NetworkHeld).Reason)
			f.facts.set(stays) // the shutdown is cancelled
			f.within(slowTick, isFree)
		})
	})

	t.Run("watch of the Node", func(t *testing.T) {
		whileHeld(t, readiness.Policy{}, func(f *bubbleFixture) {
			f.api.locked(func() {
				f.api.silent = true
				changed := f.api.node.DeepCopy()
				changed.Annotations["example.org/other"] = "was here"
				f.api.update(changed)
			})
			f.facts.set(openNetwork())
			f.within(slowTick, isFree)
			require.Equal(f.t, "was here", f.node().Annotations["example.org/other"])
		})
	})

	t.Run("watch of the Node, which is created again", func(t *testing.T) {
		prepare := func(f *bubbleFixture) { f.facts.set(openNetwork()) }
		inBubble(t, inService(testBoot), prepare, func(f *bubbleFixture) {
			elapse(f.t, slowTick)
			f.api.locked(func() {
				f.api.silent = true
				again := bornHeld(testNode)
				again.Name, again.UID = testNode, "uid-2"
				f.api.update(again)
			})
			holdsMember(f)
			f.agent.onHostChange()
			f.within(time.Second, observation.IsLabelled)
			require.True(f.t, isFree(f.node()))
		})
	})

	t.Run("watch of the Node, which is created again, with a part that is refused", func(t *testing.T) {
		node := inService(testBoot)
		node.Spec.ProviderID = "openstack:///2b3b1b80-8b5c-4bd3-9a2f-1d4a0a3f6a11"
		inBubble(t, node, func(f *bubbleFixture) {
			f.facts.set(openNetwork())
			f.refuseMachine()
		}, func(f *bubbleFixture) {
			elapse(f.t, slowTick)
			f.api.locked(func() {
				f.api.silent = true
				again := inService(testBoot)
				again.Name, again.UID, again.Spec.ProviderID = testNode, "uid-2", node.Spec.ProviderID
				f.api.update(again)
			})
			holdsMember(f)
			f.agent.onHostChange()
			f.within(slowTick, observation.IsLabelled)
		})
	})
}

// TestFirstScan starts an agent on a node. A new Node gets one write for its hold and for etcd,
// not one for each.
func TestFirstScan(t *testing.T) {
	settled, rebooted := inService(testBoot), inService("the last boot")
	rebooted.Status = bornHeld(testNode).Status
	cleared := bornHeld(testNode)
	cleared.Status.Conditions[0].Status = corev1.ConditionFalse // by flannel, without an agent

	const quick, endless = 80 * time.Millisecond, time.Hour
	for name, c := range map[string]struct {
		node         *corev1.Node
		scanTakes    time.Duration
		facts        readiness.Facts
		after        time.Duration
		held, member corev1.ConditionStatus
		unavailable  corev1.ConditionStatus
		cordoned     bool
		version      string // empty if it does not matter
	}{
		"held Node": {
			node: bornHeld(testNode), scanTakes: quick, facts: closedNetwork(), after: time.Second, version: "6",
			held: corev1.ConditionTrue, member: corev1.ConditionFalse, unavailable: corev1.ConditionTrue, cordoned: true,
		},
		"released Node": {
			node: settled, scanTakes: quick, facts: closedNetwork(), after: time.Second, version: "6",
			held: corev1.ConditionFalse, member: corev1.ConditionFalse,
		},
		"scan hangs": {
			node: bornHeld(testNode), scanTakes: endless, facts: closedNetwork(), after: time.Second, version: "5",
			unavailable: corev1.ConditionTrue, cordoned: true,
		},
		"hold is explained without the scan": {
			node: bornHeld(testNode), scanTakes: endless, facts: closedNetwork(), after: time.Second + slowTick,
			held: corev1.ConditionTrue, unavailable: corev1.ConditionTrue, cordoned: true,
		},
		"new hold does not wait": {
			node: rebooted, scanTakes: endless, facts: closedNetwork(), after: 100 * time.Millisecond,
			held: corev1.ConditionTrue, unavailable: corev1.ConditionFalse, cordoned: true,
		},
		"consequences of a hold do not wait": {
			node: cleared, scanTakes: endless, facts: closedNetwork(), after: 100 * time.Millisecond,
			unavailable: corev1.ConditionTrue, cordoned: true,
		},
		"release does not wait": {
			node: bornHeld(testNode), scanTakes: endless, facts: openNetwork(), after: 100 * time.Millisecond,
			held: corev1.ConditionFalse, unavailable: corev1.ConditionFalse,
		},
	} {
		t.Run(name, func(t *testing.T) {
			prepare := func(f *bubbleFixture) { f.scanTakes = c.scanTakes; f.facts.set(c.facts) }
			inBubble(t, c.node, prepare, func(f *bubbleFixture) {
				elapse(f.t, c.after)
				n := f.node()
				require.Equal(f.t, c.held, status(n, readiness.NetworkHeld))
				require.Equal(f.t, c.member, status(n, observation.EtcdMemberCondition))
				require.Equal(f.t, c.unavailable, status(n, corev1.NodeNetworkUnavailable))
				require.Equal(f.t, c.cordoned, n.Spec.Unschedulable)
				if c.version != "" {
					require.Equal(f.t, c.version, n.ResourceVersion)
				}
			})
		})
	}
}

// TestMonotonicClock checks that a change of the wall clock makes no pass and no scan older.
// Times are compared by their monotonic reading. A bubble has no monotonic clock, so this test
// runs in real time.
func TestMonotonicClock(t *testing.T) {
	l := &nodeLoop{
		cfg: Config{Node: testNode, Tick: slowTick, Log: discardLog()}, wake: loop.NewSignal(),
		nodes: newStore[*corev1.Node](discardLog(), func() {}),
	}
	s := newEtcdScanner(Config{
		Etcd: func(context.Context) evidence.Scan { return evidence.Scan{} }, Log: discardLog(),
	}, newMetrics(), func() {})
	ctx, cancel := context.WithCancel(t.Context())
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return l.run(ctx) })
	group.Go(func() error { return s.run(ctx) })
	isMonotonic := func(of *latest[time.Time]) func() bool {
		return func() bool { at, known := of.get(); return known && strings.Contains(at.String(), " m=") }
	}
	require.Eventually(t, isMonotonic(&l.lastPass), soon, time.Millisecond)
	require.Eventually(t, isMonotonic(&s.lastScan), soon, time.Millisecond)
	cancel()
	require.ErrorIs(t, group.Wait(), context.Canceled)
	require.Contains(t, l.started.String(), " m=")
}
