package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// Client returns a client of all running members. The caller closes it. Its calls need a
// context with a deadline.
func (c *Cluster) Client(ctx context.Context) (*clientv3.Client, error) {
	return c.client(ctx, c.Endpoints())
}

// Client returns a client of this member only.
func (m *Member) Client(ctx context.Context) (*clientv3.Client, error) {
	return m.etcd.client(ctx, []string{m.ClientURL})
}

func (c *Cluster) client(ctx context.Context, endpoints []string) (*clientv3.Client, error) {
	config, err := c.ClientTLS()
	if err != nil {
		return nil, err
	}
	eager := grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: pollInterval, Multiplier: 1.5, MaxDelay: 4 * pollInterval},
		MinConnectTimeout: time.Second,
	})
	client, err := clientv3.New(clientv3.Config{
		Context: ctx, Endpoints: endpoints, TLS: config, Logger: zap.NewNop(), DialOptions: []grpc.DialOption{eager},
	})
	if err != nil {
		return nil, fmt.Errorf("creating a client of etcd: %w", err)
	}
	return client, nil
}

// ClientTLS returns an administrator's TLS configuration, or nil without TLS.
func (c *Cluster) ClientTLS() (*tls.Config, error) {
	if c.ca == nil {
		return nil, nil
	}
	pair, err := c.admin.TLS()
	if err != nil {
		return nil, err
	}
	return &tls.Config{RootCAs: c.ca.Pool(), Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}, nil
}

// AddLearner adds a learner, starts it and waits until it is ready.
func (c *Cluster) AddLearner(ctx context.Context) (*Member, error) {
	m, err := c.AddLearnerUnstarted(ctx)
	if err != nil {
		return nil, err
	}
	return m, m.Start(ctx)
}

// AddLearnerUnstarted adds a learner to the member list without starting it.
func (c *Cluster) AddLearnerUnstarted(ctx context.Context) (*Member, error) {
	return c.add(ctx, (*clientv3.Client).MemberAddAsLearner)
}

// AddVoterUnstarted adds a voter to the member list without starting it. The voter counts for
// quorum from now on.
func (c *Cluster) AddVoterUnstarted(ctx context.Context) (*Member, error) {
	return c.add(ctx, (*clientv3.Client).MemberAdd)
}

func (c *Cluster) add(ctx context.Context,
	call func(*clientv3.Client, context.Context, []string) (*clientv3.MemberAddResponse, error),
) (*Member, error) {
	m := c.newMember(len(c.Members()) + 1)
	err := c.administer(ctx, func(ctx context.Context, client *clientv3.Client) error {
		added, err := call(client, ctx, []string{m.PeerURL})
		if err == nil {
			m.id = added.Member.ID
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("adding %s: %w", m.Name, err)
	}
	c.mu.Lock()
	c.initialMembers[m.Name] = m.PeerURL
	c.members = append(c.members, m)
	c.mu.Unlock()
	return m, m.layOut("existing")
}

// Promote makes a learner a voter, as soon as it has caught up.
func (c *Cluster) Promote(ctx context.Context, m *Member) error {
	err := c.administer(ctx, func(ctx context.Context, client *clientv3.Client) error {
		_, err := client.MemberPromote(ctx, m.ID())
		return err
	})
	if err != nil {
		return fmt.Errorf("promoting %s: %w", m.Name, err)
	}
	return m.WaitReady(ctx)
}

// RemoveMember removes a member from the member list. The member's process ends soon after,
// possibly before it responds, so RemoveMember calls the other members if there are any.
func (c *Cluster) RemoveMember(ctx context.Context, m *Member) error {
	others := slices.DeleteFunc(c.Endpoints(), func(url string) bool { return url == m.ClientURL })
	if len(others) == 0 {
		others = c.Endpoints()
	}
	err := c.administerVia(ctx, others, func(ctx context.Context, client *clientv3.Client) error {
		_, err := client.MemberRemove(ctx, m.ID())
		return err
	})
	if err != nil {
		return fmt.Errorf("removing %s: %w", m.Name, err)
	}
	c.Forget(m)
	return nil
}

// Forget removes a member from the initial cluster of members that join later. RemoveMember
// calls it. Call it after removing a member with another client.
func (c *Cluster) Forget(m *Member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.initialMembers, m.Name)
}

// administer calls etcd, and retries while etcd is not ready for a membership change.
func (c *Cluster) administer(ctx context.Context, call func(context.Context, *clientv3.Client) error) error {
	return c.administerVia(ctx, c.Endpoints(), call)
}

func (c *Cluster) administerVia(ctx context.Context, endpoints []string,
	call func(context.Context, *clientv3.Client) error,
) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	client, err := c.client(ctx, endpoints)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // always the error of its cancelled context
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		err := call(ctx, client)
		// After the refusal of a learner, the client tries another member.
		isTransient := errors.Is(err, rpctypes.ErrUnhealthy) || errors.Is(err, rpctypes.ErrMemberLearnerNotReady) ||
			errors.Is(err, rpctypes.Error(rpctypes.ErrGRPCNotSupportedForLearner))
		if !isTransient {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		}
	}
}
