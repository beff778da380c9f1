package etcdprobe

import (
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
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// The schema's limits of an observation (api/v1alpha1). What it would refuse is left out or shortened here, so that one
// odd value does not keep the whole observation from being published.
const (
	// maxMembers is how many members a list may have; maxAlarms how many alarms a member.
	maxMembers, maxAlarms = 20, 8
	// maxURLs is how many URLs of a member an observation takes, longestURL how many characters of ASCII each may have.
	maxURLs, longestURL = 16, 300
	longestName         = 512
)

// Observe looks at the cluster of the member that a sighting turned out to be: it gets the member list confirmed by a
// quorum, and asks every member at once through that member's own URLs, those that are known from before without waiting
// for the list. With a member that hangs it takes the Prober's timeout, and never more than twice that. Node, NodeUID and
// Nonce are left to the caller.
func (p *Prober) Observe(ctx context.Context, s protect.Sighting, a protect.Answer) v1alpha1.Observation {
	o := v1alpha1.Observation{LocalMember: a.Ref.Member, AlarmsUnknown: true}
	cluster, member, err := numbers(a.Ref)
	if err != nil {
		o.Time, o.Problem = metav1.Now(), "the local member has not said who it is: "+clip(a.Problem)
		return o
	}
	known, _ := p.recall(s)
	early := p.ahead(ctx, s, cluster, known)
	defer early.end()
	list, local := p.list(ctx, s, cluster, member)
	if local.leader != 0 {
		o.Leader = v1alpha1.MemberID(hex(local.leader))
	}
	if o.Linearizable = list.err == nil; !o.Linearizable {
		o.Problem = clip("no member list confirmed by a quorum: " + list.err.Error())
	} else {
		way := list.way
		if local.err != nil {
			way = known.way
		}
		p.remember(s, a.Ref, way, list.members)
	}
	p.look(ctx, s, cluster, list, early, &o)
	o.Time = metav1.Now()
	return o
}

// look asks all members of a list, and one of them for the alarms.
func (p *Prober) look(ctx context.Context, s protect.Sighting, cluster uint64, list listing, early *round, o *v1alpha1.Observation) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	members := slices.SortedFunc(slices.Values(list.members), func(a, b *pb.Member) int { return strings.Compare(hex(a.ID), hex(b.ID)) })
	o.Members = make([]v1alpha1.MemberStatus, len(members))
	var alarms []*pb.AlarmMember
	var unheard error
	var asking sync.WaitGroup
	for i, m := range members {
		asking.Go(func() {
			status, ok := early.answer(m)
			if !ok {
				status = p.member(ctx, s, cluster, m, list.way)
			}
			o.Members[i] = status
		})
	}
	if o.Linearizable {
		asking.Go(func() { alarms, unheard = p.alarms(ctx, list.way, cluster) })
	}
	asking.Wait()
	for i, m := range members {
		o.Members[i].Alarms = alarmsOf(alarms, m.ID)
	}
	o.AlarmsUnknown = !o.Linearizable || unheard != nil
	if unheard != nil {
		// The cluster was seen all the same. Whether a member is corrupt is for somebody else's answer to say.
		o.Problem = clip("the alarms are unknown: " + unheard.Error())
	}
}

// member asks one member whether it lives.
func (p *Prober) member(ctx context.Context, s protect.Sighting, cluster uint64, m *pb.Member, worked target) v1alpha1.MemberStatus {
	status := describe(m)
	if m.Name == "" && len(m.ClientURLs) == 0 {
		status.Reason = "it was added and has never started"
		return status
	}
	byURL := map[string][]target{}
	var urls []string
	for _, way := range p.memberWays(s, m, worked) {
		if byURL[way.url] == nil {
			urls = append(urls, way.url)
		}
		byURL[way.url] = append(byURL[way.url], way)
	}
	proven := make([]bool, len(urls))
	why := make([]string, len(urls))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var asking sync.WaitGroup
	for i, url := range urls {
		asking.Go(func() {
			if proven[i], why[i] = p.prove(ctx, byURL[url], cluster, m); proven[i] {
				cancel() // one proof is enough
			}
		})
	}
	asking.Wait()
	if status.Healthy = slices.Contains(proven, true); !status.Healthy {
		status.Reason = clip(strings.Join(why, "; "))
	}
	return status
}

