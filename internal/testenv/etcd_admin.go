package testenv

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

// Client returns a client of all running members. The caller closes it; its calls need a context with a deadline.
func (e *Etcd) Client(ctx context.Context) (*clientv3.Client, error) {
	return e.client(ctx, e.Endpoints())
}

// Client returns a client of this member alone.
func (m *Member) Client(ctx context.Context) (*clientv3.Client, error) {
	return m.etcd.client(ctx, []string{m.ClientURL})
}

func (e *Etcd) client(ctx context.Context, endpoints []string) (*clientv3.Client, error) {
	config, err := e.ClientTLS()
	if err != nil {
		return nil, err
	}
	eager := grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: readyPoll, Multiplier: 1.5, MaxDelay: 4 * readyPoll},
		MinConnectTimeout: time.Second,
	})
	client, err := clientv3.New(clientv3.Config{
		Context: ctx, Endpoints: endpoints, TLS: config, Logger: zap.NewNop(), DialOptions: []grpc.DialOption{eager},
	})
	if err != nil {
		return nil, fmt.Errorf("making a client of etcd: %w", err)
	}
	return client, nil
}

// ClientTLS returns the TLS configuration of an administrator, nil without TLS.
func (e *Etcd) ClientTLS() (*tls.Config, error) {
	if e.pki == nil {
		return nil, nil
	}
	return e.pki.clientTLS()
}

// MemberIDs returns the IDs in a linearizable member list, by etcd's name; a member that never started has none and is
// listed by its peer URL.
func (e *Etcd) MemberIDs(ctx context.Context) (map[string]uint64, error) {
	ids := map[string]uint64{}
	err := e.administer(ctx, func(ctx context.Context, client *clientv3.Client) error {
		list, err := client.MemberList(ctx)
		if err != nil {
			return err
		}
		for _, m := range list.Members {
			name := m.Name
			if name == "" && len(m.PeerURLs) > 0 {
				name = m.PeerURLs[0]
			}
			ids[name] = m.ID
		}
		return nil
	})
	return ids, err
}

// AddLearner adds a learner, starts it and waits until it answers.
func (e *Etcd) AddLearner(ctx context.Context) (*Member, error) {
	m, err := e.AddLearnerUnstarted(ctx)
	if err != nil {
		return nil, err
	}
	return m, m.Start(ctx)
}

// AddLearnerUnstarted adds a learner to the member list and starts nothing.
func (e *Etcd) AddLearnerUnstarted(ctx context.Context) (*Member, error) {
	return e.add(ctx, (*clientv3.Client).MemberAddAsLearner)
}

// AddVoterUnstarted adds a voter to the member list and starts nothing: from now on it counts, and it is not there.
func (e *Etcd) AddVoterUnstarted(ctx context.Context) (*Member, error) {
	return e.add(ctx, (*clientv3.Client).MemberAdd)
}

func (e *Etcd) add(ctx context.Context,
	call func(*clientv3.Client, context.Context, []string) (*clientv3.MemberAddResponse, error),
) (*Member, error) {
	m := e.newMember(len(e.Members()) + 1)
	err := e.administer(ctx, func(ctx context.Context, client *clientv3.Client) error {
		added, err := call(client, ctx, []string{m.PeerURL})
		if err == nil {
			m.id = added.Member.ID
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("adding %s: %w", m.Name, err)
	}
	e.mu.Lock()
	e.seen[m.Name] = m.PeerURL
	e.members = append(e.members, m)
	e.mu.Unlock()
	return m, m.layOut("existing")
}

// Promote makes a voter of a learner, as soon as it has caught up.
func (e *Etcd) Promote(ctx context.Context, m *Member) error {
	err := e.administer(ctx, func(ctx context.Context, client *clientv3.Client) error {
		_, err := client.MemberPromote(ctx, m.ID())
		return err
	})
	if err != nil {
		return fmt.Errorf("promoting %s: %w", m.Name, err)
	}
	return m.WaitReady(ctx)
}

// RemoveMember takes a member off the list. Its process ends by itself soon after, which may be before it has answered: so
// the others are asked, if there are any.
func (e *Etcd) RemoveMember(ctx context.Context, m *Member) error {
	others := slices.DeleteFunc(e.Endpoints(), func(url string) bool { return url == m.ClientURL })
	if len(others) == 0 {
		others = e.Endpoints()
	}
	err := e.administerVia(ctx, others, func(ctx context.Context, client *clientv3.Client) error {
		_, err := client.MemberRemove(ctx, m.ID())
		return err
	})
	if err != nil {
		return fmt.Errorf("removing %s: %w", m.Name, err)
	}
	e.Forget(m)
	return nil
}

// Forget takes a member out of what those who join are told. RemoveMember does it; whoever removes a member by a client of
// his own does it himself.
func (e *Etcd) Forget(m *Member) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.seen, m.Name)
}

// administer calls etcd, again while it says that it is not ready for a membership change yet.
func (e *Etcd) administer(ctx context.Context, call func(context.Context, *clientv3.Client) error) error {
	return e.administerVia(ctx, e.Endpoints(), call)
}

func (e *Etcd) administerVia(ctx context.Context, endpoints []string, call func(context.Context, *clientv3.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	client, err := e.client(ctx, endpoints)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // it always tells that its context has been cancelled
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		err := call(ctx, client)
		if !errors.Is(err, rpctypes.ErrUnhealthy) && !errors.Is(err, rpctypes.ErrMemberLearnerNotReady) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		}
	}
}
