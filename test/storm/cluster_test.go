package storm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-dev/holdfast/internal/testenv"
)

const (
	// readTime is within what a cluster must read again when nothing but deletions has taken members from it: an election
	// takes half a second here.
	readTime = 20 * time.Second
	// askTime is how long one call to etcd may take.
	askTime = 2 * time.Second
)

// cluster is one etcd cluster with what the storm does to it.
type cluster struct {
	name    string
	etcd    *testenv.Etcd
	history *history

	// calm is held by whoever needs that no member is hurt meanwhile. Machines die all the same.
	calm sync.Mutex

	mu sync.Mutex // guards what follows
	// members are those whose machines live, by node.
	members map[string]*testenv.Member
	// nodes are the nodes of members by number, which the members that are yet to be made are asked for.
	nodes map[int]string
	hurt  map[*testenv.Member]bool
}

func (c *cluster) id(m *testenv.Member) memberID { return memberID{c.name, m.ID()} }

// nodeOf names the node of member i.
func (c *cluster) nodeOf(i int) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[i]
}

// member returns the member on a node's machine, nil if there is none.
func (c *cluster) member(node string) *testenv.Member {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.members[node]
}

// all returns the members whose machines live, in the order of their numbers.
func (c *cluster) all() []*testenv.Member {
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []*testenv.Member
	for _, m := range c.etcd.Members() {
		if c.members[m.Node] == m {
			found = append(found, m)
		}
	}
	return found
}

// die ends the member on a node's machine for good, and returns it.
func (c *cluster) die(node string) (*testenv.Member, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.members[node]
	if m == nil {
		return nil, nil
	}
	delete(c.members, node)
	delete(c.hurt, m)
	err := m.Kill()
	c.history.down(c.id(m))
	return m, err
}

// harm kills a member or makes it hang.
func (c *cluster) harm(m *testenv.Member, kill bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.members[m.Node] != m || c.hurt[m] {
		return nil
	}
	c.hurt[m] = true
	err := m.Pause()
	if kill {
		err = m.Kill()
	}
	c.history.down(c.id(m))
	return err
}

// heal undoes what harm did.
func (c *cluster) heal(m *testenv.Member) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.members[m.Node] != m || !c.hurt[m] {
		return nil
	}
	delete(c.hurt, m)
	c.history.up(c.id(m))
	if m.Running() {
		return m.Resume()
	}
	return m.Launch()
}

// healAll undoes all harm. The caller holds calm.
func (c *cluster) healAll() error {
	var err error
	for _, m := range c.all() {
		err = errors.Join(err, c.heal(m))
	}
	return err
}

// healSafely undoes harm to one member while nobody needs calm.
func (c *cluster) healSafely(m *testenv.Member) error {
	c.calm.Lock()
	defer c.calm.Unlock()
	if err := c.heal(m); err != nil {
		return fmt.Errorf("healing %s: %w", m.Name, err)
	}
	return nil
}

// ask calls etcd through the members whose machines live, again and again until it answers.
func (c *cluster) ask(ctx context.Context, what string, call func(context.Context, *clientv3.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		// Through each in turn: a client of several would stay with one whose machine has died.
		var last error
		for _, m := range c.all() {
			if last = c.askThrough(ctx, m, call); last == nil {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s of cluster %s, %s without an answer: %w", what, c.name, readTime, last)
		case <-tick.C:
		}
	}
}

func (c *cluster) askThrough(ctx context.Context, m *testenv.Member, call func(context.Context, *clientv3.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	client, err := m.Client(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // it always tells that its context has been cancelled
	return call(ctx, client)
}

// read makes a linearizable read.
func (c *cluster) read(ctx context.Context) error {
	return c.ask(ctx, "a linearizable read", func(ctx context.Context, client *clientv3.Client) error {
		_, err := client.Get(ctx, "storm")
		return err
	})
}

// change makes a change of membership and notes the voters that are there after it. It is put again until the list shows
// that it was made, since a call that was not answered may have been heard.
func (c *cluster) change(ctx context.Context, what string, call func(context.Context, *clientv3.Client) error, made func([]*pb.Member) bool) error {
	began := time.Now()
	var list []*pb.Member
	err := c.ask(ctx, what, func(ctx context.Context, client *clientv3.Client) error {
		changed := call(ctx, client)
		answer, err := client.MemberList(ctx)
		if err != nil {
			return err
		}
		if list = answer.Members; !made(list) {
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
	return nil
}

// remove takes a dead member off the list.
func (c *cluster) remove(ctx context.Context, m *testenv.Member) error {
	defer c.etcd.Forget(m)
	return c.change(ctx, "removing "+m.Name, func(ctx context.Context, client *clientv3.Client) error {
		_, err := client.MemberRemove(ctx, m.ID())
		return err
	}, func(list []*pb.Member) bool {
		return !slices.ContainsFunc(list, func(o *pb.Member) bool { return o.ID == m.ID() })
	})
}

// join adds a learner on the new machine of a node.
func (c *cluster) join(ctx context.Context, node string) error {
	c.mu.Lock()
	c.nodes[len(c.etcd.Members())+1] = node
	c.mu.Unlock()
	// What etcd answers to an addition may be about an earlier one that it had not answered: it is put until it is heard.
	var m *testenv.Member
	err := c.ask(ctx, "adding a member on "+node, func(ctx context.Context, client *clientv3.Client) error {
		if err := removeUnstarted(ctx, client); err != nil {
			return err
		}
		var err error
		m, err = c.etcd.AddLearnerUnstarted(ctx)
		return err
	})
	if err != nil {
		return err
	}
	c.history.up(c.id(m))
	c.mu.Lock()
	c.members[node] = m
	c.mu.Unlock()
	return c.start(ctx, m)
}

// start starts a new member, again and again as systemd does: one that is told of the members by somebody who has not
// heard of its addition yet gives up.
func (c *cluster) start(ctx context.Context, m *testenv.Member) error {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	for {
		err := m.Start(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
		if pause(ctx, 100*time.Millisecond) != nil {
			return err
		}
	}
}

// removeUnstarted takes members off the list that were added and never started.
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

// promote makes a voter of a learner as soon as it can be one.
func (c *cluster) promote(ctx context.Context, m *testenv.Member) error {
	return c.change(ctx, "promoting "+m.Name, func(ctx context.Context, client *clientv3.Client) error {
		_, err := client.MemberPromote(ctx, m.ID())
		return err
	}, func(list []*pb.Member) bool {
		return slices.ContainsFunc(list, func(o *pb.Member) bool { return o.ID == m.ID() && !o.IsLearner })
	})
}
