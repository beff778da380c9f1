//go:build etcdversions

package stress

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/internal/testenv/etcd"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/test/fixture"
)

// upgradeClients is the number of clients that delete nodes during the upgrade.
const upgradeClients = 3

// TestUpgrade upgrades a cluster from etcd 3.4 to 3.7, one member after the other. In between it
// downgrades it from 3.6 to 3.5. Meanwhile clients delete nodes, members fail, and machines are
// replaced. Each step waits until deletions were allowed and refused in a mixed cluster. Every
// allowed deletion must keep the quorum, and no Node may lose its protection.
func TestUpgrade(t *testing.T) {
	t.Setenv(etcd.VersionVariable, string(etcd.V34))
	s := newEnvironment(t)
	s.startEtcd(t, "three", false, 1, 2, 3)
	s.startHoldfast(t, 3)
	c := s.clusters[0]
	protection := s.watchProtection(t)
	seed := uint64(time.Now().UnixNano())

	g, ctx := errgroup.WithContext(t.Context())
	faultsContext, stopFaults := context.WithCancel(ctx)
	var left atomic.Int64
	left.Store(1 << 40)
	var deleters errgroup.Group
	for i := range upgradeClients {
		deleters.Go(func() error { return s.deleteNodes(ctx, rand.New(rand.NewPCG(seed, uint64(1+i))), &left) })
	}
	g.Go(func() error { defer stopFaults(); return deleters.Wait() })
	g.Go(func() error { return c.writeKeys(faultsContext) })
	for node, n := range s.nodes {
		g.Go(func() error {
			return s.replaceMachines(ctx, faultsContext, node, rand.New(rand.NewPCG(seed, uint64(200+n))))
		})
	}
	var steps []string
	g.Go(func() error {
		defer left.Store(0)
		for _, to := range []etcd.Version{etcd.V35, etcd.V36, etcd.V35, etcd.V36, etcd.V37} {
			if to == etcd.V37 {
				if err := c.outgrowLog(ctx); err != nil {
					return err
				}
			}
			before, began, from := s.counted(), time.Now(), c.etcd.Version()
			if err := s.changeVersion(ctx, c, to); err != nil {
				return fmt.Errorf("from %s to %s: %w", from, to, err)
			}
			after := s.counted()
			steps = append(steps, fmt.Sprintf("%s to %s in %s: %d allowed, %d refused", from, to,
				time.Since(began).Round(time.Second), after["etcd allowed"]-before["etcd allowed"],
				after["etcd refused"]-before["etcd refused"]))
		}
		return nil
	})
	err := g.Wait()

	t.Logf("the deletions: %v\n%s", s.counts, strings.Join(steps, "\n"))
	require.NoError(t, s.history.verify())
	require.NoError(t, err)
	require.Zero(t, s.counts["ordinary refused"])
	require.NoError(t, protection.stop())
	require.NoError(t, c.recoverAll())
	require.NoError(t, c.checkRead(t.Context()))
	for _, m := range c.liveMembers() {
		require.Equal(t, etcd.V37, m.Version(), m.Name)
	}
}

func (s *stressTest) counted() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.counts)
}

// writeKeys writes a key again and again, as an API server does, until the context ends.
func (c *stressCluster) writeKeys(ctx context.Context) error {
	for fixture.Wait(ctx, 50*time.Millisecond) == nil {
		for _, m := range c.liveMembers() {
			err := c.callMember(ctx, m, func(ctx context.Context, client *clientv3.Client) error {
				_, err := client.Put(ctx, "stress", "")
				return err
			})
			if err == nil {
				break
			}
		}
	}
	return nil
}

// logLength is more than the number of entries in the log of a member: etcd makes a snapshot after
// 10,000 entries by default, and keeps 5,000 entries before it for slow followers.
const logLength = 21000

