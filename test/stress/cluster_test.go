package stress

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-dev/holdfast/internal/testenv/etcd"
	"github.com/holdfast-dev/holdfast/test/fixture"
)

const (
	// readTimeout limits a read of a cluster that has lost only members whose nodes were
	// deleted. An election takes half a second here.
	readTimeout = 20 * time.Second
	// callTimeout limits one call of etcd.
	callTimeout = 2 * time.Second
)

// A stressCluster is one etcd cluster with the faults of its members.
type stressCluster struct {
	name    string
	etcd    *etcd.Cluster
	history *deletionHistory

	// faultFree is held while no fault may be injected. Machines may die nevertheless.
	faultFree sync.Mutex
	// isFixed is true while no change of the membership is permitted, and isClosed while no member may
	// be added. faultFree guards both.
	isFixed, isClosed bool

	mu sync.Mutex // guards the fields below
	// members maps nodes to the members on live machines.
	members map[string]*etcd.Member
	// nodes maps numbers of members to their nodes. It includes a member that is about to be
	// added.
	nodes  map[int]string
	faulty map[*etcd.Member]bool
}

func (c *stressCluster) memberID(m *etcd.Member) memberID { return memberID{c.name, m.ID()} }

// nodeOf returns the node of member i.
func (c *stressCluster) nodeOf(i int) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[i]
}

// member returns the member on a node's machine, or nil.
func (c *stressCluster) member(node string) *etcd.Member {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.members[node]
}

// liveMembers returns the members on live machines, ordered by number.
func (c *stressCluster) liveMembers() []*etcd.Member {
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []*etcd.Member
	for _, m := range c.etcd.Members() {
		if c.members[m.Node] == m {
			found = append(found, m)
		}
	}
	return found
}

// loseMember ends the member on a node's machine permanently and returns it.
func (c *stressCluster) loseMember(node string) (*etcd.Member, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.members[node]
	if m == nil {
		return nil, nil
	}
	delete(c.members, node)
	delete(c.faulty, m)
	err := m.Kill()
	c.history.recordStop(c.memberID(m))
	return m, err
}

// injectFault kills or pauses a member.
func (c *stressCluster) injectFault(m *etcd.Member, kill bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.members[m.Node] != m || c.faulty[m] {
		return nil
	}
	c.faulty[m] = true
	err := m.Pause()
	if kill {
		err = m.Kill()
	}
	c.history.recordStop(c.memberID(m))
	return err
}

// recoverMember undoes injectFault.
func (c *stressCluster) recoverMember(m *etcd.Member) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.members[m.Node] != m || !c.faulty[m] {
		return nil
	}
	delete(c.faulty, m)
	c.history.recordStart(c.memberID(m))
	if m.Running() {
		return m.Resume()
	}
	return m.Launch()
}

// recoverAll undoes all faults. The caller holds faultFree.
func (c *stressCluster) recoverAll() error {
	var err error
	for _, m := range c.liveMembers() {
		err = errors.Join(err, c.recoverMember(m))
	}
	return err
}

// recoverSafely undoes the fault of one member, outside of fault-free periods.
func (c *stressCluster) recoverSafely(m *etcd.Member) error {
	c.faultFree.Lock()
	defer c.faultFree.Unlock()
	if err := c.recoverMember(m); err != nil {
		return fmt.Errorf("recovering %s: %w", m.Name, err)
	}
	return nil
}

// callAny calls etcd through one live member after the other until a call succeeds.
func (c *stressCluster) callAny(ctx context.Context, what string,
	call func(context.Context, *clientv3.Client) error,
) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		// Use one client per member: a client of several members would stay with a dead one.
		var last error
		for _, m := range c.liveMembers() {
			if last = c.callMember(ctx, m, call); last == nil {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s in cluster %s: no success within %s: %w", what, c.name, readTimeout, last)
		case <-tick.C:
		}
	}
}

func (c *stressCluster) callMember(ctx context.Context, m *etcd.Member,
	call func(context.Context, *clientv3.Client) error,
) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	client, err := m.Client(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // always the error of its cancelled context
	return call(ctx, client)
}

// checkRead makes a linearizable read.
func (c *stressCluster) checkRead(ctx context.Context) error {
	return c.callAny(ctx, "a linearizable read", func(ctx context.Context, client *clientv3.Client) error {
		_, err := client.Get(ctx, "stress")
		return err
	})
}

// errNotPermitted means that the membership may not be changed now.
var errNotPermitted = errors.New("the version of the cluster is being changed")

// changeMembership changes the membership and records the resulting voters. It repeats the call
// until the member list shows the change, because a call without a response may have been
// applied.
func (c *stressCluster) changeMembership(ctx context.Context, what string,
	call func(context.Context, *clientv3.Client) error, isDone func([]*pb.Member) bool,
) error {
	if c.isFixed {
		return errNotPermitted
	}
	began := time.Now()
	var list []*pb.Member
	err := c.callAny(ctx, what, func(ctx context.Context, client *clientv3.Client) error {
		changed := call(ctx, client)
		answer, err := client.MemberList(ctx)
		if err != nil {
			return err
		}
		if list = answer.Members; !isDone(list) {
			return fmt.Errorf("not in effect: %w", changed)
		}
		return nil
	})
	if err != nil {
		return err
	}
	var ids []memberID
	for _, m := range list {
		if !m.IsLearner {
			ids = append(ids, memberID{c.name, m.ID})
		}
	}
	c.history.changeVoters(c.name, began, ids)
	return c.storeChange(ctx)
}

