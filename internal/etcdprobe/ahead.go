package etcdprobe

import (
	"context"
	"slices"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// round is the questions to the members of an earlier list, begun before the new list is there. The webhook waits three
// seconds; a member that hangs must not cost its timeout after that of a list which had to wait for an election.
type round struct {
	asked  map[uint64]*question
	cancel context.CancelFunc
	asking sync.WaitGroup
}

// question is one member that is being asked.
type question struct {
	member *pb.Member
	// status is the answer once done is closed, and late says that all of the time was used up for it.
	status v1alpha1.MemberStatus
	late   bool
	done   chan struct{}
}

// ahead begins to ask the members that are known. Whoever calls it ends the round.
func (p *Prober) ahead(ctx context.Context, s protect.Sighting, cluster uint64, known memory) *round {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	r := &round{asked: map[uint64]*question{}, cancel: cancel}
	for _, m := range known.members {
		q := &question{member: m, done: make(chan struct{})}
		r.asked[m.ID] = q
		r.asking.Go(func() {
			defer close(q.done)
			q.status = p.member(ctx, s, cluster, m, known.way)
			q.late = ctx.Err() != nil
		})
	}
	return r
}

// answer returns what came of the question to a member, if it is as good as a new one: the list says the same of the member
// as the one before, and it was proven or has used up its time. What failed sooner may have met an election that is over
// by now, and failed quickly enough to be asked again.
func (r *round) answer(m *pb.Member) (status v1alpha1.MemberStatus, ok bool) {
	q := r.asked[m.ID]
	if q == nil || q.member.Name != m.Name || q.member.IsLearner != m.IsLearner ||
		!slices.Equal(q.member.ClientURLs, m.ClientURLs) || !slices.Equal(q.member.PeerURLs, m.PeerURLs) {
		return status, false
	}
	<-q.done
	return q.status, q.status.Healthy || q.late
}

// end stops what is still being asked, and waits for it.
func (r *round) end() {
	r.cancel()
	r.asking.Wait()
}
