package etcdprobe_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/etcdprobe"
	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

const timeout = 1500 * time.Millisecond

// budget is what one Observe may take: twice the timeout, and a little for a machine that is busy with other tests.
const budget = 2*timeout + 2*time.Second

func prober(t *testing.T) *etcdprobe.Prober {
	t.Helper()
	p := etcdprobe.New(etcdprobe.Options{Timeout: timeout})
	t.Cleanup(p.Close)
	return p
}

// sighting is a member as the host shows it.
func sighting(m *testenv.Member) protect.Sighting {
	return protect.Sighting{
		Source: protect.SystemdUnit, Where: "systemd unit etcd.service", Unit: "etcd.service", PID: m.PID(),
		Config: protect.Config{
			Name: m.Name, DataDir: m.DataDir(), ListenClientURLs: []string{m.ClientURL}, AdvertiseClientURLs: []string{m.ClientURL},
			InitialPeerURLs: []string{m.PeerURL},
		},
		Credentials: []protect.Credential{admin(m)},
	}
}

func admin(m *testenv.Member) protect.Credential {
	return protect.Credential{CA: m.Files.CA, Cert: m.Files.AdminCert, Key: m.Files.AdminKey, Origin: "ETCDCTL_CERT in /etc/etcd.env"}
}

func allHealthy() map[string]string {
	return map[string]string{"etcd1": "healthy", "etcd2": "healthy", "etcd3": "healthy"}
}

// health says of every member in one word how it was seen: healthy, or the reason without the URL that it begins with.
func health(o v1alpha1.Observation) map[string]string {
	found := map[string]string{}
	for _, m := range o.Members {
		name := m.Name
		if name == "" {
			name = "unnamed"
		}
		switch words := strings.SplitN(m.Reason, ": ", 2); {
		case m.Healthy && m.Reason == "":
			found[name] = "healthy"
		default:
			found[name] = words[len(words)-1]
		}
	}
	return found
}

// eventually observes until the health is as wanted, and returns that observation.
func eventually(t *testing.T, p *etcdprobe.Prober, m *testenv.Member, a protect.Answer, want map[string]string) v1alpha1.Observation {
	t.Helper()
	var seen v1alpha1.Observation
	require.EventuallyWithT(t, func(c *assertCollector) {
		seen = p.Observe(t.Context(), sighting(m), a)
		require.Equal(c, want, health(seen))
	}, 20*time.Second, 100*time.Millisecond)
	return seen
}

func identified(t *testing.T, p *etcdprobe.Prober, m *testenv.Member) protect.Answer {
	t.Helper()
	answer := p.Identify(t.Context(), sighting(m))
	require.Empty(t, answer.Problem)
	require.Equal(t, v1alpha1.MemberID(m.HexID()), answer.Ref.Member)
	return answer
}

func TestEveryMemberIsProvenByItsOwnAnswer(t *testing.T) {
	t.Parallel()
	etcd := testenv.NewEtcd(t, testenv.EtcdOptions{Members: 3, TLS: true})
	p := prober(t)
	cluster := identified(t, p, etcd.Member(1)).Ref.Cluster
	require.NotEmpty(t, cluster)
	for _, m := range etcd.Members() {
		answer := p.Identify(t.Context(), sighting(m))
		require.Equal(t, protect.Answer{Ref: protect.MemberRef{Cluster: cluster, Member: v1alpha1.MemberID(m.HexID())}, Name: m.Name}, answer)

		seen := eventually(t, p, m, answer, allHealthy())
		require.Empty(t, seen.Problem)
		require.True(t, seen.Linearizable)
		require.False(t, seen.AlarmsUnknown)
		require.Equal(t, answer.Ref.Member, seen.LocalMember)
		require.Contains(t, []string{etcd.Member(1).HexID(), etcd.Member(2).HexID(), etcd.Member(3).HexID()}, string(seen.Leader))
		require.WithinDuration(t, time.Now(), seen.Time.Time, 5*time.Second)
		require.Empty(t, seen.Node)
		for _, status := range seen.Members {
			require.Equal(t, []string{"https://" + hostOf(etcd, status.Name) + ":2379"}, status.ClientURLs)
			require.Equal(t, []string{"https://" + hostOf(etcd, status.Name) + ":2380"}, status.PeerURLs)
			require.Empty(t, status.Alarms)
		}
	}

	raiseAlarm(t, etcd, etcd.Member(2), pb.AlarmType_NOSPACE)
	raiseAlarm(t, etcd, etcd.Member(2), pb.AlarmType_CORRUPT)
	seen := eventually(t, p, etcd.Member(1), identified(t, p, etcd.Member(1)), allHealthy()) // a read does not notice alarms
	for _, status := range seen.Members {
		if status.Name == "etcd2" {
			require.Equal(t, []string{"CORRUPT", "NOSPACE"}, status.Alarms)
		} else {
			require.Empty(t, status.Alarms, "an alarm is of the member that raised it")
		}
	}
}