// describe is what a member list says of a member, as far as it can be published.
func describe(m *pb.Member) v1alpha1.MemberStatus {
	return v1alpha1.MemberStatus{
		ID: v1alpha1.MemberID(hex(m.ID)), Name: named(m.Name), Learner: m.IsLearner,
		PeerURLs: publishable(m.PeerURLs), ClientURLs: publishable(m.ClientURLs),
	}
}

// named is a name as far as it can be published.
func named(name string) string {
	name = oneLine(name)
	return strings.ToValidUTF8(name[:min(len(name), longestName)], "")
}

// publishable returns the URLs that an observation takes. A URL is left out whole: the beginning of one names another
// host.
func publishable(urls []string) []string {
	fit := slices.DeleteFunc(slices.Clone(urls), func(url string) bool {
		return len(url) > longestURL || strings.ContainsFunc(url, func(r rune) bool { return r < '!' || r > '~' })
	})
	return fit[:min(len(fit), maxURLs)]
}

// prove reads from a member under one URL, with each credential until one is taken.
func (p *Prober) prove(ctx context.Context, ways []target, cluster uint64, m *pb.Member) (proven bool, why string) {
	var tried trail
	for _, way := range ways {
		err := p.pool.call(ctx, way, func(ctx context.Context, conn *grpc.ClientConn) error {
			return read(ctx, conn, cluster, m.ID, m.IsLearner)
		})
		if err == nil {
			return true, ""
		}
		if tried.add(way, err); tried.hopeless(way.url) {
			break
		}
	}
	return false, tried.String()
}

// read makes one server read a key, and checks that it was that server. A voter reads with the consent of a quorum; a
// learner can only read what it has. One that refuses for want of permission has answered: etcd gets its quorum's consent
// first and looks at permissions then (server/etcdserver/v3_server.go, Range). The refusal names nobody, so it is asked
// for its name on the same connection.
func read(ctx context.Context, conn *grpc.ClientConn, cluster, member uint64, learner bool) error {
	answer, err := pb.NewKVClient(conn).Range(ctx, &pb.RangeRequest{Key: []byte(probeKey), Limit: 1, KeysOnly: true, Serializable: learner})
	if errors.Is(rpctypes.Error(err), rpctypes.ErrPermissionDenied) {
		var status *pb.StatusResponse
		if status, err = pb.NewMaintenanceClient(conn).Status(ctx, &pb.StatusRequest{}); err == nil {
			err = sameServer(status.Header, cluster, member)
		}
		return err
	}
	if err != nil {
		return err
	}
	return sameServer(answer.Header, cluster, member)
}

// alarms lists the alarms of the cluster. It goes through the raft log, so it needs a quorum. Servers up to 3.4 do not say
// who answers (server/etcdserver/api/v3rpc/maintenance.go fills the header since 3.5): they are asked for their name on
// the same connection.
func (p *Prober) alarms(ctx context.Context, way target, cluster uint64) ([]*pb.AlarmMember, error) {
	var found []*pb.AlarmMember
	err := p.pool.call(ctx, way, func(ctx context.Context, conn *grpc.ClientConn) error {
		answer, err := pb.NewMaintenanceClient(conn).Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_GET})
		if err != nil {
			return err
		}
		found = answer.Alarms
		header := answer.Header
		if header == nil {
			status, err := pb.NewMaintenanceClient(conn).Status(ctx, &pb.StatusRequest{})
			if err != nil {
				return err
			}
			header = status.Header
		}
		return sameServer(header, cluster, 0)
	})
	return found, err
}

// alarmsOf are the alarms of one member, and those of no member: etcd raises CORRUPT for member 0 where it cannot tell
// whose data are the wrong ones (server/etcdserver/corrupt.go), and then nobody's can be relied on.
func alarmsOf(alarms []*pb.AlarmMember, member uint64) []string {
	var found []string
	for _, a := range alarms {
		if (a.MemberID == member || a.MemberID == 0) && a.Alarm != pb.AlarmType_NONE {
			found = append(found, a.Alarm.String())
		}
	}
	slices.Sort(found) // names come after numbers that have none
	slices.Reverse(found)
	found = slices.Compact(found)
	found = found[:min(len(found), maxAlarms)]
	slices.Sort(found)
	return found
}
