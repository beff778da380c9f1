package protect

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

func unitServer() Found {
	return Found{
		Sighting: Sighting{Source: SystemdUnit, Where: "systemd unit etcd.service", Unit: "etcd.service", PID: 812},
		Answer:   Answer{Ref: MemberRef{clusterX, "a"}, Name: "etcd1"},
	}
}

func (f Found) silent() Found {
	f.Answer = Answer{Problem: "no client certificate was accepted: tried /etc/ssl/etcd/ssl/admin-w1.pem"}
	return f
}

func (f Found) stopped(data *bool) Found {
	f.PID, f.Answer, f.HasData = 0, Answer{}, data
	return f
}

func (f Found) removed() Found {
	f.Removed = true
	return f
}

func yes(b bool) *bool { return &b }

// elsewhere is a cluster that binds nothing to w9, the node of these tests.
func elsewhere() v1alpha1.EtcdCluster { return *voters(3).Cluster }

// here is a cluster that binds member a to w9.
func here() v1alpha1.EtcdCluster {
	c := elsewhere()
	c.Spec.Members[0].Node, c.Spec.Members[0].NodeUID = "w9", "u9"
	return c
}

func TestAssess(t *testing.T) {
	announced := []MemberRef{{clusterX, "a"}}
	events := Found{
		Sighting: Sighting{Source: Process, Where: "process 99", PID: 99},
		Answer:   Answer{Ref: MemberRef{"abc", "f"}, Name: "etcd1-events"},
	}
	pod := Found{Sighting: Sighting{Source: StaticPod, Where: "static pod etcd", PID: 7, InCluster: true}, Answer: Answer{Ref: MemberRef{"abc", "f"}}}
	for name, c := range map[string]struct {
		found      []Found
		unknown    []string
		known      func(*Known)
		membership Membership
		reason     string
		because    string
		says       []string
		announce   []MemberRef
	}{
		"a member answers": {
			found: []Found{unitServer()}, membership: Holds, reason: "SystemdUnit", announce: announced,
			because: "etcd member etcd1 (a) of cluster cdf818194e3a8c32, systemd unit etcd.service",
		},
		"two clusters": {
			found: []Found{unitServer(), events}, membership: Holds, reason: "SystemdUnit", announce: []MemberRef{{"abc", "f"}, {clusterX, "a"}},
			because: "etcd member etcd1 (a) of cluster cdf818194e3a8c32, systemd unit etcd.service; etcd member etcd1-events (f) of cluster abc, process 99",
		},
		"never answered": {
			found: []Found{unitServer().silent()}, membership: Holds, reason: "Unverified",
			because: "etcd server that has not said who it is, systemd unit etcd.service",
			says:    []string{"systemd unit etcd.service did not answer: no client certificate was accepted: tried /etc/ssl/etcd/ssl/admin-w1.pem"},
		},
		"answered before, hangs now": {
			found: []Found{unitServer().silent()}, known: func(k *Known) { k.Announced = announced }, membership: Holds, reason: "SystemdUnit", announce: announced,
			because: "etcd member etcd1 (a) of cluster cdf818194e3a8c32, systemd unit etcd.service", says: []string{"did not answer"},
		},
		"one answers, the other hangs": {
			found: []Found{unitServer(), events.silentAs("process 99")}, known: func(k *Known) { k.Announced = []MemberRef{{"abc", "f"}, {clusterX, "a"}} },
			membership: Holds, reason: "SystemdUnit", announce: []MemberRef{{"abc", "f"}, {clusterX, "a"}},
			because: "etcd member etcd1 (a) of cluster cdf818194e3a8c32, systemd unit etcd.service; etcd member f of cluster abc, process 99",
		},
		"stopped, with data, known": {
			found: []Found{unitServer().stopped(yes(true))}, known: func(k *Known) { k.Announced = announced }, membership: Holds, reason: "DataDirectory", announce: announced,
			because: "stopped etcd member etcd1 (a) of cluster cdf818194e3a8c32, systemd unit etcd.service",
		},
		"stopped, with data, never known": {
			found: []Found{unitServer().stopped(yes(true))}, membership: Holds, reason: "DataDirectory",
			because: "stopped etcd server with the data of a member, systemd unit etcd.service",
		},
		"installed, never started": {
			found: []Found{unitServer().stopped(yes(false))}, membership: HoldsNot, reason: "NotMember",
		},
		"stopped, and the data cannot be read": {
			found: []Found{unitServer().stopped(nil).problem("permission denied")}, known: func(k *Known) { k.Announced, k.Protected = announced, true },
			membership: MembershipUnknown, reason: "Unknown", announce: announced,
			says: []string{"stays protected: whether systemd unit etcd.service has the data of a member: permission denied"},
		},
		"nothing":            {membership: HoldsNot, reason: "NotMember", says: []string{"no etcd member is on this node"}},
		"an incomplete look": {unknown: []string{"the process table: permission denied"}, membership: MembershipUnknown, reason: "Unknown", says: []string{"the process table: permission denied"}},
		"a member and an incomplete look": {
			found: []Found{unitServer()}, unknown: []string{"the process table: permission denied"}, membership: Holds, reason: "SystemdUnit", announce: announced,
			because: "etcd member etcd1 (a) of cluster cdf818194e3a8c32, systemd unit etcd.service", says: []string{"could not be looked at: the process table"},
		},
		"the clusters are not known": {known: func(k *Known) { k.ClustersKnown = false }, membership: MembershipUnknown, reason: "Unknown", says: []string{"EtcdClusters"}},
		"removed": {
			found: []Found{unitServer().removed()}, known: func(k *Known) { k.Announced, k.Protected = announced, true },
			membership: HoldsNot, reason: "NotMember", says: []string{"1 member found here left the member list"},
		},
		"removed, and one of another cluster": {
			found: []Found{unitServer().removed(), events}, known: func(k *Known) { k.Announced = announced }, membership: Holds, reason: "Process",
			announce: []MemberRef{{"abc", "f"}}, because: "etcd member etcd1-events (f) of cluster abc, process 99",
		},
		"nothing, but still bound": {
			known: func(k *Known) { k.Clusters, k.Announced = []v1alpha1.EtcdCluster{here()}, announced }, membership: Holds, reason: "Unverified", announce: announced,
			because: "etcd member etcd1 (a) of cluster cdf818194e3a8c32, by its EtcdCluster",
			says:    []string{"etcdctl member remove a", "kubectl delete etcdcluster cdf818194e3a8c32"},
		},
		"removed, but still bound": {
			found: []Found{unitServer().removed()}, known: func(k *Known) { k.Clusters = []v1alpha1.EtcdCluster{here()} },
			membership: Holds, reason: "Unverified", because: "etcd member etcd1 (a) of cluster cdf818194e3a8c32, by its EtcdCluster",
		},
		"bound under the same name before": {
			known:      func(k *Known) { k.Clusters, k.UID = []v1alpha1.EtcdCluster{here()}, "u9-again" },
			membership: HoldsNot, reason: "NotMember",
		},
		"a static pod": {
			found: []Found{pod}, known: func(k *Known) { k.StaticPods = true }, membership: Holds, reason: "StaticPod", announce: []MemberRef{{"abc", "f"}},
			because: "etcd member f of cluster abc, static pod etcd",
		},
		"a static pod that is not to count": {
			found: []Found{pod}, membership: HoldsNot, reason: "NotMember", says: []string{"1 etcd static pod found here"},
		},
		"joined again with a new ID": {
			found: []Found{unitServer()}, known: func(k *Known) { k.Announced = []MemberRef{{clusterX, "e"}} },
			membership: Holds, reason: "SystemdUnit", announce: announced,
			because: "etcd member etcd1 (a) of cluster cdf818194e3a8c32, systemd unit etcd.service",
		},
		"somebody's annotation does not protect": {
			found: []Found{unitServer()}, known: func(k *Known) { k.Annotations = map[string]string{KarpenterAnnotation: "false"} },
			membership: Holds, reason: "SystemdUnit", announce: announced,
			because: "etcd member etcd1 (a) of cluster cdf818194e3a8c32, systemd unit etcd.service",
			says:    []string{`somebody has set annotation karpenter.sh/do-not-disrupt to "false"`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			k := Known{Node: "w9", UID: "u9", ClustersKnown: true, Clusters: []v1alpha1.EtcdCluster{elsewhere()}}
			if c.known != nil {
				c.known(&k)
			}
			p := Assess(HostEvidence{Found: c.found, Unknown: c.unknown}, k)
			require.Equal(t, c.membership, p.Membership, p.Message)
			require.Equal(t, c.reason, p.Reason)
			require.Equal(t, c.because, p.Because)
			require.Equal(t, c.announce, p.Announce)
			require.Contains(t, p.Message, c.because)
			for _, words := range c.says {
				require.Contains(t, p.Message, words)
			}
			require.NotEmpty(t, p.Message)
		})
	}
}

