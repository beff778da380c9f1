package etcdprobe

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// Observe reports the health of every member of a local server's cluster. It fetches a
// member list that a quorum confirms, and then probes all other members in parallel through
// their own URLs. If a member hangs, Observe takes the Prober's timeout more, so never more than
// twice that. The caller sets Node, NodeUID and Nonce.
func (p *Prober) Observe(ctx context.Context, server evidence.Server, identity evidence.Identity) v1alpha1.Observation {
	o := v1alpha1.Observation{LocalMember: identity.Ref.Member, AlarmsUnknown: true}
	if !identity.HasAnswered() {
		o.Time, o.Problem = metav1.Now(), "the local member is not identified: "+identity.Problem
		return withinLimits(o)
	}
	local := evidence.FoundServer{Server: server, Identity: identity}
	list, own := p.fetchMembers(ctx, local)
	if own.leader != 0 {
		o.Leader = memberID(own.leader)
	}
	if o.Linearizable = list.err == nil; !o.Linearizable {
		o.Problem = "no quorum confirmed the member list: " + list.err.Error()
	} else {
		worked := list.endpoint
		if own.err != nil { // the list came from another member
			cached, _ := p.cached(server)
			worked = cached.endpoint
		}
		p.updateCache(server, identity.Ref, worked, list.members)
	}
	o.Access = p.access(server)
	p.probeList(ctx, &o, local, list)
	o.Time = metav1.Now()
	return withinLimits(o)
}

// access returns how people reach a local server: through the endpoint that worked last.
func (p *Prober) access(server evidence.Server) *v1alpha1.Access {
	cached, _ := p.cached(server)
	root, c := p.hostRoot, cached.endpoint.credential
	return evidence.SafeAccess(&v1alpha1.Access{
		Distribution: server.Distribution, Endpoint: cached.endpoint.url,
		CACert: root.HostPath(c.CA), Cert: root.HostPath(c.Cert), Key: root.HostPath(c.Key),
	})
}

// probeList probes the members of a list in parallel, and requests the cluster's alarms if there
// may be any. It adds the results to the observation. The member that returned a confirmed list
// needs no further probe.
func (p *Prober) probeList(
	ctx context.Context, o *v1alpha1.Observation, local evidence.FoundServer, list memberList,
) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	members := slices.SortedFunc(slices.Values(list.members), func(a, b *pb.Member) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
	o.Members = make([]v1alpha1.MemberStatus, len(members))
	var requests sync.WaitGroup
	for i, m := range members {
		if list.err == nil && list.server == memberID(m.ID) {
			o.Members[i] = newMemberStatus(m)
			o.Members[i].Healthy = true
			continue
		}
		requests.Go(func() { o.Members[i] = p.probeMember(ctx, local, m, list.endpoint) })
	}
	var alarms []*pb.AlarmMember
	var err error
	if o.Linearizable && !list.noAlarms {
		requests.Go(func() { alarms, err = p.listAlarms(ctx, list.endpoint, local.Ref.Cluster) })
	}
	requests.Wait()
	for i, m := range members {
		o.Members[i].Alarms = alarmsOfMember(alarms, m.ID)
	}
	if o.AlarmsUnknown = !o.Linearizable || err != nil; err != nil {
		// The rest of the observation is valid. Another agent's observation may have the alarms.
		o.Problem = "the alarms are unknown: " + err.Error()
	}
}

// probeMember probes one member through all of its URLs in parallel. One success is enough.
func (p *Prober) probeMember(
	ctx context.Context, local evidence.FoundServer, m *pb.Member, worked endpoint,
) v1alpha1.MemberStatus {
	status := newMemberStatus(m)
	if m.Name == "" && len(m.ClientURLs) == 0 {
		status.Reason = "it was added and has never started"
		return status
	}
	byURL := map[string][]endpoint{}
	var urls []string
	for _, e := range p.memberEndpoints(local.Server, m, worked) {
		if byURL[e.url] == nil {
			urls = append(urls, e.url)
		}
		byURL[e.url] = append(byURL[e.url], e)
	}
	healthy := make([]bool, len(urls))
	reasons := make([]string, len(urls))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var probes sync.WaitGroup
	for i, url := range urls {
		probes.Go(func() {
			if healthy[i], reasons[i] = p.probeURL(ctx, byURL[url], local.Ref.Cluster, m); healthy[i] {
				cancel()
			}
		})
	}
	probes.Wait()
	if status.Healthy = slices.Contains(healthy, true); !status.Healthy {
		status.Reason = strings.Join(reasons, "; ")
	}
	return status
}

