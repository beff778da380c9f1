package etcdprobe

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

const fakeCluster, fakeMember = 0xcdf818194e3a8c32, 0x3a1575389de83a83

// server is an etcd that does what a real one of this version cannot be brought to do.
type server struct {
	pb.UnimplementedKVServer
	pb.UnimplementedClusterServer
	pb.UnimplementedMaintenanceServer
	url string
	// others are in the member list besides the server itself; list is the whole list if it is set.
	others, list []*pb.Member
	// alarms is what it says when it is asked for alarms; without one it says that there is no leader.
	alarms *pb.AlarmResponse
	// ranges answers the n-th read, from 1.
	ranges func(n int32) error
	reads  atomic.Int32
	header *pb.ResponseHeader
}

func (s *server) Range(context.Context, *pb.RangeRequest) (*pb.RangeResponse, error) {
	if err := s.ranges(s.reads.Add(1)); err != nil {
		return nil, err
	}
	return &pb.RangeResponse{Header: s.header}, nil
}

// MemberList answers from what it knows itself whatever is asked, as servers up to 3.4 do.
func (s *server) MemberList(context.Context, *pb.MemberListRequest) (*pb.MemberListResponse, error) {
	if s.list != nil {
		return &pb.MemberListResponse{Header: s.header, Members: s.list}, nil
	}
	return &pb.MemberListResponse{Header: s.header, Members: append([]*pb.Member{{ID: fakeMember, Name: "fake", ClientURLs: []string{s.url}}}, s.others...)}, nil
}

func (s *server) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	return &pb.StatusResponse{Header: s.header, Version: "3.4.33", Leader: fakeMember}, nil
}

func (s *server) Alarm(context.Context, *pb.AlarmRequest) (*pb.AlarmResponse, error) {
	if s.alarms != nil {
		return s.alarms, nil
	}
	return nil, rpctypes.ErrGRPCNoLeader
}

func serve(t *testing.T, ranges func(int32) error) *server {
	t.Helper()
	return serveAs(t, &pb.ResponseHeader{ClusterId: fakeCluster, MemberId: fakeMember}, ranges)
}

func serveAs(t *testing.T, header *pb.ResponseHeader, ranges func(int32) error) *server {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &server{url: "http://" + listener.Addr().String(), ranges: ranges, header: header}
	g := grpc.NewServer()
	pb.RegisterKVServer(g, s)
	pb.RegisterClusterServer(g, s)
	pb.RegisterMaintenanceServer(g, s)
	var serving errgroup.Group
	serving.Go(func() error { return g.Serve(listener) })
	t.Cleanup(func() {
		g.Stop()
		require.NoError(t, serving.Wait())
	})
	return s
}

func (s *server) sighting() protect.Sighting {
	return protect.Sighting{Where: "fake", PID: 1, Config: protect.Config{ListenClientURLs: []string{s.url}}}
}

func probe(t *testing.T, o Options) *Prober {
	t.Helper()
	p := New(o)
	t.Cleanup(p.Close)
	return p
}

func TestListOfAnOldServerIsConfirmedByAReadBeforeIt(t *testing.T) {
	s := serve(t, func(int32) error { return rpctypes.ErrGRPCTimeout })
	p := probe(t, Options{})
	answer := p.Identify(t.Context(), s.sighting())
	require.Equal(t, reference(fakeCluster, fakeMember), answer.Ref)
	seen := p.Observe(t.Context(), s.sighting(), answer)
	require.False(t, seen.Linearizable, "a server up to 3.4 lists members without asking anybody")
	require.Contains(t, seen.Problem, "request timed out")
	require.Len(t, seen.Members, 1)
	require.False(t, seen.Members[0].Healthy)
}

