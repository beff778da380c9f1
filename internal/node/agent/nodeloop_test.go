package agent

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// TestAPIServer runs all tests that need a real API server on one, because each server takes
// seconds to start.
func TestAPIServer(t *testing.T) {
	s := startTestServer(t)
	for _, part := range []struct {
		name string
		run  func(*testing.T, testServer)
	}{
		{"node loop", testNodeLoop},
		{"shutdown", testShutdown},
		{"etcd", testEtcd},
		{"F74 drain of a held node", testDrainOfHeldNode},
		{"other members", testOtherMembers},
		{"restart of the agent", testRestart},
		{"server errors", testServerErrors},
		{"refusals", testRefusals},
		{"server away", testServerAway},
	} {
		t.Run(part.name, func(t *testing.T) { part.run(t, s) })
	}
}

func testNodeLoop(t *testing.T, s testServer) {
	t.Run("release", func(t *testing.T) {
		s.register(t, bornHeld("born-held"))
		f := start(t, s, "born-held", nil)
		s.until(t, f.name, "held with a reason", hasReason(readiness.WaitingForCNI))
		reads := atomic.Int64{}
		f.transport.set(func(req *http.Request) int {
			if req.Method == http.MethodGet && strings.HasSuffix(req.URL.Path, "/nodes/born-held") {
				reads.Add(1)
			}
			return 0
		})
		began := time.Now()
		f.host(func(f *fixture) { f.facts = openNetwork() })
		s.until(t, f.name, "uncordoned", func(n *corev1.Node) bool { return !n.Spec.Unschedulable })
		took := time.Since(began)
		t.Logf("released %s after the network was ready", took)
		require.Less(t, took, 5*time.Second, "half a tick")
		s.until(t, f.name, "free of the hold", isFree)
		f.event("Released")
		require.Zero(t, reads.Load(), "the second write is based on the answer to the first, and causes no conflict")
	})

	t.Run("conflict", func(t *testing.T) {
		s.register(t, bornHeld("lost-race"))
		f := start(t, s, "lost-race", nil)
		s.until(t, f.name, "held with a reason", hasReason(readiness.WaitingForCNI))
		lost := make(chan struct{})
		f.transport.set(func(req *http.Request) int {
			if req.Method != http.MethodPatch || !strings.HasSuffix(req.URL.Path, "/nodes/lost-race") {
				return 0
			}
			f.transport.set(nil)
			f.mu.Lock()
			f.facts = closedNetwork() // without an event
			f.mu.Unlock()
			close(lost)
			return http.StatusConflict
		})
		f.host(func(f *fixture) { f.facts = openNetwork() })
		<-lost
		require.Never(t, func() bool {
			n, err := s.nodes.Get(t.Context(), f.name, metav1.GetOptions{})
			return err != nil || !n.Spec.Unschedulable
		}, 500*time.Millisecond, 10*time.Millisecond, "the facts from before the conflict must not release the node")
	})

	t.Run("cordon by hand", func(t *testing.T) {
		n := bornHeld("own-cordon")
		n.Annotations = nil
		s.register(t, n)
		f := start(t, s, n.Name, func(f *fixture) { f.facts = openNetwork() })
		s.until(t, f.name, "recorded as not held", isReleased)
		require.True(t, s.get(t, f.name).Spec.Unschedulable, "the cordon stays")
	})

	t.Run("late Node, and another of the same name", func(t *testing.T) {
		f := start(t, s, "late", nil)
		f.requireLog("waiting for the node to register")
		first := s.register(t, bornHeld(f.name))
		f.host(func(f *fixture) { f.facts = openNetwork() })
		s.until(t, f.name, "released", isReleased)
		f.host(func(f *fixture) { f.facts = closedNetwork() })
		require.NoError(t, s.nodes.Delete(t.Context(), f.name, metav1.DeleteOptions{}))
		require.Eventually(t, func() bool { return strings.Count(f.logs(), "waiting for the node to register") == 2 },
			soon, 10*time.Millisecond)
		second := s.register(t, bornHeld(f.name))
		require.NotEqual(t, first.UID, second.UID)
		s.until(t, f.name, "held with a reason", func(n *corev1.Node) bool {
			return n.UID == second.UID && n.Spec.Unschedulable && isHeld(n)
		})
		f.host(func(f *fixture) { f.facts = openNetwork() })
		s.until(t, f.name, "released", isReleased)
	})

	t.Run("frequent writes of others", func(t *testing.T) {
		s.register(t, bornHeld("storm"))
		f := start(t, s, "storm", nil)
		s.until(t, f.name, "held with a reason", isHeld)
		ctx, cancel := context.WithCancel(t.Context())
		writes, ended := atomic.Int64{}, make(chan struct{})
		go func() {
			defer close(ended)
			for pause(ctx, 10*time.Millisecond) == nil {
				body := []byte(`{"metadata":{"annotations":{"example.org/other":"` + time.Now().Format(time.StampNano) + `"}}}`)
				if _, err := s.nodes.Patch(ctx, f.name, types.MergePatchType, body, metav1.PatchOptions{}); err == nil {
					writes.Add(1)
				}
			}
		}()
		require.Eventually(t, func() bool { return writes.Load() > 5 }, soon, time.Millisecond)
		began := time.Now()
		f.host(func(f *fixture) { f.facts = openNetwork() })
		s.until(t, f.name, "released", isReleased)
		t.Logf("released %s after the network was ready, during %d writes of others", time.Since(began), writes.Load())
		cancel()
		<-ended
		require.NotEmpty(t, s.get(t, f.name).Annotations["example.org/other"], "the writes of others stay")
		require.LessOrEqual(t, strings.Count(f.logs(), "failed to reconcile the Node"), 3, f.logs())
	})
}

