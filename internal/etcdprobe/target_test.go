package etcdprobe

import (
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/holdfast-dev/holdfast/pkg/protect"
)

func TestLocalURLs(t *testing.T) {
	for name, c := range map[string]struct {
		listen, advertise []string
		pid               int
		want              []string
	}{
		"loopback comes first": {
			listen: []string{"https://10.0.0.7:2379", "https://127.0.0.1:2379"}, advertise: []string{"https://etcd-1.example:2379"},
			want: []string{"https://127.0.0.1:2379", "https://10.0.0.7:2379", "https://etcd-1.example:2379"},
		},
		"all addresses are reached over loopback": {
			listen: []string{"https://0.0.0.0:2379"}, advertise: []string{"https://10.0.0.7:2379"},
			want: []string{"https://127.0.0.1:2379", "https://10.0.0.7:2379"},
		},
		"all addresses of both families": {
			listen: []string{"http://[::]:2379"}, want: []string{"http://127.0.0.1:2379", "http://[::1]:2379"},
		},
		"listened on and advertised once": {
			listen: []string{"http://10.0.0.7:2379"}, advertise: []string{"http://10.0.0.7:2379"}, want: []string{"http://10.0.0.7:2379"},
		},
		"a running server that says nothing uses etcd's default": {pid: 7, want: []string{"http://localhost:2379"}},
		"one that does not run is nowhere":                       {want: nil},
		"what is no URL is left out":                             {listen: []string{"%zz", "10.0.0.7"}, pid: 7, want: nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := localURLs(protect.Sighting{PID: c.pid, Config: protect.Config{ListenClientURLs: c.listen, AdvertiseClientURLs: c.advertise}})
			require.Equal(t, c.want, got)
		})
	}
}

func TestMemberURLs(t *testing.T) {
	for name, c := range map[string]struct {
		client, peer, want []string
	}{
		"its own":                  {[]string{"https://10.0.0.7:2379"}, []string{"https://10.0.0.8:2380"}, []string{"https://10.0.0.7:2379"}},
		"loopback, as k0s has it":  {[]string{"https://127.0.0.1:2379"}, []string{"https://10.0.0.8:2380"}, []string{"https://127.0.0.1:2379", "https://10.0.0.8:2379"}},
		"localhost":                {[]string{"http://localhost:2379"}, []string{"http://[fd00::8]:2380"}, []string{"http://localhost:2379", "http://[fd00::8]:2379"}},
		"all addresses advertised": {[]string{"http://0.0.0.0:2379"}, []string{"http://10.0.0.8:2380"}, []string{"http://0.0.0.0:2379", "http://10.0.0.8:2379"}},
		"never started":            {nil, []string{"http://10.0.0.8:2380"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, memberURLs(&pb.Member{ClientURLs: c.client, PeerURLs: c.peer}))
		})
	}
}

func TestWaysTryEveryCredentialOnSecureURLsOnly(t *testing.T) {
	one, two := protect.Credential{Origin: "one"}, protect.Credential{Origin: "two"}
	require.Equal(t, []target{{url: "http://a:1"}, {"https://b:2", one}, {"https://b:2", two}},
		ways([]string{"http://a:1", "https://b:2"}, []protect.Credential{one, two}))
	require.Equal(t, []target{{"https://b:2", protect.Credential{Origin: "no client certificate"}}}, ways([]string{"https://b:2"}, nil))
}

func TestReasonsAreShortAndStandStill(t *testing.T) {
	for name, c := range map[string]struct{ message, want string }{
		"refused":  {`connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:2379: connect: connection refused"`, "connection refused"},
		"reset":    {`connection error: desc = "error reading server preface: read tcp 127.0.0.1:40312->10.0.0.7:2379: read: connection reset by peer"`, "read: connection reset by peer"},
		"tls":      {`connection error: desc = "transport: authentication handshake failed: tls: failed to verify certificate: x509: certificate signed by unknown authority"`, "tls: failed to verify certificate: x509: certificate signed by unknown authority"},
		"etcd":     {"etcdserver: leader changed", "leader changed"},
		"anything": {"some thing else", "some thing else"},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, plain(c.message)) })
	}
	require.Len(t, []rune(clip(string(make([]rune, 3000)))), maxWords+1)
}
