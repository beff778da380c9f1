package etcdprobe

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/holdfast-dev/holdfast/internal/shared/loop"
)

// prefetchFixture returns a fake server whose reads wait for an election, and a Prober that
// has cached its member list.
func prefetchFixture(t *testing.T, timeout, election time.Duration, others ...*pb.Member) (*fakeServer, *Prober) {
	t.Helper()
	s := newFakeServer(t, func(n int32) error {
		if n > 1 { // Identify makes the first read
			_ = loop.Wait(t.Context(), election, nil)
		}
		return nil
	})
	s.others = others
	p := New(Options{Timeout: timeout})
	t.Cleanup(p.Close)
	require.Equal(t, fakeIdentity().Ref, p.Identify(t.Context(), s.found()).Ref)
	return s, p
}

// The member list waits for an election that the hanging member has caused. The timeout of the
// member's own probe must not start after that (F5).
func TestPrefetchHangingMember(t *testing.T) {
	// Accepts and never responds.
	hanging, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, hanging.Close()) })
	const timeout, election = 2 * time.Second, time.Second
	s, p := prefetchFixture(t, timeout, election,
		&pb.Member{ID: 7, Name: "hanging", ClientURLs: []string{"http://" + hanging.Addr().String()}})
	start := time.Now()
	got := p.Observe(t.Context(), s.found(), fakeIdentity())
	require.Less(t, time.Since(start), timeout+election-500*time.Millisecond)
	require.True(t, got.Linearizable, got.Problem)
	require.Equal(t, []bool{true, false}, []bool{got.Members[0].Healthy, got.Members[1].Healthy})
	require.Contains(t, got.Members[1].Reason, "no response within 2s")
}

func TestPrefetchRetry(t *testing.T) {
	other := newFakeServerAs(t, fakeCluster, 7, func(n int32) error {
		if n <= 2 {
			return rpctypes.ErrGRPCLeaderChanged
		}
		return nil
	})
	s, p := prefetchFixture(t, defaultTimeout, 300*time.Millisecond,
		&pb.Member{ID: 7, Name: "other", ClientURLs: []string{other.url}})
	other.list = append([]*pb.Member{s.self()}, s.others...)
	got := p.Observe(t.Context(), s.found(), fakeIdentity())
	require.True(t, got.Members[1].Healthy, got.Members[1].Reason)
}

func TestPrefetchChangedMember(t *testing.T) {
	for name, change := range map[string]func(*pb.Member){
		"promoted": func(m *pb.Member) { m.IsLearner = false },
		"moved":    func(m *pb.Member) { m.ClientURLs = []string{"http://127.0.0.1:1"} },
		"renamed":  func(m *pb.Member) { m.Name = "new" },
		"removed":  nil,
	} {
		t.Run(name, func(t *testing.T) {
			other := newFakeServerAs(t, fakeCluster, 7, nil)
			member := func() *pb.Member {
				return &pb.Member{ID: 7, Name: "other", ClientURLs: []string{other.url}, IsLearner: true}
			}
			s, p := prefetchFixture(t, defaultTimeout, 300*time.Millisecond, member())
			after := member()
			s.others = nil
			if change != nil {
				change(after)
				s.others = []*pb.Member{after}
			}
			other.list = append([]*pb.Member{s.self()}, s.others...)
			got := p.Observe(t.Context(), s.found(), fakeIdentity())
			require.Len(t, got.Members, 1+len(s.others))
			if change == nil {
				return
			}
			require.Equal(t, after.IsLearner, got.Members[1].Learner)
			require.Equal(t, after.Name, got.Members[1].Name)
			require.Equal(t, name != "moved", got.Members[1].Healthy)
		})
	}
}
