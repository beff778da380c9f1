package etcdprobe

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

func own() protect.Answer { return protect.Answer{Ref: reference(fakeCluster, fakeMember)} }

func TestListsThatCannotBeAreNone(t *testing.T) {
	self := &pb.Member{ID: fakeMember, Name: "fake"}
	for name, c := range map[string]struct {
		list []*pb.Member
		want string
	}{
		"ten thousand":   {many(10_000), "it lists 10000 members, and no more than 20 can be published"},
		"an ID of 0":     {[]*pb.Member{self, {ID: 0, Name: "nobody"}}, "it lists a member with ID 0"},
		"a member twice": {[]*pb.Member{self, self}, "it lists member 3a1575389de83a83 twice"},
		"nobody":         {[]*pb.Member{}, "it lists no members"},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, func(int32) error { return nil })
			s.list = c.list
			p := probe(t, Options{})
			answer := p.Identify(t.Context(), s.sighting())
			require.Equal(t, own().Ref, answer.Ref, "who it is stands")
			require.False(t, answer.Removed, "what is no list says of nobody that he has left")
			seen := p.Observe(t.Context(), s.sighting(), answer)
			require.False(t, seen.Linearizable)
			require.Contains(t, seen.Problem, c.want)
			require.Empty(t, seen.Members)
			known, _ := p.recall(s.sighting())
			require.Empty(t, known.members, "and nobody of it will be asked")
			valid(t, seen)
		})
	}
}

func many(n uint64) []*pb.Member {
	var list []*pb.Member
	for i := range n {
		list = append(list, &pb.Member{ID: i + 1, Name: fmt.Sprint("m", i), ClientURLs: []string{fmt.Sprintf("http://127.0.0.1:%d", 10_000+i)}})
	}
	return list
}

func TestWhatAServerSaysStaysOneLineOfText(t *testing.T) {
	s := serve(t, func(int32) error {
		return status.Error(codes.Unknown, "one\nholdfast: etcd member removed\x1b[2J\x00"+strings.Repeat("w", 10_000))
	})
	s.others = []*pb.Member{{ID: 7, Name: "etcd\n2\x1b[2J\x7f\u202e", ClientURLs: []string{"unix:///run/containerd/containerd.sock", "http://", "::", s.url}}}
	p := probe(t, Options{})
	seen := p.Observe(t.Context(), s.sighting(), p.Identify(t.Context(), s.sighting()))
	valid(t, seen)
	require.Contains(t, seen.Problem, "one holdfast: etcd member removed [2J w")
	require.Equal(t, "etcd 2 [2J", seen.Members[1].Name)
	require.NotContains(t, seen.Members[1].Reason, "containerd", "what a list names is elsewhere")
	require.NotContains(t, seen.Problem, "\n")
}

func TestAlarmsAreTheClustersOwn(t *testing.T) {
	s := serve(t, func(int32) error { return nil })
	s.alarms = &pb.AlarmResponse{Header: &pb.ResponseHeader{ClusterId: 0xbad, MemberId: 1}}
	seen := probe(t, Options{}).Observe(t.Context(), s.sighting(), own())
	require.True(t, seen.AlarmsUnknown, "another cluster's silence is no all-clear")
	require.Equal(t, "the alarms are unknown: it belongs to cluster bad, not cdf818194e3a8c32", seen.Problem)

	s.alarms = &pb.AlarmResponse{Header: s.header}
	for i := range 100 {
		s.alarms.Alarms = append(s.alarms.Alarms, &pb.AlarmMember{MemberID: fakeMember, Alarm: pb.AlarmType(i % 50)})
	}
	seen = probe(t, Options{}).Observe(t.Context(), s.sighting(), own())
	require.False(t, seen.AlarmsUnknown)
	require.Len(t, seen.Members[0].Alarms, maxAlarms)
	require.Contains(t, seen.Members[0].Alarms, "CORRUPT")
	require.Contains(t, seen.Members[0].Alarms, "NOSPACE")
	valid(t, seen)
}

// TestAlarmsOfAnOldServer: servers up to 3.4 answer without saying who they are.
func TestAlarmsOfAnOldServer(t *testing.T) {
	s := serve(t, func(int32) error { return nil })
	s.alarms = &pb.AlarmResponse{}
	seen := probe(t, Options{}).Observe(t.Context(), s.sighting(), own())
	require.False(t, seen.AlarmsUnknown, seen.Problem)
	require.Empty(t, seen.Problem)
	require.Empty(t, seen.Members[0].Alarms)

	s.alarms = &pb.AlarmResponse{Alarms: []*pb.AlarmMember{{Alarm: pb.AlarmType_CORRUPT}}}
	seen = probe(t, Options{}).Observe(t.Context(), s.sighting(), own())
	require.Equal(t, []string{"CORRUPT"}, seen.Members[0].Alarms, "an alarm of no member is everybody's")
}

// What is advertised may lead nowhere from anywhere: then the member's own agent is the one that can prove it (F6).
func TestTheLocalMemberIsProvenWhereItListens(t *testing.T) {
	s := serve(t, func(int32) error { return nil })
	s.list = []*pb.Member{{ID: fakeMember, Name: "fake", ClientURLs: []string{"http://192.0.2.1:2379"}}}
	p := probe(t, Options{})
	seen := p.Observe(t.Context(), s.sighting(), p.Identify(t.Context(), s.sighting()))
	require.True(t, seen.Members[0].Healthy, seen.Members[0].Reason)

	// Others are asked where they say, and nowhere else: the server here is no proof of them.
	s.list = append(s.list, &pb.Member{ID: 7, Name: "other", ClientURLs: []string{"http://192.0.2.7:2379"}})
	seen = p.Observe(t.Context(), s.sighting(), own())
	require.Equal(t, v1alpha1.MemberID("7"), seen.Members[1].ID)
	require.NotContains(t, seen.Members[1].Reason, s.url)
}

// valid checks an observation against the limits of its schema (api/v1alpha1).
func valid(t *testing.T, o v1alpha1.Observation) {
	t.Helper()
	text := func(s string, most int) {
		require.LessOrEqual(t, len([]rune(s)), most)
		require.Equal(t, oneLine(s), s)
	}
	text(o.Problem, 1024)
	require.LessOrEqual(t, len(o.Members), 20)
	seen := map[v1alpha1.MemberID]bool{}
	for _, m := range o.Members {
		require.Regexp(t, "^[1-9a-f][0-9a-f]{0,15}$", string(m.ID))
		require.False(t, seen[m.ID])
		seen[m.ID] = true
		text(m.Name, 512)
		text(m.Reason, 1024)
		require.LessOrEqual(t, len(m.Alarms), 8)
		for _, urls := range [][]string{m.PeerURLs, m.ClientURLs} {
			require.LessOrEqual(t, len(urls), 16)
			for _, u := range urls {
				require.Regexp(t, "^[!-~]{0,300}$", u)
			}
		}
		for _, a := range m.Alarms {
			text(a, 32)
		}
	}
}
