package etcdprobe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// memberList is a cluster's member list as one server returned it.
type memberList struct {
	members []*pb.Member
	// leader is the leader according to the responding server, 0 if it has none.
	leader uint64
	// endpoint is the source of the list, and server the member there.
	endpoint endpoint
	server   v1alpha1.MemberID
	// err is the reason that no quorum confirmed the list. If it is nil, the list is linearizable.
	err error
	// noAlarms means that the cluster has no alarm. Otherwise only a request for the alarms tells.
	noAlarms bool
}

// fetchMembersAt requests the member list from one server. If no quorum confirms the list, it
// returns the server's own, possibly stale list together with the error.
func (p *Prober) fetchMembersAt(ctx context.Context, e endpoint, of evidence.MemberRef) memberList {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	list := memberList{endpoint: e, server: of.Member}
	list.err = p.conns.call(ctx, e, func(ctx context.Context, conn *grpc.ClientConn) error {
		client := pb.NewClusterClient(conn)
		var status *pb.StatusResponse
		var stale *pb.MemberListResponse
		var statusErr, staleErr error
		var requests sync.WaitGroup
		requests.Go(func() { status, statusErr = pb.NewMaintenanceClient(conn).Status(ctx, &pb.StatusRequest{}) })
		requests.Go(func() { stale, staleErr = client.MemberList(ctx, &pb.MemberListRequest{}) })
		readErr := readKey(ctx, conn, of, false)
		requests.Wait()
		if statusErr != nil {
			return statusErr
		}
		if err := checkHeader(status.Header, of); err != nil {
			return err
		}
		if status.IsLearner {
			return errors.New("the server is a learner and cannot return a linearizable member list")
		}
		list.leader = status.Leader
		if staleErr == nil && validateMembers(stale.Members) == nil {
			list.members = stale.Members
		}
		if readErr != nil {
			return readErr
		}
		return list.confirm(ctx, conn, of)
	})
	return list
}

// confirm reads the member list, and whether there are alarms, from a server that has just served a
// linearizable read. The data of the server is then as recent as that read. So its own list needs
// no further confirmation, which etcd offers since 3.5. The errors in its status contain the alarms
// since 3.4 (StatusResponse in etcd's api/etcdserverpb/rpc.proto). So only a cluster with an error
// needs the request for alarms, which writes to its raft log.
func (l *memberList) confirm(ctx context.Context, conn *grpc.ClientConn, of evidence.MemberRef) error {
	var noAlarms bool
	var requests sync.WaitGroup
	requests.Go(func() {
		status, err := pb.NewMaintenanceClient(conn).Status(ctx, &pb.StatusRequest{})
		noAlarms = err == nil && len(status.Errors) == 0 && checkHeader(status.Header, of) == nil
	})
	confirmed, err := pb.NewClusterClient(conn).MemberList(ctx, &pb.MemberListRequest{})
	requests.Wait()
	if err != nil {
		return err
	}
	if err = checkList(confirmed, of); err == nil {
		l.members, l.noAlarms = confirmed.Members, noAlarms
	}
	return err
}

// ListMembers returns the member list as the local server stores it, sorted by ID. No quorum
// confirms the list, and it may be stale: it is a hint that a new observation is due, and never
// evidence. It costs one small request to the endpoint that worked last. It returns an error if
// that request fails, and before the first successful query of the server, when there is no
// endpoint.
func (p *Prober) ListMembers(
	ctx context.Context, server evidence.Server, identity evidence.Identity,
) ([]v1alpha1.MemberStatus, error) {
	cached, ok := p.cached(server)
	if !ok || cached.ref != identity.Ref {
		return nil, errors.New("the server has not been queried yet")
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	var list []v1alpha1.MemberStatus
	err := p.conns.call(ctx, cached.endpoint, func(ctx context.Context, conn *grpc.ClientConn) error {
		// Not linearizable: servers since 3.5 answer from their own data, as those up to 3.4 always do.
		stored, err := pb.NewClusterClient(conn).MemberList(ctx, &pb.MemberListRequest{Linearizable: false})
		if err != nil {
			return err
		}
		if err = checkList(stored, identity.Ref); err != nil {
			return err
		}
		list = make([]v1alpha1.MemberStatus, len(stored.Members))
		for i, m := range stored.Members {
			list[i] = newMemberStatus(m)
		}
		return nil
	})
	slices.SortFunc(list, func(a, b v1alpha1.MemberStatus) int { return cmp.Compare(a.ID, b.ID) })
	return list, err
}

func checkList(list *pb.MemberListResponse, of evidence.MemberRef) error {
	if err := checkHeader(list.Header, of); err != nil {
		return err
	}
	return validateMembers(list.Members)
}

// validateMembers returns an error if a member list is invalid or does not fit into an
// observation. A shortened list is no option: it would make the quorum look smaller than it is.
func validateMembers(members []*pb.Member) error {
	if len(members) == 0 {
		return errors.New("the member list is empty")
	}
	if len(members) > maxMembers {
		return fmt.Errorf("the member list has %d members, at most %d are supported", len(members), maxMembers)
	}
	seen := map[uint64]bool{}
	for _, m := range members {
		switch {
		case m == nil || m.ID == 0:
			return errors.New("the member list has a member with ID 0")
		case seen[m.ID]:
			return fmt.Errorf("the member list has member %x twice", m.ID)
		}
		seen[m.ID] = true
	}
	return nil
}

// fetchMembers requests the member list from the local server. If that fails, or takes more
// than a tenth of the Prober's timeout, it also requests the list from the other cached
// members. Within the Prober's timeout, it returns the best list and the local server's own.
func (p *Prober) fetchMembers(ctx context.Context, local evidence.FoundServer) (best, own memberList) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	localFailed := make(chan struct{})
	var other memberList
	var requests sync.WaitGroup
	requests.Go(func() {
		own = p.fetchMembersFromLocal(ctx, local)
		if own.err != nil {
			close(localFailed)
			return
		}
		cancel()
	})
	requests.Go(func() {
		delay := time.NewTimer(p.timeout / 10)
		defer delay.Stop()
		select {
		case <-localFailed:
		case <-delay.C:
		case <-ctx.Done():
			other.err = ctx.Err()
			return
		}
		if other = p.fetchMembersFromOthers(ctx, local); other.err == nil {
			cancel()
		}
	})
	requests.Wait()
	if own.err != nil && other.err == nil {
		return other, own
	}
	return own, own
}

