package agent

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

const (
	healthGate = "http:127.0.0.1:9879/healthz"
	portGate   = "tcp:127.0.0.1:179"
)

// endpoints plays the servers of gates. A gate without an entry is open.
type endpoints struct {
	mu       sync.Mutex
	problems map[string]error
	hanging  string // this gate does not answer before the probe's context ends
	probes   map[string]int
	running  map[string]int
	most     int // the most probes of one gate at the same time
}

func newEndpoints() *endpoints {
	return &endpoints{problems: map[string]error{}, probes: map[string]int{}, running: map[string]int{}}
}

func (e *endpoints) set(gate string, problem error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.problems[gate] = problem
}

// count returns the number of probes since the last call.
func (e *endpoints) count(gate string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := e.probes[gate]
	e.probes[gate] = 0
	return n
}

func (e *endpoints) probe(ctx context.Context, endpoint readiness.Endpoint) error {
	e.mu.Lock()
	e.probes[endpoint.Gate]++
	e.running[endpoint.Gate]++
	e.most = max(e.most, e.running[endpoint.Gate])
	problem, hangs := e.problems[endpoint.Gate], e.hanging == endpoint.Gate
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.running[endpoint.Gate]--
	}()
	if hangs {
		if err := pause(ctx, 3*time.Second); err != nil {
			return err
		}
		return errors.New("no answer within 3s")
	}
	return problem
}

// withEndpoints runs an agent with endpoint gates in a bubble, with a network that is ready
// otherwise.
func withEndpoints(t *testing.T, node *corev1.Node, gates *endpoints, act func(*bubbleFixture)) {
	inBubble(t, node, func(f *bubbleFixture) {
		f.facts.set(openNetwork())
		f.policy.Force = []string{healthGate, portGate}
		f.probeGate = gates.probe
	}, act)
}

// readyNode returns a Node in service.
func readyNode() *corev1.Node {
	return &corev1.Node{
		Spec:   corev1.NodeSpec{PodCIDRs: []string{"10.244.1.0/24"}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}
}

func messageOf(n *corev1.Node) string { return condition(n, readiness.NetworkHeld).Message }

func TestGateProber(t *testing.T) {
	refused := errors.New("connection refused")
	t.Run("release", func(t *testing.T) {
		gates := newEndpoints()
		gates.set(healthGate, refused)
		withEndpoints(t, bornHeld(testNode), gates, func(f *bubbleFixture) {
			elapse(f.t, 20*time.Second)
			require.Equal(f.t, readiness.WaitingForProbe, condition(f.node(), readiness.NetworkHeld).Reason)
			require.Contains(f.t, messageOf(f.node()), healthGate+" to answer with a 2xx status: connection refused, since ")
			require.InDelta(f.t, 20, gates.count(healthGate), 2, "one probe each second")
			before := f.node().ResourceVersion
			elapse(f.t, time.Minute)
			require.Equal(f.t, before, f.node().ResourceVersion, "the same failure is written once")
			gates.set(healthGate, nil)
			require.LessOrEqual(f.t, f.within(slowTick, isFree), probeInterval+100*time.Millisecond)
			gates.count(healthGate)
			gates.count(portGate)
			elapse(f.t, time.Hour)
			require.Zero(f.t, gates.count(healthGate)+gates.count(portGate), "the node is released")
			require.Equal(f.t, 1, gates.most, "one probe at a time")
		})
	})
	t.Run("a probe hangs", func(t *testing.T) {
		gates := newEndpoints()
		gates.hanging = healthGate
		gates.set(portGate, refused)
		withEndpoints(t, bornHeld(testNode), gates, func(f *bubbleFixture) {
			elapse(f.t, time.Second)
			require.Contains(f.t, messageOf(f.node()), healthGate+" to answer with a 2xx status, which was not probed yet")
			require.Contains(f.t, messageOf(f.node()), portGate+" to accept connections: connection refused")
			elapse(f.t, 3*time.Second)
			require.Contains(f.t, messageOf(f.node()), "no answer within 3s")
			gates.set(portGate, nil)
			f.within(2*time.Second, func(n *corev1.Node) bool { return !strings.Contains(messageOf(n), portGate) })
			require.Equal(f.t, 1, gates.most, "one probe at a time")
		})
	})
	t.Run("existing node", func(t *testing.T) {
		node := readyNode()
		withEndpoints(t, node, newEndpoints(), func(f *bubbleFixture) {
			elapse(f.t, time.Second)
			require.True(f.t, isReleased(f.node()))
			require.Equal(f.t, readiness.NotHeld, condition(f.node(), readiness.NetworkHeld).Reason)
			require.Empty(f.t, f.api.eventReasons, "the gates fit")
		})
	})
	t.Run("gates that do not fit", func(t *testing.T) {
		node := readyNode()
		gates := newEndpoints()
		gates.set(healthGate, refused)
		withEndpoints(t, node, gates, func(f *bubbleFixture) {
			elapse(f.t, time.Second)
			require.Equal(f.t, readiness.GatesMismatch, condition(f.node(), readiness.NetworkHeld).Reason)
			require.False(f.t, f.node().Spec.Unschedulable)
			gates.count(healthGate)
			elapse(f.t, 100*time.Second)
			require.InDelta(f.t, 10, gates.count(healthGate), 1, "one probe each tick")
			gates.set(healthGate, nil)
			f.within(slowTick+time.Second, hasReason(readiness.NotHeld))
		})
	})
	t.Run("without gates", func(t *testing.T) {
		whileHeld(t, readiness.Policy{}, func(f *bubbleFixture) {
			require.Empty(f.t, f.agent.nodeLoop.prober.results())
		})
	})
}

// TestGateProberForgets: a result of an earlier hold does not count in the next one, even if
// its probe ends only then.
func TestGateProberForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan error)
		changed := 0
		p := newGateProber(Config{
			Policy: readiness.Policy{Force: []string{portGate}}, Tick: slowTick,
			ProbeGate: func(context.Context, readiness.Endpoint) error { return <-answer },
		}, func() { changed++ })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- p.run(ctx) }()
		unknown := []readiness.Probe{{Gate: portGate}}
		held, released := readiness.Decision{NeedsProbes: true, Held: true}, readiness.Decision{}

		p.follow(held)
		answer <- nil
		synctest.Wait()
		require.Equal(t, []readiness.Probe{{Gate: portGate, Answer: readiness.Present}}, p.results())
		require.Equal(t, 1, changed)
		elapse(t, probeInterval) // the second probe has begun
		p.follow(released)
		require.Equal(t, unknown, p.results())
		p.follow(held)
		answer <- nil
		synctest.Wait()
		require.Equal(t, unknown, p.results(), "the probe began before this hold")
		answer <- errors.New("refused")
		synctest.Wait()
		require.Equal(t, "refused", p.results()[0].Problem)
		require.Equal(t, 2, changed)
		cancel()
		close(answer)
		require.ErrorIs(t, <-ended, context.Canceled)
	})
}
