package etcdprobe

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/testenv/etcd"
	"github.com/holdfast-dev/holdfast/internal/testenv/loopback"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

func TestObserveCluster(t *testing.T) {
	t.Parallel()
	etcd := etcd.New(t, etcd.Options{Members: 3, TLS: true})
	p := newTestProber(t)
	cluster := identify(t, p, etcd.Member(1)).Ref.Cluster
	require.NotEmpty(t, cluster)
	var ids []string
	ips := map[string]string{}
	for _, m := range etcd.Members() {
		ids = append(ids, m.HexID())
		ips[m.Name] = m.IP
	}
	for _, m := range etcd.Members() {
		identity := identify(t, p, m)
		ref := evidence.MemberRef{Cluster: cluster, Member: v1alpha1.MemberID(m.HexID())}
		require.Equal(t, evidence.Identity{Ref: ref, Name: m.Name}, identity)

		got := observeUntil(t, p, m, identity, allHealthy())
		require.Empty(t, got.Problem)
		require.True(t, got.Linearizable)
		require.False(t, got.AlarmsUnknown)
		require.Equal(t, ref.Member, got.LocalMember)
		require.Contains(t, ids, string(got.Leader))
		require.WithinDuration(t, time.Now(), got.Time.Time, time.Minute)
		require.Empty(t, got.Node)
		for _, status := range got.Members {
			require.Equal(t, []string{"https://" + ips[status.Name] + ":2379"}, status.ClientURLs)
			require.Equal(t, []string{"https://" + ips[status.Name] + ":2380"}, status.PeerURLs)
			require.Empty(t, status.Alarms)
		}
	}
	client := pb.NewMaintenanceClient(etcdClient(t, etcd).ActiveConnection())
	ctx, member, identity := t.Context(), etcd.Member(1), identify(t, p, etcd.Member(1))
	// etcd itself writes the version of a new cluster.
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		before, err := client.Status(ctx, &pb.StatusRequest{})
		require.NoError(t, err)
		p.Observe(ctx, foundServer(member), identity)
		after, err := client.Status(ctx, &pb.StatusRequest{})
		require.NoError(t, err)
		require.Equal(t, before.RaftIndex, after.RaftIndex, "an observation of a cluster without alarms writes nothing to it")
	}, time.Minute, 100*time.Millisecond)
	for _, alarm := range []pb.AlarmType{pb.AlarmType_NOSPACE, pb.AlarmType_CORRUPT} {
		_, err := client.Alarm(t.Context(),
			&pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: etcd.Member(2).ID(), Alarm: alarm})
		require.NoError(t, err)
	}
	// A read succeeds in spite of an alarm, so the member still counts as healthy here.
	got := observeUntil(t, p, etcd.Member(1), identify(t, p, etcd.Member(1)), allHealthy())
	for _, status := range got.Members {
		if status.Name == "etcd2" {
			require.Equal(t, []string{"CORRUPT", "NOSPACE"}, status.Alarms)
		} else {
			require.Empty(t, status.Alarms, "alarm of another member")
		}
	}
}

func TestUnreachableMembers(t *testing.T) {
	t.Parallel()
	etcd := etcd.New(t, etcd.Options{Members: 3, TLS: true})
	p := newTestProber(t)
	local := etcd.Member(1)
	identity := identify(t, p, local)
	observeUntil(t, p, local, identity, allHealthy())

	require.NoError(t, etcd.Member(3).Kill())
	got := observeUntil(t, p, local, identity,
		map[string]string{"etcd1": "healthy", "etcd2": "healthy", "etcd3": "connection refused"})
	require.True(t, got.Linearizable)
	require.Empty(t, got.Problem)

	require.NoError(t, etcd.Member(3).Start(t.Context()))
	observeUntil(t, p, local, identity, allHealthy())

	// The member hangs, first on a reused connection, then on a new one that the kernel accepts.
	require.NoError(t, etcd.Member(3).Pause())
	oneHangs := map[string]string{"etcd1": "healthy", "etcd2": "healthy", "etcd3": noResponse}
	observeUntil(t, p, local, identity, oneHangs)
	got = observeUntil(t, p, local, identity, oneHangs)
	require.True(t, got.Linearizable)

	// With two of three members down, no quorum can confirm the member list.
	require.NoError(t, etcd.Member(2).Kill())
	got = observeUntil(t, p, local, identity,
		map[string]string{"etcd1": noResponse, "etcd2": "connection refused", "etcd3": noResponse})
	require.False(t, got.Linearizable)
	require.Contains(t, got.Problem, "no quorum confirmed the member list: "+local.ClientURL+": "+noResponse)
	require.Equal(t, identity.Ref, identify(t, p, local).Ref, "Identify needs no quorum")
}

