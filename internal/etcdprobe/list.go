package etcdprobe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// probeKey is the key that is read to prove a member alive. It need not exist; etcdctl and etcd's own /health read the
// same one, so roles that allow those allow us.
const probeKey = "health"

// listing is a member list, and how it was come by.
type listing struct {
	members []*pb.Member
	// leader is the leader that the answering member named, 0 if it knew none.
	leader uint64
	// way is how the list was got.
	way target
	// err is why no quorum confirmed the list; nil means that it is linearizable.
	err error
}

// listAt asks one server for the member list. If no quorum confirms it, the server's own, older view of it comes with
// the error. Member 0 stands for any member of the cluster.
func (p *Prober) listAt(ctx context.Context, way target, cluster, member uint64) listing {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	list := listing{way: way}
	list.err = p.pool.call(ctx, way, func(ctx context.Context, conn *grpc.ClientConn) error {
		status, err := pb.NewMaintenanceClient(conn).Status(ctx, &pb.StatusRequest{})
		if err != nil {
			return err
		}
		if err = sameServer(status.Header, cluster, member); err != nil {
			return err
		}
		if status.IsLearner {
			return errors.New("it is a learner, which gives no member list")
		}
		list.leader = status.Leader
		servers := pb.NewClusterClient(conn)
		if old, unheard := servers.MemberList(ctx, &pb.MemberListRequest{}); unheard == nil && sound(old.Members) == nil {
			list.members = old.Members
		}
		// Servers up to 3.4 answer every member list from what they know themselves. After a linearizable read that is
		// as new as the read.
		if err = read(ctx, conn, cluster, member, false); err != nil {
			return err
		}
		now, err := servers.MemberList(ctx, &pb.MemberListRequest{Linearizable: true})
		if err != nil {
			return err
		}
		if err = sameServer(now.Header, cluster, member); err != nil {
			return err
		}
		if err = sound(now.Members); err != nil {
			return err
		}
		list.members = now.Members
		return nil
	})
	return list
}

// sound returns an error if a member list cannot be one, or cannot be published whole. Half of it would be none: a list
// that lacks members says that the quorum is smaller than it is.
func sound(members []*pb.Member) error {
	if len(members) == 0 {
		return errors.New("it lists no members")
	}
	if len(members) > maxMembers {
		return fmt.Errorf("it lists %d members, and no more than %d can be published", len(members), maxMembers)
	}
	seen := map[uint64]bool{}
	for _, m := range members {
		switch {
		case m == nil || m.ID == 0:
			return errors.New("it lists a member with ID 0")
		case seen[m.ID]:
			return fmt.Errorf("it lists member %x twice", m.ID)
		}
		seen[m.ID] = true
	}
	return nil
}

// list gets the member list from the local member, and from the other members that are known if that one fails or takes
// more than a third of the time that it has. It ends within the Prober's timeout.
func (p *Prober) list(ctx context.Context, s protect.Sighting, cluster, member uint64) (found, local listing) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	silent := make(chan struct{})
	var other listing
	var asking sync.WaitGroup
	asking.Go(func() {
		local = p.listLocal(ctx, s, cluster, member)
		if local.err != nil {
			close(silent)
			return
		}
		cancel()
	})
	asking.Go(func() {
		patience := time.NewTimer(p.timeout / 3)
		defer patience.Stop()
		select {
		case <-silent:
		case <-patience.C:
		case <-ctx.Done():
			other.err = ctx.Err()
			return
		}
		if other = p.listOthers(ctx, s, cluster, member); other.err == nil {
			cancel()
		}
	})
	asking.Wait()
	if local.err != nil && other.err == nil {
		return other, local
	}
	return local, local
}

// listLocal asks the server behind the sighting, and remembers the way that worked.
func (p *Prober) listLocal(ctx context.Context, s protect.Sighting, cluster, member uint64) listing {
	var tried trail
	var best listing
	for _, way := range p.localWays(s) {
		if tried.hopeless(way.url) || ctx.Err() != nil {
			continue
		}
		list := p.listAt(ctx, way, cluster, member)
		if list.err == nil {
			return list
		}
		if len(list.members) > 0 {
			best = list
		}
		tried.add(way, list.err)
	}
	if best.err = errors.New("no client URL of it is known"); len(tried.steps) > 0 {
		best.err = errors.New(tried.String())
	}
	return best
}

// listOthers asks all other members that an earlier list had, at once, and returns the first list that a quorum
// confirmed.
func (p *Prober) listOthers(ctx context.Context, s protect.Sighting, cluster, member uint64) listing {
	known, _ := p.recall(s)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	confirmed := listing{err: errors.New("no other member gave a member list")}
	var asking sync.WaitGroup
	for _, m := range known.members {
		if m.ID == member {
			continue
		}
		asking.Go(func() {
			for _, way := range p.memberWays(s, m, known.way) {
				list := p.listAt(ctx, way, cluster, m.ID)
				if list.err != nil {
					continue
				}
				mu.Lock()
				confirmed = list
				mu.Unlock()
				cancel()
				return
			}
		})
	}
	asking.Wait()
	return confirmed
}

// memberWays are the ways to a member, with the credential that worked before first.
func (p *Prober) memberWays(s protect.Sighting, m *pb.Member, worked target) []target {
	credentials := s.Credentials
	if i := slices.Index(credentials, worked.credential); i > 0 {
		credentials = slices.Concat(credentials[i:i+1], credentials[:i], credentials[i+1:])
	}
	urls := memberURLs(m)
	if known, _ := p.recall(s); known.ref.Member == v1alpha1.MemberID(hex(m.ID)) {
		// The local member can also be asked where it listens: what it advertises may lead nowhere, or to another.
		urls = unique(append(urls, localURLs(s)...))
	}
	return ways(urls, credentials)
}