// storeChange lets all members on live machines store that they have applied a change of the
// membership. From etcd 3.6 on they do so themselves.
//
// 3.4 stores the index of what it has applied when a key is written, and not with a change of the
// membership. 3.5.35 then applies the changes since the last key again. With the first of them it
// takes the members of the later ones for removed (server/etcdserver/server.go,
// CleanupZombieMembersIfNeeded), and 3.6 stops these members.
func (c *stressCluster) storeChange(ctx context.Context) error {
	if c.etcd.Version() >= etcd.V36 {
		return nil
	}
	return c.writeEverywhere(ctx)
}

// writeEverywhere writes a key, and waits until all members on live machines have applied that.
func (c *stressCluster) writeEverywhere(ctx context.Context) error {
	var written int64
	err := c.callAny(ctx, "a write", func(ctx context.Context, client *clientv3.Client) error {
		answer, err := client.Put(ctx, "stress", "")
		if err == nil {
			written = answer.Header.Revision
		}
		return err
	})
	if err != nil {
		return err
	}
	hasApplied := func(ctx context.Context, client *clientv3.Client) error {
		answer, err := client.Get(ctx, "stress", clientv3.WithSerializable())
		if err == nil && answer.Header.Revision < written {
			err = fmt.Errorf("it has revision %d, not %d", answer.Header.Revision, written)
		}
		return err
	}
	return c.callAny(ctx, "a read from every member", func(ctx context.Context, _ *clientv3.Client) error {
		var errs []error
		for _, m := range c.liveMembers() {
			errs = append(errs, c.callMember(ctx, m, hasApplied))
		}
		return errors.Join(errs...)
	})
}

// removeMember removes a dead member from the member list.
func (c *stressCluster) removeMember(ctx context.Context, m *etcd.Member) error {
	defer c.etcd.Forget(m)
	return c.changeMembership(ctx, "removing "+m.Name, func(ctx context.Context, client *clientv3.Client) error {
		_, err := client.MemberRemove(ctx, m.ID())
		return err
	}, func(list []*pb.Member) bool {
		return !slices.ContainsFunc(list, func(o *pb.Member) bool { return o.ID == m.ID() })
	})
}

// addLearner adds a learner on the new machine of a node. It returns ErrTooManyLearners if the
// cluster has as many as it permits.
func (c *stressCluster) addLearner(ctx context.Context, node string) error {
	if c.isFixed || c.isClosed {
		return errNotPermitted
	}
	c.mu.Lock()
	c.nodes[len(c.etcd.Members())+1] = node
	c.mu.Unlock()
	// A response may be about an earlier attempt without a response. Therefore each attempt
	// first removes members that were never started.
	var m *etcd.Member
	var full error
	err := c.callAny(ctx, "adding a member on "+node, func(ctx context.Context, client *clientv3.Client) error {
		if err := removeUnstarted(ctx, client); err != nil {
			return err
		}
		var err error
		if m, err = c.etcd.AddLearnerUnstarted(ctx); errors.Is(err, rpctypes.ErrTooManyLearners) {
			full, err = err, nil
		}
		return err
	})
	if err = errors.Join(err, full); err != nil {
		return err
	}
	// A new member learns its ID from the member list of any other. A list that still has an
	// earlier attempt gives it an ID that the cluster has removed.
	if err := c.writeEverywhere(ctx); err != nil {
		return err
	}
	c.history.recordStart(c.memberID(m))
	c.mu.Lock()
	c.members[node] = m
	c.mu.Unlock()
	return errors.Join(c.startMember(ctx, m), c.storeChange(ctx))
}

// startMember starts a new member, and retries like systemd: the member gives up if it gets the
// member list from a member that does not know of the addition yet.
func (c *stressCluster) startMember(ctx context.Context, m *etcd.Member) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	for {
		err := m.Start(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
		if fixture.Wait(ctx, 100*time.Millisecond) != nil {
			return err
		}
	}
}

// removeUnstarted removes members that were added and never started.
func removeUnstarted(ctx context.Context, client *clientv3.Client) error {
	list, err := client.MemberList(ctx)
	if err != nil {
		return err
	}
	for _, m := range list.Members {
		if m.Name == "" {
			_, failed := client.MemberRemove(ctx, m.ID)
			err = errors.Join(err, failed)
		}
	}
	return err
}

// promoteMember makes a learner a voter as soon as it has caught up.
func (c *stressCluster) promoteMember(ctx context.Context, m *etcd.Member) error {
	return c.changeMembership(ctx, "promoting "+m.Name, func(ctx context.Context, client *clientv3.Client) error {
		_, err := client.MemberPromote(ctx, m.ID())
		return err
	}, func(list []*pb.Member) bool {
		return slices.ContainsFunc(list, func(o *pb.Member) bool { return o.ID == m.ID() && !o.IsLearner })
	})
}
