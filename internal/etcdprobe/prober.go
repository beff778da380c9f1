// Package etcdprobe asks etcd. Identify asks the server behind one sighting who it is; Observe asks every member of its
// cluster whether it lives, each through its own endpoint.
//
// An answer is a proof only if it names the member and the cluster that were asked: some distributions advertise
// 127.0.0.1 for every member, and then one member would be counted once for each. A question that gets no answer proves
// nothing, so every failure comes back in words and none as a "no".
package etcdprobe

import (
	"cmp"
	"maps"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// defaultTimeout is how long one member may take to answer. Above it, every observer of a cluster with one silent
// machine would be too late for the webhook, which waits 3 s.
const defaultTimeout = 1500 * time.Millisecond

// Options are the settings of a Prober.
type Options struct {
	// Timeout is how long one member may take to answer, 1.5 s if zero. A whole Observe takes at most twice as long.
	Timeout time.Duration
}

// Prober keeps connections to the members that answered, and which credential each server took. It is safe for
// concurrent use. Close it.
type Prober struct {
	timeout time.Duration
	pool    *pool
	metrics *metrics

	mu    sync.Mutex // guards known
	known map[string]memory
}

// memory is what is remembered of the server behind a sighting.
type memory struct {
	ref protect.MemberRef
	// way is the URL and the credential that worked last.
	way target
	// members is the last member list, empty if there never was one.
	members []*pb.Member
	// notAfter is until when the client certificate of the way is valid, as last read.
	notAfter time.Time
	// asked is when the server was last asked for, whether it answered or not.
	asked time.Time
}

// New returns a Prober. It connects to nothing yet.
func New(opts Options) *Prober {
	timeout := cmp.Or(opts.Timeout, defaultTimeout)
	m := newMetrics()
	return &Prober{timeout: timeout, pool: newPool(timeout, m.asked), metrics: m, known: map[string]memory{}}
}

// Close drops all connections: those that are in use when their question has been answered.
func (p *Prober) Close() { p.pool.close() }

func (p *Prober) recall(s protect.Sighting) (memory, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m, ok := p.known[identity(s)]
	if ok {
		m.asked = time.Now()
		p.known[identity(s)] = m
	}
	return m, ok
}

// inUse is what is remembered of the servers that are still asked for.
func (p *Prober) inUse() map[string]memory {
	p.mu.Lock()
	defer p.mu.Unlock()
	found := maps.Clone(p.known)
	maps.DeleteFunc(found, unused)
	return found
}

// unused says that nobody has asked for a server for so long that it is gone.
func unused(_ string, m memory) bool { return time.Since(m.asked) > idleLife }

// remember keeps how a server was reached, and the member list if there is one. It forgets the servers that nobody has
// asked for since: a container has a data directory of another name each time that it is started.
func (p *Prober) remember(s protect.Sighting, ref protect.MemberRef, way target, members []*pb.Member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if before := p.known[identity(s)]; before.ref == ref && len(members) == 0 {
		members = before.members
	}
	p.known[identity(s)] = memory{ref: ref, way: way, members: members, asked: time.Now()}
	maps.DeleteFunc(p.known, unused)
}

// identity is what stays the same of one server from look to look, whether its process or only its data is seen.
func identity(s protect.Sighting) string {
	if s.Config.DataDir != "" {
		return s.Config.DataDir
	}
	return cmp.Or(s.Unit, s.Where)
}