// F5: a dead member delayed every observer.
func TestHangingLocalMember(t *testing.T) {
	t.Parallel()
	etcd := etcd.New(t, etcd.Options{Members: 3, TLS: true})
	p := newTestProber(t)
	local := etcd.Member(2)
	identity := identify(t, p, local)
	require.NoError(t, local.Pause())
	oneHangs := map[string]string{"etcd1": "healthy", "etcd2": noResponse, "etcd3": "healthy"}
	observeUntil(t, p, local, identity, oneHangs)
	got := observeUntil(t, p, local, identity, oneHangs)
	require.True(t, got.Linearizable)
	require.Equal(t, identity.Ref.Member, got.LocalMember)

	server := foundServer(local)
	server.Credentials = append(server.Credentials, adminCredential(etcd.Member(1)), adminCredential(etcd.Member(3)))
	unidentified := p.Identify(t.Context(), server)
	require.False(t, unidentified.HasAnswered())
	require.False(t, unidentified.Removed)
	require.Equal(t, local.ClientURL+": "+noResponse, unidentified.Problem, "other credentials were tried")

	require.NoError(t, local.Resume())
	require.Equal(t, identity.Ref, identify(t, p, local).Ref)
}

// All members advertise the same URL, as with 127.0.0.1 on different hosts. The URL leads to
// the first member.
func TestSharedAdvertisedURL(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		port    int // the client port of the other members at their peer addresses
		healthy []string
	}{
		"other client port":  {12379, []string{"etcd1"}},
		"shared client port": {2379, []string{"etcd1", "etcd2", "etcd3"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			loopback, err := loopback.Hold()
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, loopback.Close()) })
			shared := []string{"https://" + loopback.IP(1) + ":2379"}
			etcd := etcd.New(t, etcd.Options{
				Members: 3, TLS: true, IP: loopback.IP,
				ClientURLs: func(i int) (listen, advertise []string) {
					if i == 1 {
						return shared, shared
					}
					return []string{fmt.Sprintf("https://%s:%d", loopback.IP(i), c.port)}, shared
				},
			})
			p := newTestProber(t)
			identity := identify(t, p, etcd.Member(1))
			var got v1alpha1.Observation
			require.EventuallyWithT(t, func(collect *assert.CollectT) { // retries during an election
				got = p.Observe(t.Context(), foundServer(etcd.Member(1)), identity)
				require.True(collect, got.Linearizable)
				var healthy []string
				for _, status := range got.Members {
					if status.Healthy {
						healthy = append(healthy, status.Name)
					}
				}
				require.ElementsMatch(collect, c.healthy, healthy)
			}, 20*time.Second, 100*time.Millisecond)
			require.Len(t, got.Members, 3)
			for _, status := range got.Members {
				require.Equal(t, shared, status.ClientURLs)
				if !status.Healthy {
					want := fmt.Sprintf("responded as member %s, not %s", etcd.Member(1).HexID(), status.ID)
					require.Contains(t, status.Reason, want)
				}
			}
		})
	}
}

func TestElection(t *testing.T) {
	t.Run("ends before the retry", func(t *testing.T) {
		s := newFakeServer(t, func(n int32) error {
			if n%2 == 1 {
				return rpctypes.ErrGRPCLeaderChanged
			}
			return nil
		})
		got := s.observe(t)
		require.True(t, got.Linearizable)
		require.True(t, got.Members[0].Healthy)
		require.Equal(t, "the alarms are unknown: no leader", got.Problem)
		require.True(t, got.AlarmsUnknown, "an empty list means that there are no alarms")
	})
	t.Run("lasts", func(t *testing.T) {
		s := newFakeServer(t, func(int32) error { return rpctypes.ErrGRPCLeaderChanged })
		got := s.observe(t)
		require.False(t, got.Linearizable)
		require.True(t, got.AlarmsUnknown, "the alarms were not requested")
		require.False(t, got.Members[0].Healthy)
		require.Equal(t, s.url+": leader changed", got.Members[0].Reason)
		require.EqualValues(t, 4, s.reads.Load(), "each request is repeated once")
	})
}

