package membership_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

// memberAt returns member i with the URL of another host.
func memberAt(i int, host string) v1alpha1.MemberStatus {
	m := quorumtest.Member(i)
	m.PeerURLs, m.ClientURLs = []string{"https://" + host + ":2380"}, nil
	return m
}

// membersAt returns members of which each is at another host.
func membersAt(hosts ...string) []v1alpha1.MemberStatus {
	var all []v1alpha1.MemberStatus
	for i, host := range hosts {
		all = append(all, memberAt(i, host))
	}
	return all
}

// An intruder that claims member b and publishes its own list binds nothing to itself, and keeps no
// host from its member.
func TestBindingsBesideIntruder(t *testing.T) {
	const forged, one = workerAddress, "10.0.0.1"
	const three = "10.0.0.3"
	honest := func(n int) string { return strings.Join([]string{"a=u1", "b=u2", "c=u3"}[:n], " ") }
	for name, c := range map[string]struct {
		voters  int
		noLists []int
		lie     []v1alpha1.MemberStatus
		// want is the result without roles. With roles, a list of one Node is enough.
		want string
	}{
		"lists itself":                     {3, nil, []v1alpha1.MemberStatus{memberAt(1, forged)}, honest(3)},
		"lists itself, one list":           {3, []int{1, 2}, []v1alpha1.MemberStatus{memberAt(1, forged)}, ""},
		"lists itself, two members":        {2, nil, []v1alpha1.MemberStatus{memberAt(1, forged)}, honest(2)},
		"lists all at itself":              {3, nil, membersAt(forged, forged, forged), honest(3)},
		"lists all at itself, two members": {2, nil, membersAt(forged, forged), honest(2)},
		"lists all at itself, no list":     {3, []int{0, 1, 2}, membersAt(forged, forged, forged), ""},
		"lists all elsewhere, no list":     {3, []int{0, 1, 2}, membersAt("192.0.2.1", forged, "192.0.2.2"), ""},
		"moves b, no list of b":            {3, []int{1}, membersAt(one, forged, three), honest(3)},
		"copies the list":                  {3, nil, members(3), honest(3)},
		"copies the list, one list":        {3, []int{1, 2}, members(3), honest(3)},
	} {
		t.Run(name, func(t *testing.T) {
			inModes(t, func(t *testing.T, m mode) {
				w := m.voters(c.voters).NeverBound().WithoutList(c.noLists...)
				worker, lie := quorumtest.Intruder(1, c.lie...)
				w.With(lie)
				want := c.want
				if m.hasRoles && len(c.noLists) < c.voters {
					want = honest(c.voters)
				}
				slices.Reverse(w.Cluster.Observations)
				bind(w, append(m.nodes(c.voters), worker))
				require.Equal(t, want, uids(w.Cluster.Spec.Members))
				slices.Reverse(w.Cluster.Observations)
				bind(w, append(m.nodes(c.voters), worker))
				require.Equal(t, want, uids(w.Cluster.Spec.Members))
			})
		})
	}
}

// A worker announces a foreign cluster first. When two hosts agree on their list, the worker loses
// the binding that it had by first use.
func TestFirstUseByWorker(t *testing.T) {
	inModes(t, func(t *testing.T, m mode) {
		for _, lied := range []v1alpha1.MemberStatus{memberAt(1, workerAddress), quorumtest.Member(1)} {
			w := m.voters(3).NeverBound()
			worker, lie := quorumtest.Intruder(1, lied)
			honest := w.Cluster.Observations
			w.Cluster.Observations = []v1alpha1.Observation{lie}
			bind(w, []observation.AnnouncingNode{worker})
			require.Equal(t, "b=uw", uids(w.Cluster.Spec.Members))
			w.Cluster.Observations = append(slices.Clone(honest[:1]), lie)
			w.Nodes = map[string]observation.NodeState{"worker": {Known: true, UID: "uw"}}
			require.Equal(t, quorum.CannotSee, quorum.Decide(w.View, quorumtest.Deletion(0)).Reason, "its word allows nothing")

			bind(w, append(m.nodes(1), worker))
			w.Cluster.Observations = append(slices.Clone(honest[:2]), lie)
			bind(w, append(m.nodes(2), worker))
			require.Equal(t, "a=u1 b=u2", uids(w.Cluster.Spec.Members))
			require.Equal(t, m.hasRoles, basisOf(w, 1) == v1alpha1.BasisRole, "the worker still announces it")
			bind(w, m.nodes(2))
			require.Equal(t, m.bound, basisOf(w, 1))
		}
	})
}

