package etcdprobe

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/testenv/etcd"
	"github.com/holdfast-dev/holdfast/internal/testenv/pki"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

const (
	// testTimeout is longer than that of an agent: the machine runs other tests at the same time.
	testTimeout = 3 * defaultTimeout
	// maxObserveTime is the limit of one Observe: twice the timeout, with a margin.
	maxObserveTime = 2*testTimeout + testTimeout/2
	// noResponse is the problem of a server that does not answer within testTimeout.
	noResponse = "no response within 1.5s"
)

func newTestProber(t *testing.T) *Prober {
	t.Helper()
	p := New(Options{Timeout: testTimeout})
	t.Cleanup(p.Close)
	return p
}

// foundServer returns a real etcd member as a host scan finds it.
func foundServer(m *etcd.Member) evidence.Server {
	return evidence.Server{
		Source: evidence.SystemdUnit, Where: "systemd unit etcd.service", Unit: "etcd.service", PID: m.PID(),
		Config: evidence.Config{
			Name: m.Name, DataDir: m.DataDir(), InitialPeerURLs: []string{m.PeerURL},
			ListenClientURLs: []string{m.ClientURL}, AdvertiseClientURLs: []string{m.ClientURL},
		},
		Credentials: []evidence.Credential{adminCredential(m)},
	}
}

func adminCredential(m *etcd.Member) evidence.Credential {
	return evidence.Credential{
		CA: m.Files.CA, Cert: m.Files.AdminCert, Key: m.Files.AdminKey, Origin: "ETCDCTL_CERT in /etc/etcd.env",
	}
}

// identify identifies a real member and requires success. On a busy machine the member can answer
// too late.
func identify(t *testing.T, p *Prober, m *etcd.Member) evidence.Identity {
	t.Helper()
	identity := p.Identify(t.Context(), foundServer(m))
	for i := 0; i < 10 && strings.HasSuffix(identity.Problem, noResponse); i++ {
		identity = p.Identify(t.Context(), foundServer(m))
	}
	require.Empty(t, identity.Problem)
	require.Equal(t, v1alpha1.MemberID(m.HexID()), identity.Ref.Member)
	return identity
}

// observeUntil observes until the members' health is as wanted within maxObserveTime, and returns
// that observation. On a busy machine, one can take longer, and a healthy member can answer too
// late.
func observeUntil(
	t *testing.T, p *Prober, m *etcd.Member, identity evidence.Identity, want map[string]string,
) v1alpha1.Observation {
	t.Helper()
	var got v1alpha1.Observation
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		start := time.Now()
		got = p.Observe(t.Context(), foundServer(m), identity)
		require.Less(c, time.Since(start), maxObserveTime)
		require.Equal(c, want, health(got))
	}, 40*time.Second, 100*time.Millisecond)
	return got
}

func allHealthy() map[string]string {
	return map[string]string{"etcd1": "healthy", "etcd2": "healthy", "etcd3": "healthy"}
}

// health returns "healthy" or the reason without its leading URL, by member name.
func health(o v1alpha1.Observation) map[string]string {
	byName := map[string]string{}
	for _, m := range o.Members {
		name := m.Name
		if name == "" {
			name = "unnamed"
		}
		parts := strings.SplitN(m.Reason, ": ", 2)
		byName[name] = parts[len(parts)-1]
		if m.Healthy && m.Reason == "" {
			byName[name] = "healthy"
		}
	}
	return byName
}

const fakeCluster, fakeMember = 0xcdf818194e3a8c32, 0x3a1575389de83a83

// fakeServer is an etcd server with responses that a real one of this version does not give.
type fakeServer struct {
	pb.UnimplementedKVServer
	pb.UnimplementedClusterServer
	pb.UnimplementedMaintenanceServer
	url    string
	header *pb.ResponseHeader
	// others are the other members in the member list. list replaces the whole list, from the request
	// after oldLists.
	others, list []*pb.Member
	oldLists     int32
	lists        atomic.Int32
	// alarms is the response to Alarm. If it is nil, there is no leader: Alarm fails.
	alarms *pb.AlarmResponse
	// onRead returns the result of the n-th read, from 1. If it is nil, all reads succeed.
	onRead func(n int32) error
	reads  atomic.Int32
}

func newFakeServer(t *testing.T, onRead func(n int32) error) *fakeServer {
	t.Helper()
	return newFakeServerAs(t, fakeCluster, fakeMember, onRead)
}

