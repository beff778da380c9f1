package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

const (
	// slowTick is within what time a held node is released whatever was lost: the default of --tick.
	slowTick = 10 * time.Second
	// away is how long the API server is.
	away = 3 * time.Second
)

// TestTheServerIsAwayInTheMiddleOfAHold has a real one that goes away with a node held, and comes back with its network there.
// What a minute of it does to the agent's loop is in internal/agent, where time is cheap.
func TestTheServerIsAwayInTheMiddleOfAHold(t *testing.T) {
	s := startSite(t)
	for _, part := range []struct {
		name            string
		leaves, returns func() error
	}{
		{"it stands still", func() error { return s.Process().Pause() }, func() error { return s.Process().Resume() }},
		{"it is killed and started again", func() error { return s.Process().Kill() }, func() error { return s.Restart(t.Context()) }},
	} {
		t.Run(part.name, func(t *testing.T) {
			s := s
			s.t = t
			node := strings.ReplaceAll(part.name, " ", "-")
			_, _, err := s.AddNode(t.Context(), testenv.NodeSpec{Name: node, BootID: bootID(1)})
			require.NoError(t, err)
			root := s.bare(1)
			said := s.run(node, root)
			s.until(node, "held", held)
			require.NoError(t, part.leaves())
			flannel(t, root)
			require.Eventually(t, func() bool { return strings.Contains(said.String(), "held=false reason=NotHeld") }, soon, 10*time.Millisecond, "it has seen the network")
			gone := time.NewTimer(away)
			defer gone.Stop()
			<-gone.C
			require.NoError(t, part.returns())
			back := time.Now()
			s.until(node, "free", free)
			t.Logf("released %s after the server was back", time.Since(back))
			require.Less(t, time.Since(back), slowTick+2*time.Second, "one pause of the loop, and what a release takes")
		})
	}
	t.Run("its address has moved and nothing says so", func(t *testing.T) { s := s; s.t = t; connectionDies(t, s) })
}

func held(n *corev1.Node) bool {
	return n.Spec.Unschedulable && is(n, readiness.NetworkHeld).Status == corev1.ConditionTrue
}

// free says that nothing of a hold is left.
func free(n *corev1.Node) bool {
	r, err := readiness.ParseRecord(n.Annotations[readiness.HoldAnnotation])
	return err == nil && r.State == readiness.Released && !n.Spec.Unschedulable && is(n, readiness.NetworkHeld).Status == corev1.ConditionFalse &&
		is(n, corev1.NodeNetworkUnavailable).Status != corev1.ConditionTrue
}

// connectionDies: what was connected gets no answer ever again, and new connections work. The agent has the environment that
// the shipped manifest gives it. What it waits for is told by the watch alone: its network is there, and somebody's drain ends.
func connectionDies(t *testing.T, s site) {
	for name, value := range shippedEnvironment(t) {
		t.Setenv(name, value)
	}
	const node = "moved"
	_, _, err := s.AddNode(t.Context(), testenv.NodeSpec{Name: node, BootID: bootID(1)})
	require.NoError(t, err)
	_, err = s.Kubectl(t.Context(), "taint", "node", node, "medik8s.io/drain:NoSchedule")
	require.NoError(t, err)
	config, err := s.ServiceAccountConfig(t.Context(), "holdfast-system", "holdfast-agent", node)
	require.NoError(t, err)
	address, err := url.Parse(config.Host)
	require.NoError(t, err)
	w := s.wire(address.Host)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	config.Host = "https://" + w.address
	require.NoError(t, testenv.WriteKubeconfig(kubeconfig, config))
	text, err := os.ReadFile(kubeconfig)
	require.NoError(t, err)
	named := strings.Replace(string(text), "    server:", "    tls-server-name: "+address.Hostname()+"\n    server:", 1)
	require.NoError(t, os.WriteFile(kubeconfig, []byte(named), 0o600))

	root := s.bare(1)
	flannel(t, root)
	s.run(node, root, "--kubeconfig="+kubeconfig)
	s.until(node, "held for somebody", func(n *corev1.Node) bool { return is(n, readiness.NetworkHeld).Reason == readiness.WaitingForOthers })
	w.cut()
	_, err = s.Kubectl(t.Context(), "taint", "node", node, "medik8s.io/drain:NoSchedule-")
	require.NoError(t, err)
	began := time.Now()
	s.until(node, "free", free)
	t.Logf("released %s after an event that was lost", time.Since(began))
	require.Less(t, time.Since(began), slowTick+2*time.Second, "one tick, and what a new connection and a new watch take")
}

// shippedEnvironment are the settings of HTTP/2 in the agent's DaemonSet.
func shippedEnvironment(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../../manifests/base/agent.yaml")
	require.NoError(t, err)
	found := map[string]string{}
	for _, m := range regexp.MustCompile(`name: (HTTP2_\w+), value: "(\d+)"`).FindAllStringSubmatch(string(text), -1) {
		found[m[1]] = m[2]
	}
	require.Len(t, found, 2)
	return found
}

// wire passes bytes on between its address and a server's, until it is cut: then what is connected is dead to both sides, which
// are not told, and new connections are as good as ever.
type wire struct {
	address string
	mu      sync.Mutex
	dead    chan struct{} // closed when the connections of now are dead
}

func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.dead)
	w.dead = make(chan struct{})
}

func (s site) wire(server string) *wire {
	s.t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(s.t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(s.t, err)
	w := &wire{address: listener.Addr().String(), dead: make(chan struct{})}
	ctx, cancel := context.WithCancel(s.t.Context())
	var group errgroup.Group
	group.Go(func() error {
		for {
			client, err := listener.Accept()
			if err != nil {
				return nil // closed
			}
			upstream, err := (&net.Dialer{}).DialContext(ctx, "tcp", server)
			if err != nil {
				_ = client.Close()
				continue
			}
			w.mu.Lock()
			dead := w.dead
			w.mu.Unlock()
			group.Go(func() error { <-ctx.Done(); return errors.Join(client.Close(), upstream.Close()) })
			for _, way := range [][2]net.Conn{{client, upstream}, {upstream, client}} {
				group.Go(func() error { pass(way[0], way[1], dead); return nil })
			}
		}
	})
	s.t.Cleanup(func() {
		cancel()
		_ = listener.Close()
		_ = group.Wait()
	})
	return w
}

// pass copies until one side ends, and reads on without a word to the other once the connection is dead.
func pass(from io.Reader, to net.Conn, dead <-chan struct{}) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		select {
		case <-dead:
			continue
		default:
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}