func hostOf(etcd *testenv.Etcd, name string) string {
	for _, m := range etcd.Members() {
		if m.Name == name {
			return m.IP
		}
	}
	return ""
}

func raiseAlarm(t *testing.T, etcd *testenv.Etcd, m *testenv.Member, alarm pb.AlarmType) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	client, err := etcd.Client(ctx)
	require.NoError(t, err)
	defer func() { _ = client.Close() }()
	_, err = pb.NewMaintenanceClient(client.ActiveConnection()).Alarm(ctx,
		&pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: m.ID(), Alarm: alarm})
	require.NoError(t, err)
}

func TestSilentMembersAreNotHealthyAndSayWhy(t *testing.T) {
	t.Parallel()
	etcd := testenv.NewEtcd(t, testenv.EtcdOptions{Members: 3, TLS: true})
	p := prober(t)
	local := etcd.Member(1)
	answer := identified(t, p, local)
	eventually(t, p, local, answer, allHealthy())

	require.NoError(t, etcd.Member(3).Kill())
	seen := eventually(t, p, local, answer, map[string]string{"etcd1": "healthy", "etcd2": "healthy", "etcd3": "connection refused"})
	require.True(t, seen.Linearizable)
	require.Empty(t, seen.Problem)

	require.NoError(t, etcd.Member(3).Start(t.Context()))
	eventually(t, p, local, answer, allHealthy())

	// It hangs with a connection that was kept, then with a new one that the kernel accepts.
	require.NoError(t, etcd.Member(3).Pause())
	hanging := map[string]string{"etcd1": "healthy", "etcd2": "healthy", "etcd3": "no answer within 1.5s"}
	eventually(t, p, local, answer, hanging)
	began := time.Now()
	seen = p.Observe(t.Context(), sighting(local), answer)
	require.Less(t, time.Since(began), budget)
	require.Equal(t, hanging, health(seen))
	require.True(t, seen.Linearizable)

	// Two of three are gone: no quorum can confirm anything, and the list is history.
	require.NoError(t, etcd.Member(2).Kill())
	began = time.Now()
	seen = p.Observe(t.Context(), sighting(local), answer)
	require.Less(t, time.Since(began), budget)
	require.False(t, seen.Linearizable)
	require.Contains(t, seen.Problem, "no member list confirmed by a quorum: "+local.ClientURL+": no answer within 1.5s")
	require.Equal(t, map[string]string{
		"etcd1": "no answer within 1.5s", "etcd2": "connection refused", "etcd3": "no answer within 1.5s",
	}, health(seen))
	require.Equal(t, answer.Ref, identified(t, p, local).Ref, "who it is needs no quorum")
}

func TestHangingLocalMemberIsObservedThroughTheOthers(t *testing.T) {
	t.Parallel()
	etcd := testenv.NewEtcd(t, testenv.EtcdOptions{Members: 3, TLS: true})
	p := prober(t)
	local := etcd.Member(2)
	answer := identified(t, p, local)
	require.NoError(t, local.Pause())
	eventually(t, p, local, answer, map[string]string{"etcd1": "healthy", "etcd2": "no answer within 1.5s", "etcd3": "healthy"})
	began := time.Now()
	seen := p.Observe(t.Context(), sighting(local), answer)
	require.Less(t, time.Since(began), budget)
	require.True(t, seen.Linearizable)
	require.Equal(t, answer.Ref.Member, seen.LocalMember)

	several := sighting(local)
	several.Credentials = append(several.Credentials, admin(etcd.Member(1)), admin(etcd.Member(3)))
	again := p.Identify(t.Context(), several)
	require.False(t, again.Answered())
	require.False(t, again.Removed)
	require.Equal(t, local.ClientURL+": no answer within 1.5s", again.Problem, "no other credential would fare better")

	require.NoError(t, local.Resume())
	require.Equal(t, answer.Ref, identified(t, p, local).Ref)
}

