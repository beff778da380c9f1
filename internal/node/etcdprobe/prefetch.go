package etcdprobe

import (
	"context"
	"slices"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// A prefetch probes the members of a cached list while Observe waits for a new list. Without it, a
// hanging member would cost its timeout after the time that the list takes during an election, and
// the sum exceeds the three seconds that the webhook waits.
type prefetch struct {
	members map[uint64]*prefetchedMember
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// prefetchedMember is the probe of one member. status and timedOut are set once done is closed.
type prefetchedMember struct {
	member *pb.Member
	status v1alpha1.MemberStatus
	// timedOut reports whether the probe used the whole timeout.
	timedOut bool
	done     chan struct{}
}

// startPrefetch starts to probe the cached members. The caller must call stop.
func (p *Prober) startPrefetch(ctx context.Context, local identifiedServer, cached cachedServer) *prefetch {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	f := &prefetch{members: map[uint64]*prefetchedMember{}, cancel: cancel}
	for _, m := range cached.members {
		entry := &prefetchedMember{member: m, done: make(chan struct{})}
		f.members[m.ID] = entry
		f.running.Go(func() {
			defer close(entry.done)
			entry.status = p.probeMember(ctx, local, m, cached.endpoint)
			entry.timedOut = ctx.Err() != nil
		})
	}
	return f
}

// result waits for the probe of a member and returns its status. ok is false if the member
// has to be probed again: the new list describes it differently, or the probe failed before
// its timeout. Such a failure may be due to an election that is over now.
func (f *prefetch) result(m *pb.Member) (status v1alpha1.MemberStatus, ok bool) {
	entry := f.members[m.ID]
	if entry == nil || entry.member.Name != m.Name || entry.member.IsLearner != m.IsLearner ||
		!slices.Equal(entry.member.ClientURLs, m.ClientURLs) || !slices.Equal(entry.member.PeerURLs, m.PeerURLs) {
		return status, false
	}
	<-entry.done
	return entry.status, entry.status.Healthy || entry.timedOut
}

// stop cancels the probes that still run, and waits for them to return.
func (f *prefetch) stop() {
	f.cancel()
	f.running.Wait()
}
