package etcdprobe

import (
	"net/url"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/internal/testenv/etcd"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// A server up to 3.4 returns its own list without a quorum, so only the read before it confirms
// the list.
func TestListFromEtcd34(t *testing.T) {
	s := newFakeServer(t, func(int32) error { return rpctypes.ErrGRPCTimeout })
	p := newTestProber(t)
	identity := p.Identify(t.Context(), s.found())
	require.Equal(t, fakeIdentity().Ref, identity.Ref)
	got := p.Observe(t.Context(), s.found(), identity)
	require.False(t, got.Linearizable)
	require.Contains(t, got.Problem, "request timed out")
	require.Len(t, got.Members, 1)
	require.False(t, got.Members[0].Healthy)
}

// A list is confirmed by a read before it. That read proves the health of its server, which is read
// only once.
func TestListAfterRead(t *testing.T) {
	var s *fakeServer
	s = newFakeServer(t, func(int32) error {
		for s.lists.Load() == 0 {
			_ = loop.Wait(t.Context(), time.Millisecond, nil)
		}
		return nil
	})
	s.oldLists, s.list = 1, []*pb.Member{s.self(), {ID: 7}} // A member joins after the first answer.
	got := s.observe(t)
	require.True(t, got.Linearizable, got.Problem)
	require.Len(t, got.Members, 2)
	require.True(t, got.Members[1].Healthy)
	require.EqualValues(t, 1, s.reads.Load())
}

// The list of the local server shows each change of the membership: a member that was added, that
// has started, that was promoted or removed. It needs no quorum.
func TestListMembers(t *testing.T) {
	t.Parallel()
	etcd := etcd.New(t, etcd.Options{Members: 3, TLS: true})
	p, local := newTestProber(t), etcd.Member(1)
	_, err := p.ListMembers(t.Context(), foundServer(local), evidence.Identity{Ref: fakeIdentity().Ref})
	require.ErrorContains(t, err, "has not been queried yet")
	identity := identify(t, p, local)
	listed := func() (list []v1alpha1.MemberStatus) {
		// On a busy machine, the server may answer too late.
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			var err error
			list, err = p.ListMembers(t.Context(), foundServer(local), identity)
			require.NoError(c, err)
		}, 20*time.Second, time.Millisecond)
		return list
	}
	before := listed()
	require.Len(t, before, 3)
	require.Equal(t, before, listed())
	requireChange := func(what string, change func() error) {
		before := listed()
		require.NoError(t, change(), what)
		isChanged := func() bool { return !reflect.DeepEqual(before, listed()) }
		require.Eventually(t, isChanged, 20*time.Second, time.Millisecond, what)
	}
	requireChange("added", func() error { _, err := etcd.AddLearnerUnstarted(t.Context()); return err })
	learner := etcd.Member(4)
	requireChange("started", func() error { return learner.Start(t.Context()) })
	requireChange("promoted", func() error { return etcd.Promote(t.Context(), learner) })
	requireChange("removed", func() error { return etcd.RemoveMember(t.Context(), learner) })
	require.Equal(t, before, listed())

	require.NoError(t, etcd.Member(2).Kill())
	require.NoError(t, etcd.Member(3).Kill())
	require.Equal(t, before, listed(), "without a quorum")
	require.NoError(t, local.Kill())
	_, err = p.ListMembers(t.Context(), foundServer(local), identity)
	require.Error(t, err)
}

// Another server at the same URL, or one that returns an impossible list, shows no change.
func TestListMembersOfWrongServer(t *testing.T) {
	s := newFakeServer(t, nil)
	p := newTestProber(t)
	identity := p.Identify(t.Context(), s.found())
	list, err := p.ListMembers(t.Context(), s.found(), identity)
	require.NoError(t, err)
	require.Len(t, list, 1)
	s.list = []*pb.Member{{ID: fakeMember, Name: "fake"}, {ID: fakeMember, Name: "fake"}}
	_, err = p.ListMembers(t.Context(), s.found(), identity)
	require.ErrorContains(t, err, "twice")
	s.list, s.header = nil, &pb.ResponseHeader{ClusterId: fakeCluster, MemberId: fakeMember + 1}
	_, err = p.ListMembers(t.Context(), s.found(), identity)
	require.Error(t, err)
}

func TestInvalidList(t *testing.T) {
	self := &pb.Member{ID: fakeMember, Name: "fake"}
	members := func(n uint64) []*pb.Member {
		list := []*pb.Member{self}
		for i := range n - 1 {
			list = append(list, &pb.Member{ID: i + 1, ClientURLs: []string{"http://127.0.0.1:1"}})
		}
		return list
	}
	for name, c := range map[string]struct {
		list []*pb.Member
		want string
	}{
		"empty":         {[]*pb.Member{}, "the member list is empty"},
		"21 members":    {members(maxMembers + 1), "the member list has 21 members, at most 20 are supported"},
		"100 members":   {members(100), "the member list has 100 members, at most 20 are supported"},
		"1000 members":  {members(1000), ": the response has more than 168 fields"},
		"10000 members": {members(10_000), ": received message larger than max (249889 vs. 32768)"},
		"zero ID":       {[]*pb.Member{self, {ID: 0, Name: "zero"}}, "the member list has a member with ID 0"},
		"duplicate ID":  {[]*pb.Member{self, self}, "the member list has member 3a1575389de83a83 twice"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFakeServer(t, nil)
			s.list = c.list
			p := newTestProber(t)
			identity := p.Identify(t.Context(), s.found())
			require.Equal(t, fakeIdentity().Ref, identity.Ref, "the IDs are valid without a list")
			require.False(t, identity.Removed, "an invalid list proves no removal")
			got := p.Observe(t.Context(), s.found(), identity)
			require.False(t, got.Linearizable)
			require.True(t, got.AlarmsUnknown)
			require.Contains(t, got.Problem, c.want)
			require.Empty(t, got.Members)
			cached, _ := p.cached(s.found())
			require.Empty(t, cached.members)
			requireValid(t, got)
		})
	}
	s := newFakeServer(t, nil)
	s.list = members(maxMembers)
	got := s.observe(t)
	require.True(t, got.Linearizable, got.Problem)
	require.Len(t, got.Members, maxMembers)
}