// A Node with a role announces a member that has left, because its agent does not run any more. A
// worker lists that member. It does not silence the hosts of etcd, which have no role.
func TestStaleAnnouncementOfRole(t *testing.T) {
	m := modes()["no roles"]
	w, nodes := m.voters(3), m.nodes(3)
	former := announcing("former", "uf", quorumtest.ID(9))
	former.HasRole = true
	worker, lie := quorumtest.Intruder(9, append(members(3), quorumtest.Member(9))...)
	bind(w.With(lie), append(nodes, former, worker))
	require.Equal(t, v1alpha1.AllNodes, w.Cluster.Spec.Observers)
	quorumtest.RequireAllowed(t, w, quorumtest.Deletion(0))
}

// One of three hosts gets a role. From then on its word counts alone, and the others are protected
// only.
func TestRoleLater(t *testing.T) {
	m := modes()["no roles"]
	w, nodes := m.voters(3), m.nodes(3)
	leftover := announcing("w4", "u4", "f")
	leftover.HasRole = true
	bind(w, append(nodes, leftover))
	require.Equal(t, v1alpha1.AllNodes, w.Cluster.Spec.Observers, "no list contains its member")
	nodes[2].HasRole = true
	bind(w, nodes)
	require.Equal(t, v1alpha1.NodesWithRole, w.Cluster.Spec.Observers)
	require.Equal(t, v1alpha1.BasisRole, basisOf(w, 2))
	require.Equal(t, v1alpha1.BasisClaim, basisOf(w, 0))
	quorumtest.RequireAllowed(t, w.Silent(0, 1), quorumtest.Deletion(0))

	nodes[2].HasRole = false
	bind(w, nodes)
	v := quorum.Decide(w.View, quorumtest.Deletion(0))
	require.Equal(t, quorum.CannotSee, v.Reason)
	require.Contains(t, words.Message(v), observation.RoleCommand)
}

// The agents of a new cluster answer one after the other.
func TestBindingsOneByOne(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4, 5, 7} {
		for name, url := range map[string]func(int) string{
			"own addresses":       func(i int) string { return "https://" + quorumtest.Address(i) + ":2380" },
			"loopback":            func(int) string { return "https://127.0.0.1:2380" },
			"addresses elsewhere": func(i int) string { return fmt.Sprintf("https://192.168.7.%d:2380", i) },
		} {
			t.Run(fmt.Sprint(n, " members, ", name), func(t *testing.T) {
				inModes(t, func(t *testing.T, m mode) {
					w := m.voters(n).NeverBound()
					for i := range n {
						w.URLs(i, url(i))
					}
					all := w.Cluster.Observations
					for answered := 1; answered <= n; answered++ {
						w.Cluster.Observations = all[:answered]
						refused := bind(w, m.nodes(n))
						if m.hasRoles || answered > 1 || n == 1 {
							require.Len(t, w.Cluster.Spec.Members, n, "%q", refused)
							require.Equal(t, m.bound, basisOf(w, n-1))
						} else {
							require.Empty(t, w.Cluster.Spec.Members)
							require.Len(t, refused, n)
						}
					}
				})
			})
		}
	}
}

// young returns a cluster without bindings whose EtcdCluster was created so long ago.
func (m mode) young(n int, age time.Duration) *quorumtest.Cluster {
	w := m.voters(n).NeverBound()
	w.Cluster.CreationTimestamp = metav1.NewTime(quorumtest.Noon().Add(-age))
	return w
}