func TestMembershipChanges(t *testing.T) {
	t.Parallel()
	etcd := testenv.NewEtcd(t, testenv.EtcdOptions{Members: 3, TLS: true})
	p := prober(t)
	local := etcd.Member(1)
	answer := identified(t, p, local)
	removed := etcd.Member(3)
	before := identified(t, p, removed)

	learner, err := etcd.AddLearner(t.Context())
	require.NoError(t, err)
	require.True(t, identified(t, p, learner).Learner)
	seen := eventually(t, p, local, answer, map[string]string{
		"etcd1": "healthy", "etcd2": "healthy", "etcd3": "healthy", "etcd4": "healthy",
	})
	for _, status := range seen.Members {
		require.Equal(t, status.Name == "etcd4", status.Learner)
	}
	blind := p.Observe(t.Context(), sighting(learner), identified(t, p, learner))
	require.False(t, blind.Linearizable)
	require.Contains(t, blind.Problem, "it is a learner, which gives no member list")

	// Killed, it is still a member; taken off the list, it is not, by the word of the others.
	require.NoError(t, removed.Kill())
	gone := p.Identify(t.Context(), sighting(removed))
	require.False(t, gone.Answered())
	require.False(t, gone.Removed)
	require.NoError(t, etcd.RemoveMember(t.Context(), removed))
	gone = p.Identify(t.Context(), sighting(removed))
	require.Equal(t, protect.Answer{Ref: before.Ref, Name: "etcd3", Removed: true}, gone)
	require.False(t, prober(t).Identify(t.Context(), sighting(removed)).Removed, "nothing is known of one that never answered")
	running := sighting(removed)
	running.PID = 1
	require.False(t, p.Identify(t.Context(), running).Removed, "a process that runs may be about to join anew")

	// Added again on the same host under another ID: the host is a member's again, though nothing has started there.
	client, err := etcd.Client(t.Context())
	require.NoError(t, err)
	defer func() { _ = client.Close() }()
	_, err = client.MemberAdd(t.Context(), []string{removed.PeerURL})
	require.NoError(t, err)
	require.False(t, p.Identify(t.Context(), sighting(removed)).Removed)
	eventually(t, p, local, answer, map[string]string{
		"etcd1": "healthy", "etcd2": "healthy", "etcd4": "healthy", "unnamed": "it was added and has never started",
	})
}

func TestAddressThatAllAdvertiseCountsForItsOwnerAlone(t *testing.T) {
	t.Parallel()
	// On the hosts of such a cluster 127.0.0.1 is another server each time. Here the first member plays the one that the
	// observer finds there.
	for name, c := range map[string]struct {
		port int // where the others really serve clients
		want map[string]string
	}{
		"the others serve clients on loopback alone":     {12379, map[string]string{"etcd1": "healthy", "etcd2": "another", "etcd3": "another"}},
		"the others serve clients at their peer address": {2379, map[string]string{"etcd1": "healthy", "etcd2": "healthy", "etcd3": "healthy"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			net, err := testenv.HoldLoopback()
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, net.Close()) })
			shared := "https://" + net.IP(1) + ":2379"
			etcd := testenv.NewEtcd(t, testenv.EtcdOptions{Members: 3, TLS: true, IP: net.IP, ClientURLs: func(i int) (listen, advertise []string) {
				if i == 1 {
					return []string{shared}, []string{shared}
				}
				return []string{fmt.Sprintf("https://%s:%d", net.IP(i), c.port)}, []string{shared}
			}})
			p := prober(t)
			answer := identified(t, p, etcd.Member(1))
			var seen v1alpha1.Observation
			require.EventuallyWithT(t, func(collect *assertCollector) { // an election may have been on
				seen = p.Observe(t.Context(), sighting(etcd.Member(1)), answer)
				require.True(collect, seen.Linearizable)
				for _, status := range seen.Members {
					require.Equal(collect, c.want[status.Name] == "healthy", status.Healthy, status.Reason)
				}
			}, 20*time.Second, 100*time.Millisecond)
			for _, status := range seen.Members {
				require.Equal(t, []string{shared}, status.ClientURLs)
				if !status.Healthy {
					require.Contains(t, status.Reason, fmt.Sprintf("it is member %s, not %s", etcd.Member(1).HexID(), status.ID))
				}
			}
		})
	}
}
