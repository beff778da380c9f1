// Package etcdprobe queries etcd servers over gRPC. Prober.Identify returns the cluster and
// member ID of a server on this host. Prober.Observe reports the health of every member of
// that server's cluster, and probes each member through the member's own client URLs.
//
// A response proves that a member is healthy only if its header carries the IDs of that
// cluster and that member. Some distributions advertise 127.0.0.1 for every member; without
// the check, one server would count once for each member. A failed probe proves nothing: it
// is reported as a reason, never as evidence that a member is gone.
package etcdprobe

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// defaultTimeout is the default time that one member has to respond. Members that work answer
// within a few milliseconds, and every observation waits this long for one that hangs.
const defaultTimeout = 500 * time.Millisecond

// Options configures a Prober.
type Options struct {
	// Timeout is the time that one member has to respond, 0.5 s if zero. Observe takes at
	// most twice as long.
	Timeout time.Duration
	// HostRoot is where the agent has the host's files. Observations name them by the host's paths.
	HostRoot hostfs.Root
}

// A Prober queries etcd servers. It keeps open connections to the members that responded,
// and caches for each local server the endpoint and the member list that worked last. It is
// safe for concurrent use. Close releases the connections.
type Prober struct {
	timeout  time.Duration
	hostRoot hostfs.Root
	conns    *connPool
	metrics  *metrics

	mu    sync.Mutex // guards cache
	cache map[string]cachedServer
}

// cachedServer is the result of the last successful query of one local server.
type cachedServer struct {
	ref evidence.MemberRef
	// endpoint is the URL and credential that worked last.
	endpoint endpoint
	// members is the last known member list, empty if there is none yet.
	members []*pb.Member
	// lastProbed is the time of the last query of this server, successful or not.
	lastProbed time.Time
}

// New returns a Prober. It opens no connections yet.
func New(opts Options) *Prober {
	timeout := cmp.Or(opts.Timeout, defaultTimeout)
	m := newMetrics()
	return &Prober{
		timeout:  timeout,
		hostRoot: opts.HostRoot,
		conns:    newConnPool(timeout, opts.HostRoot, m.countOutcome),
		metrics:  m,
		cache:    map[string]cachedServer{},
	}
}

// Close closes all connections. A connection in use is closed when its call returns.
func (p *Prober) Close() { p.conns.close() }

// cached returns the cached state of a server and marks the entry as used.
func (p *Prober) cached(server evidence.Server) (cachedServer, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	entry, ok := p.cache[cacheKey(server)]
	if ok {
		entry.lastProbed = time.Now()
		p.cache[cacheKey(server)] = entry
	}
	return entry, ok
}

func isIdle(_ string, entry cachedServer) bool { return time.Since(entry.lastProbed) > maxIdleTime }

// updateCache stores the endpoint of a server, and its member list if there is one. It also
// drops idle entries: the path of a container's data directory changes with every start of
// the container, so old keys would accumulate.
func (p *Prober) updateCache(server evidence.Server, ref evidence.MemberRef, worked endpoint, members []*pb.Member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := cacheKey(server)
	if before := p.cache[key]; before.ref == ref && len(members) == 0 {
		members = before.members
	}
	p.cache[key] = cachedServer{ref: ref, endpoint: worked, members: members, lastProbed: time.Now()}
	maps.DeleteFunc(p.cache, isIdle)
}

// cacheKey returns a key that stays the same for one server from scan to scan, whether its
// process or only its data directory is found.
func cacheKey(server evidence.Server) string {
	if server.Config.DataDir != "" {
		return server.Config.DataDir
	}
	return cmp.Or(server.Unit, server.Where)
}

// Identify returns the cluster and member ID of a server on this host. It tries each local
// URL with each credential in turn, starting with the endpoint that worked last. It takes at
// most three times the Prober's timeout.
//
// Identify sets Removed only if a linearizable member list of the server's cluster lacks the
// server. A removed server stops itself, so this list usually comes from another member that
// an earlier Observe has found.
func (p *Prober) Identify(ctx context.Context, server evidence.Server) evidence.Identity {
	local, cancel := context.WithTimeout(ctx, 2*p.timeout)
	defer cancel()
	var failed attempts
	for _, e := range p.localEndpoints(server) {
		if failed.isUnreachable(e.url) {
			continue
		}
		identity, err := p.identifyAt(local, e, server)
		if err == nil {
			return identity
		}
		failed.add(e, err)
	}
	if identity, removed := p.confirmRemoval(ctx, server); removed {
		return identity
	}
	return evidence.Identity{Problem: failed.withHint()}
}