// A worker that publishes first is not trusted while other Nodes announce the cluster.
// F22: a worker was the first one to claim a cluster, or a kubelet or an agent gave its Node a
// role.
func TestF22FirstPublisher(t *testing.T) {
	worker, lie := quorumtest.Intruder(1, memberAt(1, workerAddress))
	forger := observation.AnnouncingNode{
		Node: "worker", UID: "uw", Addresses: []string{quorumtest.Address(0), quorumtest.Address(1), quorumtest.Address(2)},
	}
	roles, noRoles := modes()["roles"], modes()["no roles"]
	lying := func(age time.Duration) *quorumtest.Cluster {
		return noRoles.young(3, age).WithoutList(0, 1, 2).With(lie)
	}
	alone := []observation.AnnouncingNode{worker}
	// announcer has the address of member a, and announces it too.
	announcer, copied := quorumtest.Intruder(0, members(3)...)
	announcer.Addresses = append(announcer.Addresses, quorumtest.Address(0))
	external := noRoles.young(3, time.Hour)
	external.Cluster.Observations = external.Cluster.Observations[:1]
	for name, c := range map[string]struct {
		cluster *quorumtest.Cluster
		nodes   []observation.AnnouncingNode
		want    string
		refused string
	}{
		"the others announce": {
			lying(time.Hour), append(noRoles.nodes(3), worker), "", "two Nodes must publish the same one",
		},
		"the others announce soon": {lying(time.Second), alone, "", "may announce the cluster until 2026-05-01T12:00:59Z"},
		"alone after a minute":     {lying(time.Minute), alone, "b=uw", ""},
		"two agree at once":        {noRoles.young(3, 0).WithoutList(2), noRoles.nodes(3), "a=u1 b=u2 c=u3", ""},
		"a role at once":           {roles.young(3, 0).WithoutList(1, 2), roles.nodes(3), "a=u1 b=u2 c=u3", ""},
		"one member with a role":   {roles.young(1, 0), roles.nodes(1), "a=u1", ""},
		"one member":               {noRoles.young(1, time.Second), noRoles.nodes(1), "", "until 2026-05-01T12:00:59Z"},
		"one member, later":        {noRoles.young(1, time.Minute), noRoles.nodes(1), "a=u1", ""},
		"forged addresses":         {noRoles.young(3, 0), append(noRoles.nodes(3), forger), "a=u1 b=u2 c=u3", ""},
		"forged announcement": {
			noRoles.young(3, 0).With(copied), append(noRoles.nodes(3), announcer), "b=u2 c=u3",
			"equally likely to run the member: w1, worker: remove the announcement",
		},
		"forged announcement, roles": {
			roles.young(3, 0).With(copied), append(roles.nodes(3), announcer), "a=u1 b=u2 c=u3", "",
		},
		"forged external addresses": {external, append(noRoles.nodes(1), forger), "a=u1", ""},
		"claim beside addresses": {
			noRoles.young(3, 0).URLs(2, "https://192.168.7.3:2380"), noRoles.nodes(3), "a=u1 b=u2 c=u3", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			refused := bind(c.cluster, c.nodes)
			require.Equal(t, c.want, uids(c.cluster.Cluster.Spec.Members), "%v", refused)
			if c.refused != "" {
				require.Contains(t, refused[0].Reason, c.refused)
			}
			if name == "forged announcement" {
				quorumtest.RequireAllowed(t, c.cluster, quorumtest.Deletion(1))
			}
		})
	}
}

// The URLs of all members name no address of a Node. A worker has the host of one of them as its
// own address, and announces that member. It does not make the hosts of the others mere claimants,
// so their words still count.
func TestForgedAddressBesideOthersElsewhere(t *testing.T) {
	m := modes()["no roles"]
	for _, c := range []struct{ hosts, forged, other int }{{3, 0, 1}, {3, 2, 0}, {2, 2, 0}} {
		for _, isFirst := range []bool{false, true} {
			w, nodes := m.young(3, 0), m.nodes(c.hosts)
			for i := range 3 {
				w.URLs(i, fmt.Sprintf("https://192.168.7.%d:2380", i))
			}
			worker, lie := quorumtest.Intruder(c.forged, quorumtest.CopyMembers(w.Cluster.Observations[0].Members)...)
			worker.Addresses = append(worker.Addresses, fmt.Sprintf("192.168.7.%d", c.forged))
			w.Cluster.Observations = w.Cluster.Observations[:c.hosts]
			w.With(lie)
			if isFirst {
				bind(w, []observation.AnnouncingNode{nodes[1], worker})
			}
			for range 2 {
				bind(w, append(slices.Clone(nodes), worker))
			}
			w.Cluster.Observations[len(w.Cluster.Observations)-1].Nonce = "before"
			quorumtest.RequireAllowed(t, w, quorumtest.Deletion(c.other))
			if c.forged < c.hosts {
				w.State(c.forged, quorumtest.Departing)
				quorumtest.RequireRefused(t, w, quorumtest.Deletion(c.other), "only 1 would remain")
			}
		}
	}
}
