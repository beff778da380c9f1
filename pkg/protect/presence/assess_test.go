package presence

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/autoscaler"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
)

func TestAssess(t *testing.T) {
	const memberA = "etcd member etcd1 (a) of cluster cdf818194e3a8c32"
	const unitA, unread = memberA + ", " + etcdUnit, "the process table: permission denied"
	events := evidence.FoundServer{
		Server:   evidence.Server{Source: evidence.Process, Where: "process 99", PID: 99},
		Identity: evidence.Identity{Ref: withEvents(nil)[0], Name: "etcd1-events"},
	}
	pod := evidence.FoundServer{
		Server:   evidence.Server{Source: evidence.StaticPod, Where: "static pod etcd", PID: 7, InCluster: true},
		Identity: evidence.Identity{Ref: withEvents(nil)[0]},
	}
	boundPod := pod
	boundPod.Identity, boundPod.Stored = unitServer().Identity, &refs("a")[0]
	unreadable := stopped(unitServer(), nil)
	unreadable.Problems = []string{"permission denied"}
	announced := func(members []evidence.MemberRef) func(*Inputs) {
		return func(in *Inputs) { in.Announced, in.Protected = members, true }
	}
	bound := func(in *Inputs) { in.Clusters = []v1alpha1.EtcdCluster{boundCluster()} }
	for name, c := range map[string]struct {
		found      []evidence.FoundServer
		unknown    []string
		change     func(*Inputs)
		membership Membership
		reason     string
		because    string
		contains   []string
		announce   []evidence.MemberRef
	}{
		"answers": {
			found: []evidence.FoundServer{unitServer()}, membership: MemberPresent, reason: "SystemdUnit",
			because: unitA, announce: refs("a"),
		},
		"two clusters": {
			found: []evidence.FoundServer{unitServer(), events}, membership: MemberPresent, reason: "SystemdUnit",
			because: unitA + "; etcd member etcd1-events (f) of cluster abc, process 99", announce: withEvents(refs("a")),
		},
		"never answered": {
			found: []evidence.FoundServer{unanswered(unitServer())}, membership: MemberPresent, reason: "Unverified",
			because: "unverified etcd server, " + etcdUnit,
			contains: []string{
				etcdUnit + " did not answer: no client certificate was accepted: tried /etc/ssl/etcd/ssl/admin-w1.pem",
			},
		},
		"one answers, one hangs": {
			found:  []evidence.FoundServer{unitServer(), unansweredAt(events, "process 99")},
			change: announced(withEvents(refs("a"))), membership: MemberPresent, reason: "SystemdUnit",
			because: unitA + "; etcd member f of cluster abc, process 99", announce: withEvents(refs("a")),
		},
		"stopped, data, announced": {
			found: []evidence.FoundServer{stopped(unitServer(), new(true))}, change: announced(refs("a")),
			membership: MemberPresent, reason: "DataDirectory", because: "stopped " + unitA, announce: refs("a"),
		},
		"stopped, data, never announced": {
			found: []evidence.FoundServer{stopped(unitServer(), new(true))}, membership: MemberPresent,
			reason: "DataDirectory", because: "stopped etcd server with the data of a member, " + etcdUnit,
		},
		"installed, never started": {
			found: []evidence.FoundServer{stopped(unitServer(), new(false))}, membership: MemberAbsent, reason: "NotMember",
		},
		"stopped, unreadable data": {
			found: []evidence.FoundServer{unreadable}, change: announced(refs("a")), reason: "Unknown", announce: refs("a"),
			contains: []string{"stays protected: the data directory of " + etcdUnit + ": permission denied"},
		},
		"nothing": {
			membership: MemberAbsent, reason: "NotMember", contains: []string{"no etcd member is on this node"},
		},
		"incomplete scan": {unknown: []string{unread}, reason: "Unknown", contains: []string{unread}},
		"answers, incomplete scan": {
			found: []evidence.FoundServer{unitServer()}, unknown: []string{unread}, membership: MemberPresent,
			reason: "SystemdUnit", because: unitA, contains: []string{"could not be read: " + unread},
			announce: refs("a"),
		},
		"clusters not known": {
			change: func(in *Inputs) { in.ClustersKnown = false }, reason: "Unknown", contains: []string{"EtcdClusters"},
		},
		"removed": {
			found: []evidence.FoundServer{removedServer(unitServer())}, change: announced(refs("a")),
			membership: MemberAbsent, reason: "NotMember",
			contains: []string{"1 member found on this node has left its cluster"},
		},
		"removed, another cluster": {
			found: []evidence.FoundServer{removedServer(unitServer()), events}, change: announced(refs("a")),
			membership: MemberPresent, reason: "Process",
			because: "etcd member etcd1-events (f) of cluster abc, process 99", announce: withEvents(nil),
		},
		"nothing, bound": {
			change:     func(in *Inputs) { bound(in); in.Announced = refs("a") },
			membership: MemberPresent, reason: "Unverified", because: memberA + ", bound to this node", announce: refs("a"),
			contains: []string{"the member answers, so do not remove it"},
		},
		"bound to an earlier Node": {
			change: func(in *Inputs) { bound(in); in.UID = "u9-again" }, membership: MemberAbsent, reason: "NotMember",
		},
		"a static pod": {
			found: []evidence.FoundServer{pod}, change: func(in *Inputs) { in.StaticPods = true },
			membership: MemberPresent, reason: "StaticPod",
			because: "etcd member f of cluster abc, static pod etcd", announce: withEvents(nil),
		},
		"a static pod that does not count": {
			found: []evidence.FoundServer{pod}, membership: MemberAbsent, reason: "NotMember",
			contains: []string{"1 etcd static pod found on this node and not protected"},
		},
		"H18 a static pod that does not count, bound": {
			found: []evidence.FoundServer{boundPod}, change: bound,
			membership: MemberPresent, reason: "StaticPod", because: memberA + ", static pod etcd", announce: refs("a"),
		},
		"H18 a silent static pod that does not count, bound": {
			found:      []evidence.FoundServer{unanswered(boundPod)},
			change:     func(in *Inputs) { bound(in); in.Announced = refs("a") },
			membership: MemberPresent, reason: "StaticPod", because: memberA + ", static pod etcd", announce: refs("a"),
		},
		"H18 a static pod of another cluster, bound": {
			found: []evidence.FoundServer{unitServer(), pod}, change: bound,
			membership: MemberPresent, reason: "SystemdUnit", because: unitA, announce: refs("a"),
		},
		"ineffective annotation": {
			found:      []evidence.FoundServer{unitServer()},
			change:     func(in *Inputs) { in.Annotations = map[string]string{autoscaler.Karpenter: "false"} },
			membership: MemberPresent, reason: "SystemdUnit", because: unitA, announce: refs("a"),
			contains: []string{`annotation karpenter.sh/do-not-disrupt has the value "false"`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := Inputs{
				Node: "w9", UID: "u9", ClustersKnown: true, Clusters: []v1alpha1.EtcdCluster{unboundCluster()},
			}
			if c.change != nil {
				c.change(&in)
			}
			p := Assess(evidence.Scan{Found: c.found, Unknown: c.unknown}, in)
			require.Equal(t, c.membership, p.Membership, p.Message)
			require.Equal(t, c.reason, p.Reason)
			require.Equal(t, c.because, p.Because)
			require.Equal(t, c.announce, p.Announce)
			for _, words := range append(c.contains, c.because) {
				require.Contains(t, p.Message, words)
			}
			require.NotEmpty(t, p.Message)
		})
	}
}