// outgrowLog writes so many keys that no member has a log entry from before. A member of 3.7 ends
// with an error if it reads an entry that a member of 3.4 or 3.5 has written for its name and URLs.
func (c *stressCluster) outgrowLog(ctx context.Context) error {
	const writers = 30
	ctx, cancel := context.WithTimeout(ctx, fixture.Timeout)
	defer cancel()
	var g errgroup.Group
	for writer := range writers {
		g.Go(func() error {
			for written := 0; written < logLength/writers; {
				members := c.liveMembers()
				last := c.callMember(ctx, members[writer%len(members)], func(ctx context.Context, client *clientv3.Client) error {
					for ; written < logLength/writers; written++ {
						if _, err := client.Put(ctx, "stress", ""); err != nil {
							return err
						}
					}
					return nil
				})
				if ctx.Err() != nil {
					return fmt.Errorf("writing keys: %w", errors.Join(context.Cause(ctx), last))
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return c.writeEverywhere(ctx)
}

// changeVersion restarts one member of a cluster after the other with another version. Until all of
// them have it, the membership stays as it is, because 3.5 and 3.6 may lose a change of a mixed
// cluster. New members start with the new version.
func (s *stressTest) changeVersion(ctx context.Context, c *stressCluster, to etcd.Version) error {
	before, isDowngrade := s.counted(), to < c.etcd.Version()
	if err := s.waitForVoters(ctx, c); err != nil {
		return err
	}
	if err := c.storeChange(ctx); err != nil {
		return err
	}
	if isDowngrade { // It needs an answer of every listed member.
		if err := s.permitDowngrade(ctx, c, to); err != nil {
			return err
		}
		if err := s.waitForVersion(ctx, c, to); err != nil {
			return err
		}
	}
	c.permitChanges(false, false)
	c.etcd.SetVersion(to)
	for hasWaited := false; ; hasWaited = true {
		old := slices.DeleteFunc(c.liveMembers(), func(m *etcd.Member) bool { return m.Version() == to })
		if len(old) == 0 {
			break
		}
		if err := s.withHealthyMembers(c, func() error { return c.restartMember(ctx, old[0], to) }); err != nil {
			return err
		}
		if !hasWaited {
			if err := s.waitForDecisions(ctx, before); err != nil {
				return err
			}
		}
	}
	c.permitChanges(true, !isDowngrade)
	if isDowngrade {
		if err := s.waitForDowngrade(ctx, c); err != nil {
			return err
		}
		c.permitChanges(true, true)
	}
	return s.waitForVersion(ctx, c, to)
}

// waitForVoters waits until all members of a cluster are voters on live machines, and then forbids
// adding members.
func (s *stressTest) waitForVoters(ctx context.Context, c *stressCluster) error {
	return s.WaitUntil(ctx, "the voters of "+c.name, func(ctx context.Context) error {
		c.faultFree.Lock()
		defer c.faultFree.Unlock()
		live := c.liveMembers()
		if len(live) == 0 {
			return errors.New("no member is alive")
		}
		return c.callMember(ctx, live[0], func(ctx context.Context, client *clientv3.Client) error {
			list, err := client.MemberList(ctx)
			if err != nil {
				return err
			}
			isLearner := func(m *pb.Member) bool { return m.IsLearner }
			if len(live) < len(s.nodes) || len(list.Members) != len(live) || slices.ContainsFunc(list.Members, isLearner) {
				return fmt.Errorf("%d members live, %d are listed", len(live), len(list.Members))
			}
			c.isClosed = true
			return nil
		})
	})
}

// permitChanges permits changes of the membership, or forbids them.
func (c *stressCluster) permitChanges(removals, additions bool) {
	c.faultFree.Lock()
	defer c.faultFree.Unlock()
	c.isFixed, c.isClosed = !removals, !additions
}

// waitForDowngrade waits until etcd has ended its downgrade, some seconds after the last member has
// the earlier version. Until then, no new member of any version joins. The validation of a further
// downgrade shows the end.
func (s *stressTest) waitForDowngrade(ctx context.Context, c *stressCluster) error {
	return s.WaitUntil(ctx, "the end of the downgrade of "+c.name, func(ctx context.Context) error {
		return c.callAny(ctx, "validating a downgrade", func(ctx context.Context, client *clientv3.Client) error {
			_, err := client.Downgrade(ctx, clientv3.DowngradeValidate, strings.TrimPrefix(string(etcd.V34), "v")+".0")
			return err
		})
	})
}

// waitForDecisions waits until a deletion was allowed and another one was refused.
func (s *stressTest) waitForDecisions(ctx context.Context, before map[string]int) error {
	return s.WaitUntil(ctx, "deletions in mixed clusters", func(context.Context) error {
		now := s.counted()
		for _, what := range []string{"etcd allowed", "etcd refused"} {
			if now[what] == before[what] {
				return fmt.Errorf("no deletion was counted as %s", what)
			}
		}
		return nil
	})
}

// permitDowngrade lets etcd prepare its data for members of an earlier version.
func (s *stressTest) permitDowngrade(ctx context.Context, c *stressCluster, to etcd.Version) error {
	err := c.callAny(ctx, "permitting a downgrade", func(ctx context.Context, client *clientv3.Client) error {
		_, err := client.Downgrade(ctx, clientv3.DowngradeEnable, strings.TrimPrefix(string(to), "v")+".0")
		return err
	})
	if err != nil {
		return err
	}
	want := strings.TrimPrefix(string(to), "v") + ".0"
	return s.WaitUntil(ctx, "the storage version "+want+" of "+c.name, func(ctx context.Context) error {
		for _, m := range c.liveMembers() {
			err := c.callMember(ctx, m, func(ctx context.Context, client *clientv3.Client) error {
				status, err := client.Status(ctx, m.ClientURL)
				if err == nil && status.StorageVersion != want {
					err = fmt.Errorf("%s has the storage version %s", m.Name, status.StorageVersion)
				}
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *stressTest) waitForVersion(ctx context.Context, c *stressCluster, want etcd.Version) error {
	return s.WaitUntil(ctx, "version "+string(want)+" of "+c.name, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		err := errors.New("no member")
		for _, m := range c.liveMembers() {
			var got etcd.Version
			if got, err = m.ClusterVersion(ctx); err == nil && got == want {
				return nil
			}
			err = errors.Join(err, fmt.Errorf("%s reports %q", m.Name, got))
		}
		return err
	})
}

// restartMember stops a member and starts it with another version, like systemd: it retries while
// the machine lives. The caller holds faultFree.
func (c *stressCluster) restartMember(ctx context.Context, m *etcd.Member, to etcd.Version) error {
	ctx, cancel := context.WithTimeout(ctx, fixture.Timeout)
	defer cancel()
	for {
		isAlive, err := c.relaunch(ctx, m, to)
		if !isAlive {
			return nil
		}
		if err == nil {
			err = m.WaitReady(ctx)
		}
		if err == nil || c.member(m.Node) != m {
			return nil
		}
		if fixture.Wait(ctx, 100*time.Millisecond) != nil {
			return err
		}
	}
}

// relaunch stops a member and starts it with another version. It reports whether the machine of
// the member lives.
func (c *stressCluster) relaunch(ctx context.Context, m *etcd.Member, to etcd.Version) (isAlive bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.members[m.Node] != m {
		return false, nil
	}
	if err := m.Stop(ctx); err != nil {
		return true, err
	}
	c.history.recordStop(c.memberID(m))
	m.SetVersion(to)
	c.history.recordStart(c.memberID(m))
	return true, m.Launch()
}

// A protectionWatch follows the Nodes and reports each that has lost its protection.
type protectionWatch struct {
	stop func() error
}

// watchProtection starts to follow all Nodes. A Node with etcd is deleted before its member is
// removed, so it keeps its protection until its end.
func (s *stressTest) watchProtection(t *testing.T) protectionWatch {
	t.Helper()
	nodes, err := s.client.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	var running sync.WaitGroup
	var problems []error
	protected := map[types.UID]string{} // the announcement by UID
	running.Go(func() {
		for event := range nodes.ResultChan() {
			n, isNode := event.Object.(*corev1.Node)
			if !isNode || n.DeletionTimestamp != nil {
				continue
			}
			announcement := n.Annotations[observation.AnnouncementAnnotation]
			isProtected := n.Labels[observation.EtcdMemberLabel] == "true" && announcement != ""
			if was := protected[n.UID]; was != "" && !isProtected {
				problems = append(problems, fmt.Errorf("node %s lost its protection; it had announced %s", n.Name, was))
			}
			if isProtected {
				protected[n.UID] = announcement
			}
		}
	})
	return protectionWatch{stop: func() error {
		nodes.Stop()
		running.Wait()
		if len(protected) < len(s.nodes) {
			return fmt.Errorf("%d Nodes were protected, want at least %d", len(protected), len(s.nodes))
		}
		return errors.Join(problems...)
	}}
}
