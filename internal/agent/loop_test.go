package agent

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/pkg/protect"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// TestAtAnAPIServer has one API server for all that needs one, since each takes seconds to start.
func TestAtAnAPIServer(t *testing.T) {
	c := startCluster(t)
	for _, part := range []struct {
		name string
		run  func(*testing.T, cluster)
	}{
		{"node loop", nodeLoop},
		{"a host that goes down", hostGoesDown},
		{"etcd on the node", etcdOnTheNode},
		{"an agent that is started anew", startedAnew},
		{"a server that is ill", serverIsIll},
		{"a server that is away", serverIsAway},
	} {
		t.Run(part.name, func(t *testing.T) { part.run(t, c) })
	}
}

func nodeLoop(t *testing.T, c cluster) {
	t.Run("a node born held is released within milliseconds of its network", func(t *testing.T) {
		c.register(t, bornHeld("born-held"))
		r := start(t, c, "born-held", nil)
		c.until(t, r.name, "held with a reason", func(n *corev1.Node) bool {
			return condition(n, readiness.NetworkHeld).Reason == readiness.WaitingForCNI
		})
		reads := atomic.Int64{}
		r.fault.set(func(req *http.Request) int {
			if req.Method == http.MethodGet && strings.HasSuffix(req.URL.Path, "/nodes/born-held") {
				reads.Add(1)
			}
			return 0
		})
		began := time.Now()
		r.host(func(r *rig) { r.facts = open() })
		c.until(t, r.name, "uncordoned", func(n *corev1.Node) bool { return !n.Spec.Unschedulable })
		took := time.Since(began)
		t.Logf("released %s after the host showed its network", took)
		require.Less(t, took, 5*time.Second, "half a tick")
		c.until(t, r.name, "free of all of the hold", func(n *corev1.Node) bool {
			return released(n) && status(n, corev1.NodeNetworkUnavailable) == corev1.ConditionFalse &&
				status(n, readiness.NetworkHeld) == corev1.ConditionFalse
		})
		r.told("Released")
		require.Zero(t, reads.Load(), "the second write goes by the answer to the first and loses no race")
	})

	t.Run("who loses a race looks at the host again before it decides anew", func(t *testing.T) {
		c.register(t, bornHeld("lost-race"))
		r := start(t, c, "lost-race", nil)
		c.until(t, r.name, "held with a reason", func(n *corev1.Node) bool {
			return condition(n, readiness.NetworkHeld).Reason == readiness.WaitingForCNI
		})
		lost := make(chan struct{})
		r.fault.set(func(req *http.Request) int {
			if req.Method != http.MethodPatch || !strings.HasSuffix(req.URL.Path, "/nodes/lost-race") {
				return 0
			}
			r.fault.set(nil)
			r.mu.Lock()
			r.facts = closed() // and nothing rings
			r.mu.Unlock()
			close(lost)
			return http.StatusConflict
		})
		r.host(func(r *rig) { r.facts = open() })
		<-lost
		require.Never(t, func() bool {
			n, err := c.nodes.Get(t.Context(), r.name, metav1.GetOptions{})
			return err != nil || !n.Spec.Unschedulable
		}, 500*time.Millisecond, 10*time.Millisecond, "it was released by what the host had shown before")
	})

	t.Run("somebody's own cordon stays", func(t *testing.T) {
		n := bornHeld("own-cordon")
		n.Annotations = nil
		c.register(t, n)
		r := start(t, c, n.Name, func(r *rig) { r.facts = open() })
		c.until(t, r.name, "recorded as not held", released)
		after, err := c.nodes.Get(t.Context(), r.name, metav1.GetOptions{})
		require.NoError(t, err)
		require.True(t, after.Spec.Unschedulable)
	})

	t.Run("the agent waits for its node, and starts anew with another of the same name", func(t *testing.T) {
		r := start(t, c, "late", nil)
		require.Eventually(t, func() bool { return strings.Contains(r.said(), "waiting for the node to register") }, soon, 10*time.Millisecond)
		first := c.register(t, bornHeld(r.name))
		r.host(func(r *rig) { r.facts = open() })
		c.until(t, r.name, "released", released)
		r.host(func(r *rig) { r.facts = closed() })
		require.NoError(t, c.nodes.Delete(t.Context(), r.name, metav1.DeleteOptions{}))
		require.Eventually(t, func() bool { return strings.Count(r.said(), "waiting for the node to register") == 2 }, soon, 10*time.Millisecond)
		second := c.register(t, bornHeld(r.name))
		require.NotEqual(t, first.UID, second.UID)
		c.until(t, r.name, "held with a reason", func(n *corev1.Node) bool {
			return n.UID == second.UID && n.Spec.Unschedulable && status(n, readiness.NetworkHeld) == corev1.ConditionTrue
		})
		r.host(func(r *rig) { r.facts = open() })
		c.until(t, r.name, "released", released)
	})

	t.Run("others write all the time", func(t *testing.T) {
		c.register(t, bornHeld("storm"))
		r := start(t, c, "storm", nil)
		c.until(t, r.name, "held with a reason", func(n *corev1.Node) bool { return status(n, readiness.NetworkHeld) == corev1.ConditionTrue })
		ctx, cancel := context.WithCancel(t.Context())
		written, ended := atomic.Int64{}, make(chan struct{})
		go func() {
			defer close(ended)
			for pause(ctx, 10*time.Millisecond) == nil {
				body := []byte(`{"metadata":{"annotations":{"somebody/else":"` + time.Now().Format(time.StampNano) + `"}}}`)
				if _, err := c.nodes.Patch(ctx, r.name, types.MergePatchType, body, metav1.PatchOptions{}); err == nil {
					written.Add(1)
				}
			}
		}()
		require.Eventually(t, func() bool { return written.Load() > 5 }, soon, time.Millisecond)
		began := time.Now()
		r.host(func(r *rig) { r.facts = open() })
		c.until(t, r.name, "released", released)
		t.Logf("released %s after the host showed its network, beside %d writes of others", time.Since(began), written.Load())
		cancel()
		<-ended
		n, err := c.nodes.Get(t.Context(), r.name, metav1.GetOptions{})
		require.NoError(t, err)
		require.NotEmpty(t, n.Annotations["somebody/else"], "what others wrote stays")
		require.LessOrEqual(t, strings.Count(r.said(), "not as it should be"), 3, r.said())
	})
}