func TestLocalURLs(t *testing.T) {
	for name, c := range map[string]struct {
		listen, advertise []string
		pid               int
		want              []string
	}{
		"loopback first": {
			listen:    []string{"https://10.0.0.7:2379", "https://127.0.0.1:2379"},
			advertise: []string{"https://etcd-1.example:2379"},
			want:      []string{"https://127.0.0.1:2379", "https://10.0.0.7:2379", "https://etcd-1.example:2379"},
		},
		"unspecified IPv4 address": {
			listen: []string{"https://0.0.0.0:2379"}, advertise: []string{"https://10.0.0.7:2379"},
			want: []string{"https://127.0.0.1:2379", "https://10.0.0.7:2379"},
		},
		"unspecified IPv6 address": {
			listen: []string{"http://[::]:2379"}, want: []string{"http://127.0.0.1:2379", "http://[::1]:2379"},
		},
		"duplicate": {
			listen: []string{"http://10.0.0.7:2379"}, advertise: []string{"http://10.0.0.7:2379"},
			want: []string{"http://10.0.0.7:2379"},
		},
		"default of a running server": {pid: 7, want: []string{"http://localhost:2379"}},
		"stopped server without URLs": {want: nil},
		"invalid URLs":                {listen: []string{"%zz", "10.0.0.7"}, pid: 7, want: nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := localURLs(evidence.Server{
				PID: c.pid, Config: evidence.Config{ListenClientURLs: c.listen, AdvertiseClientURLs: c.advertise},
			})
			require.Equal(t, c.want, got)
		})
	}
}

func TestMemberURLs(t *testing.T) {
	for name, c := range map[string]struct{ client, peer, added string }{
		"own address":         {"https://10.0.0.7:2379", "https://10.0.0.8:2380", ""},
		"loopback (k0s)":      {"https://127.0.0.1:2379", "https://10.0.0.8:2380", "https://10.0.0.8:2379"},
		"localhost":           {"http://localhost:2379", "http://[fd00::8]:2380", "http://[fd00::8]:2379"},
		"unspecified address": {"http://0.0.0.0:2379", "http://10.0.0.8:2380", "http://10.0.0.8:2379"},
	} {
		t.Run(name, func(t *testing.T) {
			want := []string{c.client}
			if c.added != "" {
				want = append(want, c.added)
			}
			require.Equal(t, want, memberURLs(&pb.Member{ClientURLs: []string{c.client}, PeerURLs: []string{c.peer}}))
		})
	}
	require.Empty(t, memberURLs(&pb.Member{PeerURLs: []string{"http://10.0.0.8:2380"}}), "member has never started")
}

// Every member list is either rejected or publishable, and leads only to URLs of etcd servers.
func FuzzMemberList(f *testing.F) {
	list := &pb.MemberListResponse{Members: []*pb.Member{
		{ID: 1, Name: "etcd1", PeerURLs: []string{"https://10.0.0.1:2380"}, ClientURLs: []string{"https://10.0.0.1:2379"}},
		{
			ID: 2, Name: "etcd\n2", IsLearner: true, PeerURLs: []string{"https://10.0.0.2:2380"},
			ClientURLs: []string{"https://127.0.0.1:2379", "unix://x:1"},
		},
		{ID: 3},
	}}
	seed, err := proto.Marshal(list)
	require.NoError(f, err)
	f.Add(seed)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, wire []byte) {
		list := &pb.MemberListResponse{}
		if proto.Unmarshal(wire, list) != nil || validateMembers(list.Members) != nil {
			return
		}
		o := v1alpha1.Observation{}
		for _, m := range list.Members {
			o.Members = append(o.Members, newMemberStatus(m))
			urls := memberURLs(m)
			require.LessOrEqual(t, len(urls), maxURLs)
			for _, raw := range urls {
				u, err := url.Parse(raw)
				require.NoError(t, err)
				require.Contains(t, []string{"http", "https"}, u.Scheme)
				require.NotEmpty(t, u.Host)
			}
		}
		requireValid(t, withinLimits(o))
	})
}

// Every configured URL can be dialed or yields an error.
func FuzzLocalURLs(f *testing.F) {
	f.Add("https://0.0.0.0:2379", "http://[::]:2379")
	f.Add("unix://localhost:2379", "%zz")
	f.Add("http://[fe80::1%25eth0]:2379", "http://:2379")
	f.Fuzz(func(_ *testing.T, listen, advertise string) {
		server := evidence.Server{
			Config: evidence.Config{ListenClientURLs: []string{listen}, AdvertiseClientURLs: []string{advertise}},
		}
		for _, e := range pairEndpoints(localURLs(server), []evidence.Credential{{Origin: "none"}}) {
			credential, err := loadCredential("/", e, loadedCredential{})
			if err != nil {
				continue
			}
			if c, err := dial(e, credential, time.Second); err == nil {
				closeConn(c)
			}
		}
	})
}