func (f Found) silentAs(where string) Found {
	f = f.silent()
	f.Where = where
	return f
}

func (f Found) problem(p string) Found {
	f.Problems = []string{p}
	return f
}

func TestAssessGivesTheClustersNumbers(t *testing.T) {
	number := func(n int32) *int32 { return &n }
	c := here()
	c.Status.Voters, c.Status.Healthy, c.Status.MayLose = number(3), number(3), number(1)
	p := Assess(HostEvidence{Found: []Found{unitServer()}}, Known{Node: "w9", UID: "u9", ClustersKnown: true, Clusters: []v1alpha1.EtcdCluster{c}})
	require.Equal(t, "etcd member etcd1 (a) of cluster cdf818194e3a8c32, systemd unit etcd.service; cluster cdf818194e3a8c32 has 3 voters, 3 healthy, and may lose 1 more", p.Message)
}

func TestDeparted(t *testing.T) {
	require.False(t, Departed(voters(3).Cluster, "a"), "bound and listed")
	require.False(t, Departed(voters(3).removed(0).Cluster, "a"), "still bound")
	require.False(t, Departed(voters(3).unbound(0).Cluster, "a"), "still listed")
	require.True(t, Departed(voters(3).removed(0).unbound(0).Cluster, "a"))
	require.False(t, Departed(voters(3).removed(0).unbound(0).unconfirmed(1, 2).Cluster, "a"), "no confirmed list")
}

func TestWhatAProcessCallsItsFilesIsWrittenLegiblyAndInBounds(t *testing.T) {
	where := "container \xff " + strings.Repeat("\u00e4", 4096)
	p := Assess(HostEvidence{Found: []Found{{Sighting: Sighting{Source: Container, Where: where, PID: 7}}}}, Known{ClustersKnown: true})
	require.Equal(t, Holds, p.Membership)
	require.True(t, utf8.ValidString(p.Because))
	require.Less(t, len(p.Because), 1100)
}

func TestUnseenChangesNothing(t *testing.T) {
	ref := MemberRef{Cluster: "c", Member: "a"}
	p := Unseen(Known{Protected: true, Announced: []MemberRef{ref}}, "the host hangs")
	require.Equal(t, Protection{Reason: NotKnown, Announce: []MemberRef{ref}, Message: "the host hangs; the node stays protected"}, p)
	annotations, labels := Marks(p, map[string]string{BecauseAnnotation: "x"}, map[string]string{EtcdMemberLabel: "true"}, nil)
	require.Empty(t, annotations)
	require.Empty(t, labels)
}