func serverIsIll(t *testing.T, c cluster) {
	tests := []struct {
		name   string
		status int
		times  int64
		// atLeast is the sum of the pauses: 50 ms, 100 ms, 200 ms, …
		atLeast time.Duration
	}{
		{"conflict", http.StatusConflict, 12, 150 * time.Millisecond}, // a lost race is run again at once, five times
		{"too many requests", http.StatusTooManyRequests, 5, 1550 * time.Millisecond},
		{"internal error", http.StatusInternalServerError, 15, 1550 * time.Millisecond}, // each pass tries all, and each part alone
	}
	for i, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			name := "ill-" + string(rune('a'+i))
			c.register(t, bornHeld(name))
			r := start(t, c, name, nil)
			c.until(t, name, "held with a reason", func(n *corev1.Node) bool { return status(n, readiness.NetworkHeld) == corev1.ConditionTrue })
			tries, first := atomic.Int64{}, atomic.Int64{}
			r.fault.set(func(req *http.Request) int {
				if req.Method != http.MethodPatch || tries.Add(1) > test.times {
					return 0
				}
				first.CompareAndSwap(0, time.Now().UnixNano())
				r.events.ring() // a busy host is no reason to ask a server that is ill more often
				return test.status
			})
			r.host(func(r *rig) { r.facts = open() })
			c.until(t, name, "released", released)
			require.Greater(t, time.Since(time.Unix(0, first.Load())), test.atLeast)
			require.Greater(t, tries.Load(), test.times)
			require.Equal(t, 1, strings.Count(r.said(), "not as it should be, trying again"), r.said())
			require.Eventually(t, func() bool { return strings.Contains(r.said(), "as it should be again") }, soon, 10*time.Millisecond)
			require.NoError(t, r.agent.Healthy(time.Now()))
		})
	}

	t.Run("reading fails", func(t *testing.T) {
		c.register(t, bornHeld("unread"))
		tries := atomic.Int64{}
		r := start(t, c, "unread", func(r *rig) {
			r.facts = open()
			r.fault.set(func(req *http.Request) int {
				if req.URL.Path != "/api/v1/nodes" || tries.Add(1) > 6 {
					return 0
				}
				return http.StatusInternalServerError
			})
		})
		c.until(t, r.name, "released", released)
		require.Equal(t, 1, strings.Count(r.said(), "the api server does not show its objects"), r.said())
		require.Equal(t, 1, strings.Count(r.said(), "the api server shows its objects again"), r.said())
	})

	for i, code := range []int{http.StatusBadRequest, http.StatusForbidden, http.StatusUnprocessableEntity, http.StatusInternalServerError, http.StatusTeapot} {
		t.Run(fmt.Sprintf("a label that somebody refuses with %d keeps no node held", code), func(t *testing.T) {
			name := fmt.Sprintf("refused-%d", i)
			c.register(t, bornHeld(name))
			r := start(t, c, name, func(r *rig) {
				holdsMember(r)
				refuse(r, code, protect.EtcdMemberLabel)
			})
			c.until(t, name, "held with a reason", func(n *corev1.Node) bool { return status(n, readiness.NetworkHeld) == corev1.ConditionTrue })
			r.host(func(r *rig) { r.facts = open() })
			c.until(t, name, "released", released)
			require.Eventually(t, func() bool { return strings.Contains(r.said(), "the node is not as it should be") }, soon, 10*time.Millisecond)
			require.NotContains(t, r.said(), "the node is as it should be again", "it is not protected, and that is not all right")
		})
		t.Run(fmt.Sprintf("a hold that somebody refuses with %d leaves no member unguarded", code), func(t *testing.T) {
			name := fmt.Sprintf("unheld-%d", i)
			c.register(t, bornHeld(name))
			r := start(t, c, name, func(r *rig) {
				holdsMember(r)
				r.facts = open()
				refuse(r, code, readiness.HoldAnnotation)
			})
			c.until(t, name, "labelled", isMember)
			require.Eventually(t, func() bool { return strings.Contains(r.said(), "the node is not as it should be") }, soon, 10*time.Millisecond)
		})
	}

	t.Run("the release waits for no event", func(t *testing.T) {
		c.register(t, bornHeld("mute"))
		r := start(t, c, "mute", nil)
		c.until(t, r.name, "held with a reason", func(n *corev1.Node) bool { return status(n, readiness.NetworkHeld) == corev1.ConditionTrue })
		r.fault.set(func(req *http.Request) int {
			if !strings.HasSuffix(req.URL.Path, "/events") {
				return 0
			}
			<-req.Context().Done()
			return http.StatusInternalServerError
		})
		began := time.Now()
		r.host(func(r *rig) { r.facts = open() })
		c.until(t, r.name, "released", released)
		require.Less(t, time.Since(began), 5*time.Second, "half a tick")
	})
}