// testShutdown checks that the agent allows a shutdown as soon as the API server has the cordon,
// and not earlier.
func testShutdown(t *testing.T, s testServer) {
	n := bornHeld("going-down")
	s.register(t, n)
	f := start(t, s, n.Name, func(f *fixture) { f.facts = openNetwork() })
	s.until(t, f.name, "released", isReleased)
	require.Empty(t, f.shutdowns)

	var refused atomic.Int64
	f.transport.set(func(req *http.Request) int {
		if req.Method == http.MethodPatch && refused.Add(1) < 3 {
			return http.StatusInternalServerError
		}
		return 0
	})
	f.host(func(f *fixture) { f.facts.GoingDown = true })
	select {
	case cordoned := <-f.shutdowns:
		require.True(t, cordoned, "the shutdown is allowed after the cordon")
	case <-time.After(soon):
		require.Fail(t, "the shutdown was not allowed")
	}
	s.until(t, f.name, "held with a reason", func(n *corev1.Node) bool {
		return hasReason(readiness.GoingDown)(n) && status(n, corev1.NodeNetworkUnavailable) != corev1.ConditionTrue
	})

	f.host(func(f *fixture) { f.facts.GoingDown = false })
	s.until(t, f.name, "released after the shutdown was cancelled", isReleased)
	f.host(func(f *fixture) { f.facts.GoingDown = true })
	require.True(t, <-f.shutdowns, "the next shutdown is delayed too")
	require.Empty(t, f.shutdowns, "each shutdown is allowed once")
}