func TestWrongServer(t *testing.T) {
	for name, c := range map[string]struct {
		cluster, member uint64
		want            string
	}{
		"another cluster": {0xbad, fakeMember, "responded as a member of cluster bad, not cdf818194e3a8c32"},
		"another member":  {fakeCluster, 0xbad, "responded as member bad, not 3a1575389de83a83"},
		"no header":       {0, 0, "responded without its IDs"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFakeServerAs(t, c.cluster, c.member, nil)
			p := newTestProber(t)
			got := p.Observe(t.Context(), s.found(), fakeIdentity())
			require.False(t, got.Linearizable)
			require.Contains(t, got.Problem, c.want)
			local := evidence.FoundServer{Server: s.found(), Identity: fakeIdentity()}
			status := p.probeMember(t.Context(), local, s.self(), endpoint{})
			require.False(t, status.Healthy)
			require.Equal(t, s.url+": "+c.want, status.Reason)
		})
	}
}

func TestObserveUnidentifiedServer(t *testing.T) {
	got := newTestProber(t).Observe(t.Context(), evidence.Server{}, evidence.Identity{Problem: "connection refused"})
	require.Equal(t, "the local member is not identified: connection refused", got.Problem)
	require.Empty(t, got.Members)
}

// The advertised URL of a member may be unreachable from every host. Then only the agent on the
// member's own host can prove that it is healthy (F6).
func TestLocalMemberListenURL(t *testing.T) {
	s := newFakeServer(t, nil)
	s.list = []*pb.Member{{ID: fakeMember, Name: "fake", ClientURLs: []string{"http://192.0.2.1:2379"}}}
	p := newTestProber(t)
	got := p.Observe(t.Context(), s.found(), p.Identify(t.Context(), s.found()))
	require.True(t, got.Members[0].Healthy, got.Members[0].Reason)

	// The local listen URL must not be used for another member.
	s.list = append(s.list, &pb.Member{ID: 7, Name: "other", ClientURLs: []string{"http://192.0.2.7:2379"}})
	got = p.Observe(t.Context(), s.found(), fakeIdentity())
	require.Equal(t, v1alpha1.MemberID("7"), got.Members[1].ID)
	require.NotContains(t, got.Members[1].Reason, s.url)
}

func TestAlarms(t *testing.T) {
	s := newFakeServer(t, nil)
	s.alarms = &pb.AlarmResponse{
		Header: &pb.ResponseHeader{ClusterId: 0xbad, MemberId: 1},
		Alarms: []*pb.AlarmMember{{MemberID: fakeMember, Alarm: pb.AlarmType_NOSPACE}},
	}
	got := s.observe(t)
	require.True(t, got.AlarmsUnknown, "the response is from another cluster")
	require.Equal(t, "the alarms are unknown: responded as a member of cluster bad, not cdf818194e3a8c32", got.Problem)

	s.alarms = &pb.AlarmResponse{Header: s.header}
	for i := range 100 {
		alarm := &pb.AlarmMember{MemberID: fakeMember, Alarm: pb.AlarmType(i % 50)}
		s.alarms.Alarms = append(s.alarms.Alarms, alarm)
	}
	got = s.observe(t)
	require.False(t, got.AlarmsUnknown)
	require.Len(t, got.Members[0].Alarms, maxAlarms)
	require.Contains(t, got.Members[0].Alarms, "CORRUPT")
	require.Contains(t, got.Members[0].Alarms, "NOSPACE")
	requireValid(t, got)
}

// Servers up to 3.4 send alarms without a header.
func TestAlarmsFromEtcd34(t *testing.T) {
	s := newFakeServer(t, nil)
	s.alarms = &pb.AlarmResponse{}
	got := s.observe(t)
	require.False(t, got.AlarmsUnknown, got.Problem)
	require.Empty(t, got.Problem)
	require.Empty(t, got.Members[0].Alarms)

	s.alarms = &pb.AlarmResponse{Alarms: []*pb.AlarmMember{{Alarm: pb.AlarmType_CORRUPT}}}
	got = s.observe(t)
	require.Equal(t, []string{"CORRUPT"}, got.Members[0].Alarms, "an alarm of member 0 counts for every member")
}