func TestALoopThatDoesNotTurnIsIll(t *testing.T) {
	l := &loop{cfg: Config{Tick: 10 * time.Second, Log: discard()}}
	now := time.Now()
	require.NoError(t, l.healthy(now), "it has not begun")
	l.turned.put(now)
	require.NoError(t, l.healthy(now.Add(29*time.Second)))
	require.ErrorContains(t, l.healthy(now.Add(31*time.Second)), "has not turned for 31s")
}

func TestTheEchoOfAWriteWakesNobody(t *testing.T) {
	a := &Agent{cfg: Config{Node: testNode}, loop: &loop{woken: newBell()}, reporter: &reporter{woken: newBell()}}
	a.nodes = &mirror[*corev1.Node]{objects: map[string]*corev1.Node{}, changed: a.ownChanged}
	rang := func(b bell) bool {
		select {
		case <-b:
			return true
		default:
			return false
		}
	}
	node := func(version string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: testNode, ResourceVersion: version}}
	}
	from := &reflected[*corev1.Node]{a.nodes}
	for _, step := range []struct {
		what  string
		event func() error
		wakes bool
	}{
		{"before any write", func() error { return from.Add(node("6")) }, true},
		{"before the answer to the write", func() error { return from.Update(node("7")) }, true},
		{"the echo", func() error { a.loop.answered.put("8"); return from.Update(node("8")) }, false},
		{"somebody's write after it", func() error { return from.Update(node("9")) }, true},
		{"an older copy from a new list", func() error { return from.Replace([]any{node("7")}, "") }, true},
		{"its end", func() error { return from.Delete(node("8")) }, true},
	} {
		require.NoError(t, step.event())
		require.Equal(t, step.wakes, rang(a.loop.woken), step.what)
		require.True(t, rang(a.reporter.woken), "%s: the reporter did not make the write", step.what)
	}
}

// refuse answers writes to the agent's Node that name something with a status, as a policy or a webhook of somebody's does.
func refuse(r *rig, code int, named string) {
	r.fault.set(func(req *http.Request) int {
		if req.Method != http.MethodPatch || !strings.HasSuffix(req.URL.Path, "/nodes/"+r.name) {
			return 0
		}
		body, err := io.ReadAll(req.Body)
		if err != nil || strings.Contains(string(body), named) {
			return code
		}
		req.Body = io.NopCloser(bytes.NewReader(body))
		return 0
	})
}