func testServerErrors(t *testing.T, s testServer) {
	for i, c := range []struct {
		name   string
		status int
		times  int64
		// atLeast is the sum of the delays: 50 ms, 100 ms, 200 ms, …
		atLeast time.Duration
	}{
		{"conflict", http.StatusConflict, 12, 150 * time.Millisecond}, // five attempts without a delay
		{"too many requests", http.StatusTooManyRequests, 5, 1550 * time.Millisecond},
		{"internal error", http.StatusInternalServerError, 15, 1550 * time.Millisecond}, // 3 in each pass
	} {
		t.Run(c.name, func(t *testing.T) {
			name := "ill-" + string(rune('a'+i))
			s.register(t, bornHeld(name))
			f := start(t, s, name, nil)
			s.until(t, name, "held with a reason", isHeld)
			tries, first := atomic.Int64{}, atomic.Int64{}
			f.transport.set(func(req *http.Request) int {
				if req.Method != http.MethodPatch || tries.Add(1) > c.times {
					return 0
				}
				first.CompareAndSwap(0, time.Now().UnixNano())
				f.events.Notify() // A busy host must not add requests to an ill server.
				return c.status
			})
			f.host(func(f *fixture) { f.facts = openNetwork() })
			s.until(t, name, "released", isReleased)
			require.Greater(t, time.Since(time.Unix(0, first.Load())), c.atLeast)
			require.Greater(t, tries.Load(), c.times)
			require.Equal(t, 1, strings.Count(f.logs(), "failed to reconcile the Node; retrying"), f.logs())
			f.requireLog("the Node is reconciled again")
			require.NoError(t, f.agent.Healthy(time.Now()))
		})
	}

	t.Run("list fails", func(t *testing.T) {
		s.register(t, bornHeld("unread"))
		tries := atomic.Int64{}
		f := start(t, s, "unread", func(f *fixture) {
			f.facts = openNetwork()
			f.transport.set(func(req *http.Request) int {
				if req.URL.Path != "/api/v1/nodes" || tries.Add(1) > 6 {
					return 0
				}
				return http.StatusInternalServerError
			})
		})
		s.until(t, f.name, "released", isReleased)
		require.Equal(t, 1, strings.Count(f.logs(), "failed to read from the API server"), f.logs())
		require.Equal(t, 1, strings.Count(f.logs(), "reading from the API server works again"), f.logs())
	})

	t.Run("events hang", func(t *testing.T) {
		s.register(t, bornHeld("mute"))
		f := start(t, s, "mute", nil)
		s.until(t, f.name, "held with a reason", isHeld)
		f.transport.set(func(req *http.Request) int {
			if !strings.HasSuffix(req.URL.Path, "/events") {
				return 0
			}
			<-req.Context().Done()
			return http.StatusInternalServerError
		})
		began := time.Now()
		f.host(func(f *fixture) { f.facts = openNetwork() })
		s.until(t, f.name, "released", isReleased)
		require.Less(t, time.Since(began), 5*time.Second, "half a tick")
	})
}

// testRefusals lets a policy of the cluster refuse a part of the write.
func testRefusals(t *testing.T, s testServer) {
	for i, code := range []int{
		http.StatusBadRequest, http.StatusForbidden, http.StatusUnprocessableEntity,
		http.StatusInternalServerError, http.StatusTeapot,
	} {
		t.Run(fmt.Sprintf("label, %d", code), func(t *testing.T) {
			name := fmt.Sprintf("refused-%d", i)
			s.register(t, bornHeld(name))
			f := start(t, s, name, func(f *fixture) {
				holdsMember(f)
				f.transport.refuse(code, name, observation.EtcdMemberLabel)
			})
			s.until(t, name, "held with a reason", isHeld)
			f.host(func(f *fixture) { f.facts = openNetwork() })
			s.until(t, name, "released", isReleased)
			f.requireLog("failed to reconcile the Node")
			require.NotContains(t, f.logs(), "the Node is reconciled again", "the node is not protected")
		})
		t.Run(fmt.Sprintf("hold, %d", code), func(t *testing.T) {
			name := fmt.Sprintf("unheld-%d", i)
			s.register(t, bornHeld(name))
			f := start(t, s, name, func(f *fixture) {
				holdsMember(f)
				f.facts = openNetwork()
				f.transport.refuse(code, name, readiness.HoldAnnotation)
			})
			s.until(t, name, "labeled", observation.IsLabelled)
			f.requireLog("failed to reconcile the Node")
		})
	}
}