func TestElectionIsNotDeath(t *testing.T) {
	s := serve(t, func(n int32) error {
		if n%2 == 1 {
			return rpctypes.ErrGRPCLeaderChanged
		}
		return nil
	})
	seen := probe(t, Options{}).Observe(t.Context(), s.sighting(), protect.Answer{Ref: reference(fakeCluster, fakeMember)})
	require.True(t, seen.Linearizable)
	require.True(t, seen.Members[0].Healthy)
	require.Equal(t, "the alarms are unknown: no leader", seen.Problem)
	require.True(t, seen.AlarmsUnknown, "an empty list of alarms must not be taken for the answer that there are none")
}

func TestListThatCannotBePublishedWholeIsNone(t *testing.T) {
	s := serve(t, func(int32) error { return nil })
	for i := range uint64(maxMembers) {
		s.others = append(s.others, &pb.Member{ID: i + 1})
	}
	observe := func() v1alpha1.Observation {
		return probe(t, Options{}).Observe(t.Context(), s.sighting(), protect.Answer{Ref: reference(fakeCluster, fakeMember)})
	}
	seen := observe()
	require.False(t, seen.Linearizable, "a list that lacks members says that the quorum is smaller than it is")
	require.Empty(t, seen.Members)
	require.True(t, seen.AlarmsUnknown)
	require.Contains(t, seen.Problem, "it lists 21 members, and no more than 20 can be published")
	s.others = s.others[1:]
	seen = observe()
	require.True(t, seen.Linearizable)
	require.Len(t, seen.Members, maxMembers)
}

func TestOddValuesOfAMemberAreLeftOut(t *testing.T) {
	longest := "https://" + strings.Repeat("a", longestURL-len("https://"))
	urls := []string{longest + "a", "https://10.0.0.1:2379", "https://b\u00fccher:2379", "https://a b", longest}
	for range 2 * maxURLs {
		urls = append(urls, "https://10.0.0.2:2379")
	}
	odd := &pb.Member{ID: 2, Name: strings.Repeat("a", longestName-1) + "\u00fc", PeerURLs: urls}
	status := probe(t, Options{}).member(t.Context(), protect.Sighting{}, fakeCluster, odd, target{})
	require.Equal(t, strings.Repeat("a", longestName-1), status.Name)
	require.Equal(t, []string{"https://10.0.0.1:2379", longest, "https://10.0.0.2:2379"}, status.PeerURLs[:3])
	require.Len(t, status.PeerURLs, maxURLs)
	require.Empty(t, status.ClientURLs)
	require.Len(t, odd.PeerURLs, len(urls))
	require.Equal(t, longest+"a", odd.PeerURLs[0], "what was left out is still there to be asked")
}

func TestLooksPileUpNoConnections(t *testing.T) {
	s := serve(t, func(int32) error { return nil })
	p := probe(t, Options{})
	for range 5 {
		require.True(t, p.Observe(t.Context(), s.sighting(), protect.Answer{Ref: reference(fakeCluster, fakeMember)}).Members[0].Healthy)
	}
	require.LessOrEqual(t, len(p.pool.idle[target{url: s.url}]), 2, "one for the member, one for the alarms")
}

func TestLastingElectionProvesNothing(t *testing.T) {
	s := serve(t, func(int32) error { return rpctypes.ErrGRPCLeaderChanged })
	seen := probe(t, Options{}).Observe(t.Context(), s.sighting(), protect.Answer{Ref: reference(fakeCluster, fakeMember)})
	require.False(t, seen.Linearizable)
	require.True(t, seen.AlarmsUnknown, "nobody was asked for them")
	require.False(t, seen.Members[0].Healthy)
	require.Equal(t, s.url+": leader changed", seen.Members[0].Reason)
	require.EqualValues(t, 4, s.reads.Load(), "each question is asked twice and no more")
}

