package etcdprobe

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// afterElection is a server that gives the list only when an election is over, and an identified prober of it.
func afterElection(t *testing.T, o Options, election time.Duration, others ...*pb.Member) (*server, *Prober) {
	t.Helper()
	s := serve(t, func(n int32) error {
		if n > 1 { // the first is Identify's
			wait(t.Context(), election)
		}
		return nil
	})
	s.others = others
	p := probe(t, o)
	require.Equal(t, own().Ref, p.Identify(t.Context(), s.sighting()).Ref)
	return s, p
}

// The list had to wait for an election because a member hangs: its timeout does not begin after that (F5).
func TestAMemberThatHangsCostsItsTimeoutOnce(t *testing.T) {
	hung, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0") // it takes connections, and that is all
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, hung.Close()) })
	const patience, election = 4 * time.Second, 2 * time.Second
	s, p := afterElection(t, Options{Timeout: patience}, election, &pb.Member{ID: 7, Name: "hung", ClientURLs: []string{"http://" + hung.Addr().String()}})
	began := time.Now()
	seen := p.Observe(t.Context(), s.sighting(), own())
	require.Less(t, time.Since(began), patience+election-500*time.Millisecond)
	require.True(t, seen.Linearizable, seen.Problem)
	require.Equal(t, []bool{true, false}, []bool{seen.Members[0].Healthy, seen.Members[1].Healthy})
	require.Contains(t, seen.Members[1].Reason, "no answer within 4s")
}

func TestWhatFailedDuringTheElectionIsAskedAgain(t *testing.T) {
	other := serveAs(t, &pb.ResponseHeader{ClusterId: fakeCluster, MemberId: 7}, func(n int32) error {
		if n <= 2 {
			return rpctypes.ErrGRPCLeaderChanged
		}
		return nil
	})
	s, p := afterElection(t, Options{}, 300*time.Millisecond, &pb.Member{ID: 7, Name: "other", ClientURLs: []string{other.url}})
	other.list = append([]*pb.Member{{ID: fakeMember, Name: "fake", ClientURLs: []string{s.url}}}, s.others...)
	seen := p.Observe(t.Context(), s.sighting(), own())
	require.True(t, seen.Members[1].Healthy, seen.Members[1].Reason)
}

// The early question was put to who the member was then.
func TestAMemberThatHasChangedIsAskedAsWhatItIsNow(t *testing.T) {
	for name, change := range map[string]func(*pb.Member){
		"promoted": func(m *pb.Member) { m.IsLearner = false },
		"moved":    func(m *pb.Member) { m.ClientURLs = []string{"http://127.0.0.1:1"} },
		"renamed":  func(m *pb.Member) { m.Name = "new" },
		"gone":     nil,
	} {
		t.Run(name, func(t *testing.T) {
			other := serveAs(t, &pb.ResponseHeader{ClusterId: fakeCluster, MemberId: 7}, func(int32) error { return nil })
			was := pb.Member{ID: 7, Name: "other", ClientURLs: []string{other.url}, IsLearner: true}
			s, p := afterElection(t, Options{}, 300*time.Millisecond, &was)
			is := was
			s.others = nil
			if change != nil {
				change(&is)
				s.others = []*pb.Member{&is}
			}
			other.list = append([]*pb.Member{{ID: fakeMember, Name: "fake", ClientURLs: []string{s.url}}}, s.others...)
			seen := p.Observe(t.Context(), s.sighting(), own())
			require.Len(t, seen.Members, 1+len(s.others))
			if change == nil {
				return
			}
			require.Equal(t, is.IsLearner, seen.Members[1].Learner)
			require.Equal(t, is.Name, seen.Members[1].Name)
			require.Equal(t, name != "moved", seen.Members[1].Healthy)
		})
	}
}
