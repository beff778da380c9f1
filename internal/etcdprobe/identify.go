package etcdprobe

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// Identify asks the server behind a sighting who it is, under each of its URLs and with each credential in turn, what
// worked last first. It takes at most three times the Prober's timeout.
//
// Removed is said only on the word of a quorum: a server whose cluster's linearizable member list no longer has it. A
// removed server ends by itself, so the list is usually one of the other members', as far as an earlier Observe has seen
// them.
func (p *Prober) Identify(ctx context.Context, s protect.Sighting) protect.Answer {
	local, cancel := context.WithTimeout(ctx, 2*p.timeout)
	defer cancel()
	var tried trail
	for _, way := range p.localWays(s) {
		if tried.hopeless(way.url) {
			continue
		}
		answer, err := p.identifyAt(local, way, s)
		if err == nil {
			return answer
		}
		tried.add(way, err)
	}
	if answer, gone := p.removedBefore(ctx, s); gone {
		return answer
	}
	if len(tried.steps) == 0 {
		return protect.Answer{Problem: "no client URL of it is known"}
	}
	return protect.Answer{Problem: tried.advice()}
}

// localWays are the ways to the server behind a sighting, the one that worked last first.
func (p *Prober) localWays(s protect.Sighting) []target {
	found := ways(localURLs(s), s.Credentials)
	if known, ok := p.recall(s); ok && slices.Contains(found, known.way) {
		return first(known.way, found)
	}
	return found
}

func (p *Prober) identifyAt(ctx context.Context, way target, s protect.Sighting) (protect.Answer, error) {
	status, err := p.status(ctx, way)
	if err != nil {
		return protect.Answer{}, err
	}
	cluster, member := status.Header.ClusterId, status.Header.MemberId
	answer := protect.Answer{Ref: reference(cluster, member), Name: named(s.Config.Name), Learner: status.IsLearner}
	// Who it is stands; the list adds its name, and whether it still belongs there.
	list := p.listAt(ctx, way, cluster, member)
	if own := find(list.members, member); own != nil {
		answer.Name, answer.Learner = named(own.Name), own.IsLearner
	}
	answer.Removed = list.err == nil && find(list.members, member) == nil
	p.remember(s, answer.Ref, way, list.members)
	return answer, nil
}

func (p *Prober) status(ctx context.Context, way target) (*pb.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	var got *pb.StatusResponse
	err := p.pool.call(ctx, way, func(ctx context.Context, conn *grpc.ClientConn) error {
		var err error
		got, err = pb.NewMaintenanceClient(conn).Status(ctx, &pb.StatusRequest{})
		if err == nil && (got.Header == nil || got.Header.ClusterId == 0 || got.Header.MemberId == 0) {
			err = strangerError{"the answer does not say who gave it"}
		}
		return err
	})
	return got, err
}

// removedBefore asks the other members about a server that answered once and is silent now. It has gone if they no longer
// list it, and list nobody else under its peer URLs: a member that was replaced on the same host is there again. A
// process that runs and is silent may be about to join anew, so nothing is concluded while there is one.
func (p *Prober) removedBefore(ctx context.Context, s protect.Sighting) (protect.Answer, bool) {
	known, ok := p.recall(s)
	if !ok || len(known.members) == 0 || s.Running() {
		return protect.Answer{}, false
	}
	cluster, member, err := numbers(known.ref)
	if err != nil {
		return protect.Answer{}, false
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	list := p.listOthers(ctx, s, cluster, member)
	if list.err != nil || find(list.members, member) != nil {
		return protect.Answer{}, false
	}
	peers := slices.Clone(s.Config.InitialPeerURLs)
	if own := find(known.members, member); own != nil {
		peers = append(peers, own.PeerURLs...)
	}
	for _, other := range list.members {
		if slices.ContainsFunc(other.PeerURLs, func(u string) bool { return slices.Contains(peers, u) }) {
			return protect.Answer{}, false
		}
	}
	return protect.Answer{Ref: known.ref, Name: named(s.Config.Name), Removed: true}, true
}

func find(members []*pb.Member, id uint64) *pb.Member {
	for _, m := range members {
		if m.ID == id {
			return m
		}
	}
	return nil
}

func reference(cluster, member uint64) protect.MemberRef {
	return protect.MemberRef{Cluster: v1alpha1.ClusterID(hex(cluster)), Member: v1alpha1.MemberID(hex(member))}
}

// hex prints an ID as etcdctl does.
func hex(id uint64) string { return strconv.FormatUint(id, 16) }

// numbers are the IDs as etcd's API has them.
func numbers(ref protect.MemberRef) (cluster, member uint64, err error) {
	if cluster, err = strconv.ParseUint(string(ref.Cluster), 16, 64); err != nil {
		return 0, 0, fmt.Errorf("parsing cluster ID %q: %w", ref.Cluster, err)
	}
	if member, err = strconv.ParseUint(string(ref.Member), 16, 64); err != nil {
		return 0, 0, fmt.Errorf("parsing member ID %q: %w", ref.Member, err)
	}
	return cluster, member, nil
}
