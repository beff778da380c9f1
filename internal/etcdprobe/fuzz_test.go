package etcdprobe

import (
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// Whatever a member list says is refused or can be published, and asks nobody but what looks like a server.
func FuzzMemberList(f *testing.F) {
	list := pb.MemberListResponse{Members: []*pb.Member{
		{ID: 1, Name: "etcd1", PeerURLs: []string{"https://10.0.0.1:2380"}, ClientURLs: []string{"https://10.0.0.1:2379"}},
		{ID: 2, Name: "etcd\n2", IsLearner: true, PeerURLs: []string{"https://10.0.0.2:2380"}, ClientURLs: []string{"https://127.0.0.1:2379", "unix://x:1"}},
		{ID: 3},
	}}
	seed, err := list.Marshal()
	require.NoError(f, err)
	f.Add(seed)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, wire []byte) {
		var list pb.MemberListResponse
		if list.Unmarshal(wire) != nil || sound(list.Members) != nil {
			return
		}
		o := v1alpha1.Observation{}
		for _, m := range list.Members {
			o.Members = append(o.Members, describe(m))
			asked := memberURLs(m)
			require.LessOrEqual(t, len(asked), maxURLs)
			for _, raw := range asked {
				u, err := url.Parse(raw)
				require.NoError(t, err)
				require.Contains(t, []string{"http", "https"}, u.Scheme)
				require.NotEmpty(t, u.Host)
			}
		}
		valid(t, o)
	})
}

// Whatever a host's configuration names can be dialled or is an error, and nothing panics.
func FuzzLocalURLs(f *testing.F) {
	f.Add("https://0.0.0.0:2379", "http://[::]:2379")
	f.Add("unix://localhost:2379", "%zz")
	f.Add("http://[fe80::1%25eth0]:2379", "http://:2379")
	f.Fuzz(func(_ *testing.T, listen, advertise string) {
		seen := protect.Sighting{Config: protect.Config{ListenClientURLs: []string{listen}, AdvertiseClientURLs: []string{advertise}}}
		for _, way := range ways(localURLs(seen), []protect.Credential{{Origin: "none"}}) {
			files, err := load(way)
			if err != nil {
				continue
			}
			s, err := dial(way, files, time.Second)
			if err == nil {
				closeConn(s)
			}
		}
	})
}

// Whatever an error says becomes one line that does not change when it is said again.
func FuzzPlain(f *testing.F) {
	f.Add("tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time 2026-11-20T13:50:32Z is after 2026-11-19T00:00:00Z")
	f.Add("connection error: desc = \"transport: Error while dialing: dial tcp 127.0.0.1:2379: connect: connection refused\"")
	f.Fuzz(func(t *testing.T, message string) {
		words := plain(message)
		require.Equal(t, oneLine(words), words)
		require.LessOrEqual(t, len([]rune(clip(words))), 1024)
	})
}