// localEndpoints returns the endpoints of a local server, the one that worked last first.
func (p *Prober) localEndpoints(server evidence.Server) []endpoint {
	endpoints := pairEndpoints(localURLs(server), server.Credentials)
	if cached, ok := p.cached(server); ok && slices.Contains(endpoints, cached.endpoint) {
		return withoutDuplicates(append([]endpoint{cached.endpoint}, endpoints...))
	}
	return endpoints
}

func (p *Prober) identifyAt(ctx context.Context, e endpoint, server evidence.Server) (evidence.Identity, error) {
	status, err := p.fetchStatus(ctx, e)
	if err != nil {
		return evidence.Identity{}, err
	}
	if server.Stored != nil {
		// Two servers of a host can have the same client URL: one of them is stopped, or has a network of
		// its own.
		if err := checkHeader(status.Header, *server.Stored); err != nil {
			return evidence.Identity{}, err
		}
	}
	ref := memberRef(status.Header.ClusterId, status.Header.MemberId)
	identity := evidence.Identity{Ref: ref, Name: publishableName(server.Config.Name), Learner: status.IsLearner}
	// The IDs are valid without a member list. A list adds the name and the membership.
	list := p.fetchMembersAt(ctx, e, ref)
	own := findMember(list.members, ref.Member)
	if own != nil {
		identity.Name, identity.Learner = publishableName(own.Name), own.IsLearner
	}
	identity.Removed = list.err == nil && own == nil
	p.updateCache(server, ref, e, list.members)
	return identity, nil
}

func (p *Prober) fetchStatus(ctx context.Context, e endpoint) (*pb.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	var status *pb.StatusResponse
	err := p.conns.call(ctx, e, func(ctx context.Context, conn *grpc.ClientConn) error {
		var err error
		status, err = pb.NewMaintenanceClient(conn).Status(ctx, &pb.StatusRequest{})
		if err == nil && (status.Header == nil || status.Header.ClusterId == 0 || status.Header.MemberId == 0) {
			err = wrongServerError{"responded without its IDs"}
		}
		return err
	})
	return status, err
}

// confirmRemoval asks the other members about a server that was identified before and does
// not respond now. It reports true if a quorum-confirmed member list has neither the server
// nor another member with one of its peer URLs; such a member would be a replacement on the
// same host. It reports false while the server's process runs, because the process may be
// about to rejoin. It does not if the log names the removed member: the cluster never accepts
// that member again, and systemd or the kubelet start its process again and again.
func (p *Prober) confirmRemoval(ctx context.Context, server evidence.Server) (evidence.Identity, bool) {
	cached, _ := p.cached(server)
	// The data of another member is that of a replacement.
	isReplaced := server.Stored != nil && *server.Stored != cached.ref
	if len(cached.members) == 0 || isReplaced || server.IsRunning() && server.Stored == nil {
		return evidence.Identity{}, false
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	list := p.fetchMembersFromOthers(ctx, evidence.FoundServer{
		Server: server, Identity: evidence.Identity{Ref: cached.ref},
	})
	if list.err != nil || findMember(list.members, cached.ref.Member) != nil {
		return evidence.Identity{}, false
	}
	peerURLs := slices.Clone(server.Config.InitialPeerURLs)
	if own := findMember(cached.members, cached.ref.Member); own != nil {
		peerURLs = append(peerURLs, own.PeerURLs...)
	}
	for _, other := range list.members {
		if slices.ContainsFunc(other.PeerURLs, func(u string) bool { return slices.Contains(peerURLs, u) }) {
			return evidence.Identity{}, false
		}
	}
	return evidence.Identity{Ref: cached.ref, Name: publishableName(server.Config.Name), Removed: true}, true
}

// findMember returns the member with an ID, nil if the list has none.
func findMember(members []*pb.Member, id v1alpha1.MemberID) *pb.Member {
	for _, m := range members {
		if memberID(m.ID) == id {
			return m
		}
	}
	return nil
}

func memberRef(cluster, member uint64) evidence.MemberRef {
	return evidence.MemberRef{Cluster: clusterID(cluster), Member: memberID(member)}
}

// clusterID and memberID format an ID as etcdctl does.
func clusterID(id uint64) v1alpha1.ClusterID { return v1alpha1.ClusterID(strconv.FormatUint(id, 16)) }

func memberID(id uint64) v1alpha1.MemberID { return v1alpha1.MemberID(strconv.FormatUint(id, 16)) }