func TestAnswersOfStrangersProveNothing(t *testing.T) {
	for name, c := range map[string]struct {
		header *pb.ResponseHeader
		want   string
	}{
		"another cluster": {&pb.ResponseHeader{ClusterId: 0xbad, MemberId: fakeMember}, "it belongs to cluster bad, not cdf818194e3a8c32"},
		"another member":  {&pb.ResponseHeader{ClusterId: fakeCluster, MemberId: 0xbad}, "it is member bad, not 3a1575389de83a83"},
		"nobody":          {nil, "the answer does not say who gave it"},
	} {
		t.Run(name, func(t *testing.T) {
			s := serveAs(t, c.header, func(int32) error { return nil })
			p := probe(t, Options{})
			seen := p.Observe(t.Context(), s.sighting(), protect.Answer{Ref: reference(fakeCluster, fakeMember)})
			require.False(t, seen.Linearizable)
			require.Contains(t, seen.Problem, c.want)
			status := p.member(t.Context(), s.sighting(), fakeCluster, &pb.Member{ID: fakeMember, Name: "fake", ClientURLs: []string{s.url}}, target{})
			require.False(t, status.Healthy)
			require.Equal(t, s.url+": "+c.want, status.Reason)
		})
	}
}

func TestWayThatWorkedIsTriedFirst(t *testing.T) {
	s := serve(t, func(int32) error { return nil })
	seen := s.sighting()
	seen.Config.ListenClientURLs = []string{"http://127.0.0.1:1", s.url}
	p := probe(t, Options{})
	require.Equal(t, []target{{url: "http://127.0.0.1:1"}, {url: s.url}}, p.localWays(seen))
	require.True(t, p.Identify(t.Context(), seen).Answered())
	require.Equal(t, []target{{url: s.url}, {url: "http://127.0.0.1:1"}}, p.localWays(seen))
}

func TestObservingWhatNeverAnsweredSaysSo(t *testing.T) {
	seen := probe(t, Options{}).Observe(t.Context(), protect.Sighting{}, protect.Answer{Problem: "connection refused"})
	require.Equal(t, "the local member has not said who it is: connection refused", seen.Problem)
	require.Empty(t, seen.Members)
	require.Equal(t, "no client URL of it is known", probe(t, Options{}).Identify(t.Context(), protect.Sighting{}).Problem)
}

func TestConnectionsAreKeptWhileTheyWork(t *testing.T) {
	s := serve(t, func(n int32) error {
		if n == 3 {
			return rpctypes.ErrGRPCCorrupt
		}
		return nil
	})
	p := newPool(500*time.Millisecond, func(outcome) {})
	t.Cleanup(p.close)
	way := target{url: s.url}
	var conns []*grpc.ClientConn
	ask := func(ctx context.Context, conn *grpc.ClientConn) error {
		conns = append(conns, conn)
		return read(ctx, conn, fakeCluster, fakeMember, false)
	}
	require.NoError(t, p.call(t.Context(), way, ask))
	require.NoError(t, p.call(t.Context(), way, ask))
	require.Len(t, conns, 2)
	require.Same(t, conns[0], conns[1])

	// One that fails is not used again.
	require.ErrorContains(t, p.call(t.Context(), way, ask), "corrupt cluster")
	require.Equal(t, connectivity.Shutdown, conns[0].GetState())
	require.NoError(t, p.call(t.Context(), way, ask))
	require.NotSame(t, conns[0], conns[len(conns)-1])

	// One that is old is not used any more, however well it works: it would hide what a new one meets.
	old := p.idle[way][0]
	old.made = old.made.Add(-longestLife - time.Second)
	require.NoError(t, p.call(t.Context(), way, ask))
	require.NotSame(t, old.conn, conns[len(conns)-1])
	require.Equal(t, connectivity.Shutdown, old.conn.GetState())

	// One that no look has used for long goes when another comes back.
	idle := p.idle[way][0]
	idle.lastUsed = idle.lastUsed.Add(-idleLife - time.Second)
	other := serve(t, func(int32) error { return nil })
	require.NoError(t, p.call(t.Context(), target{url: other.url}, ask))
	require.NotContains(t, p.idle, way)
	require.Equal(t, connectivity.Shutdown, idle.conn.GetState())
}
