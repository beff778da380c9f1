package etcdprobe

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/testenv/etcd"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

func TestMembershipChanges(t *testing.T) {
	t.Parallel()
	etcd := etcd.New(t, etcd.Options{Members: 3, TLS: true})
	p := newTestProber(t)
	local, removed := etcd.Member(1), etcd.Member(3)
	identity, before := identify(t, p, local), identify(t, p, removed)

	learner, err := etcd.AddLearner(t.Context())
	require.NoError(t, err)
	require.True(t, identify(t, p, learner).Learner)
	got := observeUntil(t, p, local, identity, map[string]string{
		"etcd1": "healthy", "etcd2": "healthy", "etcd3": "healthy", "etcd4": "healthy",
	})
	for _, status := range got.Members {
		require.Equal(t, status.Name == "etcd4", status.Learner)
	}
	fromLearner := p.Observe(t.Context(), foundServer(learner), identify(t, p, learner))
	require.False(t, fromLearner.Linearizable)
	require.Contains(t, fromLearner.Problem, "the server is a learner and cannot return a linearizable member list")

	// A killed member is still a member. Its removal is visible in the lists of the others.
	require.NoError(t, removed.Kill())
	unidentified := p.Identify(t.Context(), foundServer(removed))
	require.False(t, unidentified.HasAnswered())
	require.False(t, unidentified.Removed)
	require.NoError(t, etcd.RemoveMember(t.Context(), removed))
	want := evidence.Identity{Ref: before.Ref, Name: "etcd3", Removed: true}
	require.Equal(t, want, p.Identify(t.Context(), foundServer(removed)))
	require.False(t, newTestProber(t).Identify(t.Context(), foundServer(removed)).Removed, "server was never identified")
	running := foundServer(removed)
	running.PID = 1
	require.False(t, p.Identify(t.Context(), running).Removed, "a running process may be about to rejoin")
	replaced := foundServer(removed)
	replaced.Stored = &evidence.MemberRef{Cluster: before.Ref.Cluster, Member: "abc"}
	require.False(t, p.Identify(t.Context(), replaced).Removed, "the data is that of another member")
	replaced.Stored = &before.Ref
	require.True(t, p.Identify(t.Context(), replaced).Removed)
	// systemd and the kubelet start a removed member again and again. It ends after a second.
	running.Stored = &before.Ref
	require.Equal(t, want, p.Identify(t.Context(), running), "its log still names the removed member")

	// The host is added again under another ID. It counts as a member's host before etcd starts.
	_, err = etcdClient(t, etcd).MemberAdd(t.Context(), []string{removed.PeerURL})
	require.NoError(t, err)
	require.False(t, p.Identify(t.Context(), foundServer(removed)).Removed)
	observeUntil(t, p, local, identity, map[string]string{
		"etcd1": "healthy", "etcd2": "healthy", "etcd4": "healthy", "unnamed": "it was added and has never started",
	})
}

func TestLocalEndpointOrder(t *testing.T) {
	s := newFakeServer(t, nil)
	server := s.found()
	server.Config.ListenClientURLs = []string{"http://127.0.0.1:1", s.url}
	p := newTestProber(t)
	require.Equal(t, []endpoint{{url: "http://127.0.0.1:1"}, {url: s.url}}, p.localEndpoints(server))
	require.True(t, p.Identify(t.Context(), server).HasAnswered())
	require.Equal(t, []endpoint{{url: s.url}, {url: "http://127.0.0.1:1"}}, p.localEndpoints(server))
}

// Two servers of a host have the same client URL: the answer is of the one whose data names the
// member.
// F61: two servers of a host had one client URL, and the answer of one counted for both.
func TestAnswerOfOtherServer(t *testing.T) {
	t.Parallel()
	member := etcd.New(t, etcd.Options{TLS: true}).Member(1)
	p := newTestProber(t)
	ref := identify(t, p, member).Ref
	server := foundServer(member)
	server.Stored = &ref
	require.Equal(t, ref, p.Identify(t.Context(), server).Ref)
	for _, other := range []evidence.MemberRef{{Cluster: ref.Cluster, Member: "a"}, {Cluster: "c", Member: ref.Member}} {
		server.Stored = &other
		identity := p.Identify(t.Context(), server)
		require.False(t, identity.HasAnswered())
		require.Contains(t, identity.Problem, "responded as ")
	}
}

func TestIdentifyWithoutURL(t *testing.T) {
	require.Equal(t, "no client URL is known", newTestProber(t).Identify(t.Context(), evidence.Server{}).Problem)
}

// The path of a container's data directory changes with every start of the container.
func TestCacheExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Options{})
		defer p.Close()
		at := func(dir string) evidence.Server { return evidence.Server{Config: evidence.Config{DataDir: dir}} }
		stopped := at("/var/lib/etcd")
		p.updateCache(stopped, evidence.MemberRef{}, endpoint{}, nil)
		for start := range 30 {
			p.updateCache(at(fmt.Sprintf("/proc/%d/root/data", start)), evidence.MemberRef{}, endpoint{}, nil)
			<-time.NewTimer(time.Minute).C
			_, ok := p.cached(stopped)
			require.True(t, ok, "a server that is probed every minute was dropped")
		}
		require.Len(t, p.cache, 2+int(maxIdleTime/time.Minute), "the stopped server and the last starts")
	})
}
