package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// outageTime is the time without an API server.
const outageTime = 3 * time.Second

func testPausedServer(_ *testing.T, f fixture) {
	f.testOutage("paused", f.Process().Pause, f.Process().Resume)
}

func testRestartedServer(t *testing.T, f fixture) {
	f.testOutage("restarted", f.Process().Kill, func() error { return f.Restart(t.Context()) })
	require.NoError(t, f.WaitForPolicies(t.Context()))
}

// testOutage stops the API server while a node is held. The network works before it comes back. The
// tests of internal/node/agent have an outage of a minute, with a simulated clock.
func (f fixture) testOutage(name string, begin, end func() error) {
	f.addNode(apiserver.NodeSpec{Name: name, BootID: bootID(1)})
	root := newHost(f.t, 1)
	log := f.startAgent(name, root)
	f.waitFor(name, "held", isHeldNode)
	require.NoError(f.t, begin())
	installFlannel(f.t, root)
	log.RequireText(f.t, "held=false reason=NotHeld", soon)
	outageEnd := time.NewTimer(outageTime)
	defer outageEnd.Stop()
	<-outageEnd.C
	require.NoError(f.t, end())
	start := time.Now()
	f.waitFor(name, "released", isReleasedNode)
	f.t.Logf("released %s after the outage", time.Since(start))
}

// testDeadConnections breaks the connections to the API server without a sign to the
// agent; new connections work. Go's own settings of HTTP/2 need 45 s to find a dead connection,
// which is more than the test waits. The tests of internal/node/agent have the exact times. The
// agent has the environment of the shipped manifest. Its network works, and only the watch
// reports that a drain has ended.
func testDeadConnections(t *testing.T, f fixture) {
	apiserver.RequireBornHeld(t, f.Server)
	for name, value := range shippedEnvironment(t) {
		t.Setenv(name, value)
	}
	const node = "moved"
	f.addNode(apiserver.NodeSpec{Name: node, BootID: bootID(1), Taints: []corev1.Taint{
		{Key: "medik8s.io/drain", Effect: corev1.TaintEffectNoSchedule},
	}})
	config, err := f.ServiceAccountConfig(t.Context(), "holdfast-system", "holdfast-agent", node)
	require.NoError(t, err)
	address, err := url.Parse(config.Host)
	require.NoError(t, err)
	proxy := f.startFreezingProxy(address.Host)
	config.Host = "https://" + proxy.address
	kubeconfig := f.kubeconfig(config)
	text, err := os.ReadFile(kubeconfig)
	require.NoError(t, err)
	withName := strings.Replace(string(text), "    server:", "    tls-server-name: "+address.Hostname()+"\n    server:", 1)
	require.NoError(t, os.WriteFile(kubeconfig, []byte(withName), 0o600))

	root := newHost(t, 1)
	installFlannel(t, root)
	f.startAgent(node, root, "--kubeconfig="+kubeconfig)
	f.waitFor(node, "held because of a drain", func(n *corev1.Node) bool {
		return condition(n, readiness.NetworkHeld).Reason == readiness.WaitingForOthers
	})
	proxy.freeze()
	f.patchNode(node, `{"spec":{"taints":null}}`)
	start := time.Now()
	f.waitFor(node, "released", isReleasedNode)
	t.Logf("released %s after the lost event", time.Since(start))
}

// shippedEnvironment returns the HTTP/2 settings in the agent's DaemonSet.
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

// freezingProxy is a TCP proxy. After freeze, the existing connections transfer no data
// but stay open, and new connections work.
type freezingProxy struct {
	address string
	mu      sync.Mutex
	frozen  chan struct{} // closed when the connections of this time freeze
}

func (p *freezingProxy) freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.frozen)
	p.frozen = make(chan struct{})
}

func (f fixture) startFreezingProxy(server string) *freezingProxy {
	f.t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(f.t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(f.t, err)
	p := &freezingProxy{address: listener.Addr().String(), frozen: make(chan struct{})}
	ctx, cancel := context.WithCancel(f.t.Context())
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
			p.mu.Lock()
			frozen := p.frozen
			p.mu.Unlock()
			group.Go(func() error { <-ctx.Done(); return errors.Join(client.Close(), upstream.Close()) })
			for _, direction := range [][2]net.Conn{{client, upstream}, {upstream, client}} {
				group.Go(func() error { copyUntilFrozen(direction[0], direction[1], frozen); return nil })
			}
		}
	})
	f.t.Cleanup(func() {
		cancel()
		_ = listener.Close()
		_ = group.Wait()
	})
	return p
}

// copyUntilFrozen copies until one side ends. After frozen is closed, it discards what it
// reads.
func copyUntilFrozen(from io.Reader, to net.Conn, frozen <-chan struct{}) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		select {
		case <-frozen:
			continue
		default:
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}