// newFakeServerAs starts a fake server with the given IDs. With cluster 0 it sends no headers.
func newFakeServerAs(t *testing.T, cluster, member uint64, onRead func(n int32) error) *fakeServer {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &fakeServer{url: "http://" + listener.Addr().String(), onRead: onRead}
	if cluster != 0 {
		s.header = &pb.ResponseHeader{ClusterId: cluster, MemberId: member}
	}
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

func (s *fakeServer) Range(context.Context, *pb.RangeRequest) (*pb.RangeResponse, error) {
	if n := s.reads.Add(1); s.onRead != nil {
		if err := s.onRead(n); err != nil {
			return nil, err
		}
	}
	return &pb.RangeResponse{Header: s.header}, nil
}

// MemberList ignores the request's Linearizable, as servers up to 3.4 do.
func (s *fakeServer) MemberList(context.Context, *pb.MemberListRequest) (*pb.MemberListResponse, error) {
	if n := s.lists.Add(1); s.list != nil && n > s.oldLists {
		return &pb.MemberListResponse{Header: s.header, Members: s.list}, nil
	}
	return &pb.MemberListResponse{Header: s.header, Members: append([]*pb.Member{s.self()}, s.others...)}, nil
}

func (s *fakeServer) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	status := &pb.StatusResponse{Header: s.header, Version: "3.4.33", Leader: fakeMember}
	if s.alarms == nil {
		status.Errors = []string{"etcdserver: no leader"}
	} else {
		for _, a := range s.alarms.Alarms {
			status.Errors = append(status.Errors, a.String())
		}
	}
	return status, nil
}

func (s *fakeServer) Alarm(context.Context, *pb.AlarmRequest) (*pb.AlarmResponse, error) {
	if s.alarms != nil {
		return s.alarms, nil
	}
	return nil, rpctypes.ErrGRPCNoLeader
}

func (s *fakeServer) self() *pb.Member {
	return &pb.Member{ID: fakeMember, Name: "fake", ClientURLs: []string{s.url}}
}

// found returns the fake server as a host scan finds it.
func (s *fakeServer) found() evidence.Server {
	return evidence.Server{Where: "fake", PID: 1, Config: evidence.Config{ListenClientURLs: []string{s.url}}}
}

// observe observes the fake server with a new Prober.
func (s *fakeServer) observe(t *testing.T) v1alpha1.Observation {
	t.Helper()
	return newTestProber(t).Observe(t.Context(), s.found(), fakeIdentity())
}

func fakeIdentity() evidence.Identity {
	return evidence.Identity{Ref: memberRef(fakeCluster, fakeMember)}
}

// credentialDir issues client certificates and writes them to a directory.
type credentialDir struct {
	t    *testing.T
	path string
	ca   string // the file of the CA that the client trusts
}

func (d credentialDir) issue(name string, ca *pki.CA, opts pki.CertOptions) evidence.Credential {
	d.t.Helper()
	opts.Client = true
	pair, err := ca.Issue(opts)
	require.NoError(d.t, err)
	c := evidence.Credential{
		CA: d.ca, Cert: filepath.Join(d.path, name+".pem"), Key: filepath.Join(d.path, name+"-key.pem"), Origin: name,
	}
	require.NoError(d.t, pair.Write(c.Cert, c.Key))
	return c
}

// etcdClient returns an administrator's client of a real cluster.
func etcdClient(t *testing.T, etcd *etcd.Cluster) *clientv3.Client {
	t.Helper()
	client, err := etcd.Client(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func newCA(t *testing.T, name string) *pki.CA {
	t.Helper()
	ca, err := pki.NewCA(name)
	require.NoError(t, err)
	return ca
}

// metricValues returns the values of all counters and gauges, by name and label value.
func metricValues(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, f := range families {
		require.NotEmpty(t, f.GetHelp())
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			values[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return values
}

// requireValid checks an observation against the limits of its schema (api/v1alpha1).
func requireValid(t *testing.T, o v1alpha1.Observation) {
	t.Helper()
	length := 0
	requireText := func(s string, limit int) {
		require.LessOrEqual(t, len(s), limit)
		require.Equal(t, plain(s), s)
		length += len(s)
	}
	requireText(o.Problem, 1024)
	length = 0
	require.LessOrEqual(t, len(o.Members), 20)
	seen := map[v1alpha1.MemberID]bool{}
	for _, m := range o.Members {
		require.Regexp(t, "^[1-9a-f][0-9a-f]{0,15}$", string(m.ID))
		require.False(t, seen[m.ID], "duplicate member %s", m.ID)
		seen[m.ID] = true
		requireText(m.Name, 256)
		requireText(m.Reason, 256)
		require.LessOrEqual(t, len(m.Alarms), 8)
		for _, urls := range [][]string{m.PeerURLs, m.ClientURLs} {
			require.LessOrEqual(t, len(urls), 8)
			for _, u := range urls {
				requireText(u, 300)
				require.NotContains(t, u, " ")
			}
		}
		for _, a := range m.Alarms {
			requireText(a, 32)
		}
	}
	require.LessOrEqual(t, length, 8000)
}
