package presence

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/autoscaler"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
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
	boundAndAnnounced := func(in *Inputs) { bound(in); in.Announced = refs("a") }
	boundBefore := func(in *Inputs) { bound(in); in.UID = "u9-again" }
	countPods := func(in *Inputs) { in.StaticPods = true }
	unknownClusters := func(in *Inputs) { in.ClustersKnown = false }
	ineffective := func(in *Inputs) { in.Annotations = map[string]string{autoscaler.Karpenter: "false"} }
	const podA, processF = memberA + ", static pod etcd", "etcd member etcd1-events (f) of cluster abc, process 99"
	const noAnswer = etcdUnit + " did not answer: no client certificate was accepted: tried /etc/ssl/etcd/ssl/admin-w1.pem"
	const protected = "stays protected: the data directory of " + etcdUnit + ": permission denied"
	memberships := map[string]Membership{"NotMember": MemberAbsent, "Unknown": MembershipUnknown}
	type servers = []evidence.FoundServer
	answers, hangs := servers{unitServer()}, servers{unitServer(), unansweredAt(events, "process 99")}
	hasData, removed := servers{stopped(unitServer(), new(true))}, servers{removedServer(unitServer())}
	for name, c := range map[string]struct {
		found    servers
		change   func(*Inputs)
		reason   string // NotMember, Unknown, or that of a member
		because  string
		announce []evidence.MemberRef
		contains string
	}{
		"answers": {answers, nil, "SystemdUnit", unitA, refs("a"), ""},
		"two clusters": {
			servers{unitServer(), events}, nil, "SystemdUnit", unitA + "; " + processF, withEvents(refs("a")), "",
		},
		"never answered": {
			servers{unanswered(unitServer())}, nil, "Unverified", "unverified etcd server, " + etcdUnit, nil, noAnswer,
		},
		"one answers, one hangs": {
			hangs, announced(withEvents(refs("a"))), "SystemdUnit",
			unitA + "; etcd member f of cluster abc, process 99", withEvents(refs("a")), "",
		},
		"stopped, data, announced": {
			hasData, announced(refs("a")), "DataDirectory", "stopped " + unitA, refs("a"), "",
		},
		"stopped, data, never announced": {
			hasData, nil, "DataDirectory",
			"stopped etcd server with the data of a member, " + etcdUnit, nil, "",
		},
		"installed, never started": {servers{stopped(unitServer(), new(false))}, nil, "NotMember", "", nil, ""},
		"stopped, unreadable data": {servers{unreadable}, announced(refs("a")), "Unknown", "", refs("a"), protected},
		"nothing":                  {nil, nil, "NotMember", "", nil, "no etcd member is on this node"},
		"incomplete scan":          {nil, nil, "Unknown", "", nil, unread},
		"answers, incomplete scan": {
			answers, nil, "SystemdUnit", unitA, refs("a"), "could not be read: " + unread,
		},
		"clusters not known": {nil, unknownClusters, "Unknown", "", nil, "EtcdClusters"},
		"removed": {
			removed, announced(refs("a")), "NotMember", "", nil,
			"1 member found on this node has left its cluster",
		},
		"removed, another cluster": {
			servers{removedServer(unitServer()), events}, announced(refs("a")), "Process", processF, withEvents(nil), "",
		},
		"nothing, bound": {
			nil, boundAndAnnounced, "Unverified", memberA + ", bound to this node", refs("a"),
			"the member answers, so do not remove it",
		},
		"bound to an earlier Node": {nil, boundBefore, "NotMember", "", nil, ""},
		"a static pod": {
			servers{pod}, countPods, "StaticPod", "etcd member f of cluster abc, static pod etcd", withEvents(nil), "",
		},
		"a static pod that does not count": {
			servers{pod}, nil, "NotMember", "", nil, "1 etcd static pod found on this node and not protected",
		},
		"H18 a static pod that does not count, bound": {servers{boundPod}, bound, "StaticPod", podA, refs("a"), ""},
		"H18 a silent static pod that does not count, bound": {
			servers{unanswered(boundPod)}, boundAndAnnounced, "StaticPod", podA, refs("a"), "",
		},
		"H18 a static pod of another cluster, bound": {
			servers{unitServer(), pod}, bound, "SystemdUnit", unitA, refs("a"), "",
		},
		"ineffective annotation": {
			answers, ineffective, "SystemdUnit", unitA, refs("a"),
			`annotation karpenter.sh/do-not-disrupt has the value "false"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := Inputs{
				Node: "w9", UID: "u9", ClustersKnown: true, Clusters: []v1alpha1.EtcdCluster{unboundCluster()},
			}
			if c.change != nil {
				c.change(&in)
			}
			scan := scanOf(c.found...)
			if strings.Contains(name, "incomplete scan") {
				scan.Unknown = []string{unread}
			}
			p := Assess(scan, in)
			want, isAbsent := memberships[c.reason]
			if !isAbsent {
				want = MemberPresent
			}
			require.Equal(t, want, p.Membership, p.Message)
			require.Equal(t, c.reason, p.Reason)
			require.Equal(t, c.because, p.Because)
			require.Equal(t, c.announce, p.Announce)
			require.Contains(t, p.Message, c.because)
			require.Contains(t, p.Message, c.contains)
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