// fetchMembersFromLocal requests the member list from the local server. It tries each
// endpoint until one returns a confirmed list.
func (p *Prober) fetchMembersFromLocal(ctx context.Context, local evidence.FoundServer) memberList {
	var failed attempts
	var stale memberList
	for _, e := range p.localEndpoints(local.Server) {
		if failed.isUnreachable(e.url) || ctx.Err() != nil {
			continue
		}
		list := p.fetchMembersAt(ctx, e, local.Ref)
		if list.err == nil {
			return list
		}
		if len(list.members) > 0 {
			stale = list
		}
		failed.add(e, list.err)
	}
	stale.err = errors.New(failed.String())
	return stale
}

// fetchMembersFromOthers requests the member list from all other cached members in parallel,
// and returns the first list that a quorum confirms.
func (p *Prober) fetchMembersFromOthers(ctx context.Context, local evidence.FoundServer) memberList {
	cached, _ := p.cached(local.Server)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	confirmed := memberList{err: errors.New("no other member returned a confirmed member list")}
	var requests sync.WaitGroup
	for _, m := range cached.members {
		of := evidence.MemberRef{Cluster: local.Ref.Cluster, Member: memberID(m.ID)}
		if of == local.Ref {
			continue
		}
		requests.Go(func() {
			for _, e := range p.memberEndpoints(local.Server, m, cached.endpoint) {
				list := p.fetchMembersAt(ctx, e, of)
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
	requests.Wait()
	return confirmed
}

// memberEndpoints returns the endpoints of a member, with the credential of the endpoint that
// worked last first.
func (p *Prober) memberEndpoints(server evidence.Server, m *pb.Member, worked endpoint) []endpoint {
	credentials := server.Credentials
	if slices.Contains(credentials, worked.credential) {
		credentials = withoutDuplicates(append([]evidence.Credential{worked.credential}, credentials...))
	}
	urls := memberURLs(m)
	if cached, _ := p.cached(server); cached.ref.Member == memberID(m.ID) {
		// The local member is also probed at its listen URLs, because its advertised URLs may
		// be unreachable or lead to another server.
		urls = withoutDuplicates(append(urls, localURLs(server)...))
	}
	return pairEndpoints(urls, credentials)
}

// localURLs returns the URLs to reach a server from its own host, loopback URLs first. For a
// running server without configured URLs it returns etcd's default.
func localURLs(server evidence.Server) []string {
	listen := server.Config.ListenClientURLs
	if len(listen) == 0 && len(server.Config.AdvertiseClientURLs) == 0 && server.IsRunning() {
		listen = []string{"http://localhost:2379"}
	}
	var urls []string
	for _, raw := range listen {
		urls = append(urls, dialableURLs(raw)...)
	}
	loopback := slices.DeleteFunc(slices.Clone(urls), func(u string) bool { return !isLoopback(u) })
	for _, raw := range server.Config.AdvertiseClientURLs {
		urls = append(urls, dialableURLs(raw)...)
	}
	return withoutDuplicates(append(loopback, urls...))
}

// dialableURLs converts a listen URL to URLs that a client can dial. An unspecified address
// (0.0.0.0 or ::) becomes the loopback address.
func dialableURLs(raw string) []string {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme == "" {
		return nil
	}
	ip := net.ParseIP(u.Hostname())
	if ip == nil || !ip.IsUnspecified() {
		return []string{raw}
	}
	urls := []string{withHost(u, "127.0.0.1")}
	if ip.To4() == nil {
		urls = append(urls, withHost(u, "::1"))
	}
	return urls
}

// memberURLs returns the URLs to reach a member of a member list. For each client URL with a
// loopback address it adds URLs with the hosts of the peer URLs, because the other members
// must be able to reach those.
func memberURLs(m *pb.Member) []string {
	var urls, derived []string
	for _, raw := range m.ClientURLs {
		u, err := url.Parse(raw)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || len(urls) == maxURLs {
			continue // the list names servers on other hosts, so a Unix socket is invalid
		}
		urls = append(urls, raw)
		for _, peer := range m.PeerURLs[:min(len(m.PeerURLs), maxURLs)] {
			if host := hostname(peer); host != "" && isLoopback(raw) {
				derived = append(derived, withHost(u, host))
			}
		}
	}
	urls = withoutDuplicates(append(urls, derived...))
	return urls[:min(len(urls), maxURLs)]
}

// isLoopback reports whether a URL refers to the host on which it is dialed.
func isLoopback(raw string) bool {
	host := hostname(raw)
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && (ip.IsLoopback() || ip.IsUnspecified())
}

func hostname(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

func withHost(u *url.URL, host string) string {
	changed := *u
	changed.Host = net.JoinHostPort(host, u.Port())
	return changed.String()
}

// withoutDuplicates returns the items in their order, each only once.
func withoutDuplicates[T comparable](items []T) []T {
	var distinct []T
	for _, item := range items {
		if !slices.Contains(distinct, item) {
			distinct = append(distinct, item)
		}
	}
	return distinct
}
