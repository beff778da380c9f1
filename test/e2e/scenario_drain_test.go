//go:build e2e

package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
)

// maxWriteGap is the longest time without a write to etcd. An election takes seconds.
const maxWriteGap = 10 * time.Second

// scenarioDrain drains and reboots two of the three etcd nodes from two terminals at the same time,
// as kured does on each node. One drain proceeds, and the other prints why it waits until the first
// node is back. Meanwhile a client writes to etcd.
func scenarioDrain(t *testing.T, c *kindCluster) {
	c.resolveGrants(t)
	c.waitForHealthy(t, 3)
	for number := 1; number <= 3; number++ {
		c.ownBootID(t, c.worker(number))
		c.waitForGuard(t, c.worker(number))
	}
	d := etcdDrains{t: t, c: c, away: map[int]bool{}}
	writing, stop := context.WithCancel(t.Context())
	defer stop()
	var writer errgroup.Group
	writer.Go(func() error { return d.write(writing) })
	drains, ctx := errgroup.WithContext(t.Context())
	for number := 1; number <= 2; number++ {
		drains.Go(func() error { return d.drain(ctx, number) })
	}
	require.NoError(t, drains.Wait())
	stop()
	require.NoError(t, writer.Wait())
	t.Logf("%d of 2 drains waited; %d writes, the longest time without one was %s", d.waited, d.writes, d.longestGap)
	require.Equal(t, 1, d.waited)
	require.Less(t, d.longestGap, maxWriteGap)
	c.waitForHealthy(t, 3)
	for number := 1; number <= 2; number++ {
		c.waitForGuard(t, c.worker(number))
	}
}

// waitForGuard waits until the guard pod of a node runs.
func (c *kindCluster) waitForGuard(t *testing.T, node string) {
	t.Helper()
	c.waitFor(t, "the guard pod of node "+node, longTimeout, func(ctx context.Context) (bool, string) {
		phase, err := c.tryRun(ctx, c.tool("kubectl"), "-n", guard.Namespace, "get", "pod", guard.Name(node),
			"-o", "jsonpath={.status.phase}")
		return err == nil && phase == "Running", phase
	})
}

// etcdDrains are the drains of etcd nodes, by number of the member.
type etcdDrains struct {
	t *testing.T
	c *kindCluster

	mu             sync.Mutex // guards the fields below
	away           map[int]bool
	waited, writes int
	longestGap     time.Duration
}

// drain drains a node, reboots it, and uncordons it.
func (d *etcdDrains) drain(ctx context.Context, number int) error {
	node := d.c.worker(number)
	begun := time.Now()
	out, err := d.c.tryRun(ctx, d.c.tool("kubectl"), "drain", node, "--ignore-daemonsets", "--force",
		"--delete-emptydir-data", "--timeout=15m")
	if err != nil {
		return err
	}
	if err := d.leave(number, strings.Contains(out, "draining node "+node+" "+quorumRefusal)); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	logWait(d.t, "the drain of node "+node, begun)
	defer logWait(d.t, "the reboot of node "+node, time.Now())
	if err := errors.Join(d.c.reboot(ctx, node), d.c.etcd.waitForMember(ctx, number)); err != nil {
		return err
	}
	d.mu.Lock()
	delete(d.away, number)
	d.mu.Unlock()
	_, err = d.c.tryRun(ctx, d.c.tool("kubectl"), "uncordon", node)
	return err
}

// leave records that a drain has proceeded. It fails if another node is away.
func (d *etcdDrains) leave(number int, waited bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.away) > 0 {
		return fmt.Errorf("member %d was drained while %v are away", number, d.away)
	}
	d.away[number] = true
	if waited {
		d.waited++
	}
	return nil
}

// write writes to etcd every 100 ms through any member that is not away, until ctx ends.
func (d *etcdDrains) write(ctx context.Context) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	last := time.Now()
	for number := 1; ; number = number%3 + 1 {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		d.mu.Lock()
		isAway := d.away[number]
		d.mu.Unlock()
		if isAway {
			continue
		}
		_, err := d.c.etcd.tryEtcdctl(ctx, number, "--command-timeout=2s put e2e/drain "+time.Now().Format("150405.000"))
		if ctx.Err() != nil {
			return nil
		}
		d.mu.Lock()
		d.longestGap = max(d.longestGap, time.Since(last))
		if err == nil {
			d.writes++
			last = time.Now()
		}
		d.mu.Unlock()
	}
}