func TestUntrustedText(t *testing.T) {
	s := newFakeServer(t, func(int32) error {
		return status.Error(codes.Unknown, "one\nholdfast: etcd member removed\x1b[2J\x00"+strings.Repeat("w", 10_000))
	})
	s.others = []*pb.Member{{
		ID: 7, Name: "etcd\n2\x1b[2J\x7f\u202e",
		ClientURLs: []string{"unix:///run/containerd/containerd.sock", "http://", "::", s.url},
	}}
	p := newTestProber(t)
	got := p.Observe(t.Context(), s.found(), p.Identify(t.Context(), s.found()))
	requireValid(t, got)
	require.Contains(t, got.Problem, "one holdfast: etcd member removed [2J w")
	require.Equal(t, "etcd 2 [2J", got.Members[0].Name)
	require.NotContains(t, got.Members[0].Reason, "containerd", "a local socket of another member was dialed")
	require.NotContains(t, got.Problem, "\n")
}

// TestWithinLimits checks that the API server accepts each observation, whatever etcd returned.
func TestWithinLimits(t *testing.T) {
	longest := "https://" + strings.Repeat("a", maxURLLength-len("https://"))
	urls := []string{
		longest + "a", "https://10.0.0.1:2379", "https://b\u00fccher:2379", "https://a b", "https://<x>", longest,
	}
	for range 2 * maxURLs {
		urls = append(urls, "https://10.0.0.2:2379")
	}
	member := func(m v1alpha1.MemberStatus) v1alpha1.Observation {
		return v1alpha1.Observation{Linearizable: true, Members: []v1alpha1.MemberStatus{m}}
	}
	t.Run("one member", func(t *testing.T) {
		o := member(v1alpha1.MemberStatus{
			ID: "2", Name: "etcd\u00fc", PeerURLs: urls, Reason: `reading "a<b>&\c": ` + strings.Repeat("x", 300),
		})
		before := *o.DeepCopy()
		got := withinLimits(o)
		requireValid(t, got)
		require.Equal(t, "etcd?", got.Members[0].Name)
		require.Equal(t, []string{"https://10.0.0.1:2379", longest, "https://10.0.0.2:2379"}, got.Members[0].PeerURLs[:3])
		require.Len(t, got.Members[0].PeerURLs, maxURLs)
		require.Empty(t, got.Members[0].ClientURLs)
		require.Contains(t, got.Members[0].Reason, "reading 'a(b)+/c': xxx")
		require.True(t, strings.HasSuffix(got.Members[0].Reason, "xxx..."))
		require.Equal(t, before, o, "the argument was modified")
	})
	t.Run("long problem", func(t *testing.T) {
		requireValid(t, withinLimits(v1alpha1.Observation{Problem: strings.Repeat("\u00fc", 2000)}))
	})
	realistic, huge := v1alpha1.Observation{Linearizable: true}, v1alpha1.Observation{Linearizable: true}
	for i := range maxMembers {
		m := v1alpha1.MemberStatus{
			ID: v1alpha1.MemberID(strconv.FormatInt(int64(i+1), 16)), Name: "control-plane-1.cluster.example.org",
			PeerURLs:   []string{"https://192.0.2.1:2380", "https://control-plane-1.cluster.example.org:2380"},
			ClientURLs: []string{"https://192.0.2.1:2379", "https://control-plane-1.cluster.example.org:2379"},
			Reason:     strings.Repeat("connection refused; ", 50), Alarms: []string{"CORRUPT", "NOSPACE"},
		}
		realistic.Members = append(realistic.Members, m)
		m.PeerURLs = slices.Repeat([]string{longest}, maxURLs)
		huge.Members = append(huge.Members, m)
	}
	t.Run("many members", func(t *testing.T) {
		got := withinLimits(realistic)
		requireValid(t, got)
		require.True(t, got.Linearizable)
		for i, m := range got.Members {
			require.Equal(t, realistic.Members[i].PeerURLs, m.PeerURLs)
			require.GreaterOrEqual(t, len(m.Reason), 160, "messages show 160 characters")
		}
	})
	t.Run("list too long", func(t *testing.T) {
		got := withinLimits(huge)
		requireValid(t, got)
		require.Empty(t, got.Members)
		require.False(t, got.Linearizable)
		require.True(t, got.AlarmsUnknown)
		require.Contains(t, got.Problem, "at most 8000 are supported")
	})
}