// The state of the cluster changes with every grant, death and join of other members. It is not
// written to the Node, because each write makes the API server review a deletion again (F31).
func TestAssessWithoutCounts(t *testing.T) {
	calm := boundCluster()
	calm.Status.Voters, calm.Status.Healthy, calm.Status.MayLose = new(int32(3)), new(int32(3)), new(int32(1))
	granted, dead := *calm.DeepCopy(), quorumtest.Cluster{View: quorum.View{Cluster: calm.DeepCopy()}}
	granted.Spec.Grants = append(granted.Spec.Grants, quorumtest.GrantFor(1))
	granted.Status.Healthy, granted.Status.MayLose = new(int32(2)), new(int32(0))
	dead.Unhealthy(1).Cluster.Status.Healthy = new(int32(2))
	joined := *calm.DeepCopy()
	joined.Spec.Members = append(joined.Spec.Members, v1alpha1.Binding{MemberID: "d", Node: "w4", NodeUID: "u4"})
	joined.Status.Voters = new(int32(4))
	for o := range joined.Observations {
		list := &joined.Observations[o]
		list.Members = append(list.Members, quorumtest.Member(3))
	}
	assess := func(c v1alpha1.EtcdCluster, scan evidence.Scan) Protection {
		return Assess(scan, Inputs{
			Node: "w9", UID: "u9", ClustersKnown: true, Protected: true, Announced: refs("a"),
			Clusters: []v1alpha1.EtcdCluster{c},
		})
	}
	for name, scan := range map[string]evidence.Scan{
		"answers": scanOf(unitServer()), "hangs": scanOf(unanswered(unitServer())), "nothing is left": {},
	} {
		t.Run(name, func(t *testing.T) {
			before := assess(calm, scan)
			require.Contains(t, before.Message, "kubectl get etcdclusters")
			for change, c := range map[string]v1alpha1.EtcdCluster{
				"grant": granted, "death": *dead.Cluster, "join": joined,
			} {
				require.Equal(t, before, assess(c, scan), change)
			}
		})
	}
}

func TestAssessWithoutScan(t *testing.T) {
	p := AssessWithoutScan(Inputs{Protected: true, Announced: refs("a")}, "the host hangs")
	require.Equal(t, Protection{
		Reason: ReasonUnknown, Announce: refs("a"), Message: "the host hangs; the node stays protected",
	}, p)
	label := map[string]string{observation.EtcdMemberLabel: "true"}
	annotations, labels := Marks(p, map[string]string{BecauseAnnotation: "x"}, label, nil)
	require.Empty(t, annotations)
	require.Empty(t, labels)
}