// probeURL reads from a member at one URL. It tries each credential until one is accepted.
func (p *Prober) probeURL(
	ctx context.Context, endpoints []endpoint, cluster v1alpha1.ClusterID, m *pb.Member,
) (healthy bool, reason string) {
	var failed attempts
	of := evidence.MemberRef{Cluster: cluster, Member: memberID(m.ID)}
	for _, e := range endpoints {
		err := p.conns.call(ctx, e, func(ctx context.Context, conn *grpc.ClientConn) error {
			return readKey(ctx, conn, of, m.IsLearner)
		})
		if err == nil {
			return true, ""
		}
		if failed.add(e, err); failed.isUnreachable(e.url) {
			break
		}
	}
	return false, failed.String()
}

// newMemberStatus returns the fields of a member status that come from the member list.
func newMemberStatus(m *pb.Member) v1alpha1.MemberStatus {
	return v1alpha1.MemberStatus{
		ID: memberID(m.ID), Name: m.Name, Learner: m.IsLearner,
		PeerURLs: m.PeerURLs, ClientURLs: m.ClientURLs,
	}
}

// probeKey is the key that readKey reads. The key need not exist. etcdctl and etcd's own
// /health read the same key, so roles that permit those checks permit this one.
const probeKey = "health"

// readKey makes one member serve a read, and verifies that this member responded. A voter
// serves a linearizable read, which needs a quorum. A learner can only serve a serializable
// read, from its own data.
//
// A "permission denied" response is proof as well: etcd confirms the read index with a quorum
// before it checks permissions (server/etcdserver/v3_server.go, Range). That response has no
// header, so readKey then requests the server's status on the same connection.
func readKey(ctx context.Context, conn *grpc.ClientConn, of evidence.MemberRef, learner bool) error {
	response, err := pb.NewKVClient(conn).Range(ctx, &pb.RangeRequest{
		Key: []byte(probeKey), Limit: 1, KeysOnly: true, Serializable: learner,
	})
	if errors.Is(rpctypes.Error(err), rpctypes.ErrPermissionDenied) {
		var status *pb.StatusResponse
		if status, err = pb.NewMaintenanceClient(conn).Status(ctx, &pb.StatusRequest{}); err == nil {
			err = checkHeader(status.Header, of)
		}
		return err
	}
	if err != nil {
		return err
	}
	return checkHeader(response.Header, of)
}

// listAlarms returns the cluster's alarms. The request goes through the raft log, so it needs
// a quorum. Servers up to 3.4 send no header (server/etcdserver/api/v3rpc/maintenance.go fills
// it since 3.5); listAlarms then requests the server's status on the same connection.
func (p *Prober) listAlarms(ctx context.Context, e endpoint, cluster v1alpha1.ClusterID) ([]*pb.AlarmMember, error) {
	var alarms []*pb.AlarmMember
	err := p.conns.call(ctx, e, func(ctx context.Context, conn *grpc.ClientConn) error {
		response, err := pb.NewMaintenanceClient(conn).Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_GET})
		if err != nil {
			return err
		}
		alarms = response.Alarms
		header := response.Header
		if header == nil {
			status, err := pb.NewMaintenanceClient(conn).Status(ctx, &pb.StatusRequest{})
			if err != nil {
				return err
			}
			header = status.Header
		}
		return checkCluster(header, cluster)
	})
	return alarms, err
}

// alarmsOfMember returns the names of one member's alarms, with those of member 0: etcd raises
// CORRUPT for member 0 if it cannot tell which member's data is wrong
// (server/etcdserver/corrupt.go), and then no member's data can be trusted.
func alarmsOfMember(alarms []*pb.AlarmMember, member uint64) []string {
	var names []string
	for _, a := range alarms {
		if (a.MemberID == member || a.MemberID == 0) && a.Alarm != pb.AlarmType_NONE {
			names = append(names, a.Alarm.String())
		}
	}
	// An unknown alarm type prints as a number, which sorts before the names. In reverse order
	// the limit drops the numbers first.
	slices.Sort(names)
	slices.Reverse(names)
	names = slices.Compact(names)
	names = names[:min(len(names), maxAlarms)]
	slices.Sort(names)
	return names
}
