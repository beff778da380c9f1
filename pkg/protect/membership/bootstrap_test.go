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
	"github.com/holdfast-dev/holdfast/pkg/protect/membership"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
)

// memberAt returns member i with the URL of another host.
func memberAt(i int, host string) v1alpha1.MemberStatus {
	m := quorumtest.Member(i)
	m.PeerURLs, m.ClientURLs = []string{"https://" + host + ":2380"}, nil
	return m
}

// members returns the first n members.
func members(n int) []v1alpha1.MemberStatus {
	var all []v1alpha1.MemberStatus
	for i := range n {
		all = append(all, quorumtest.Member(i))
	}
	return all
}

// membersAt returns members of which each is at another host.
func membersAt(hosts ...string) []v1alpha1.MemberStatus {
	var all []v1alpha1.MemberStatus
	for i, host := range hosts {
		all = append(all, memberAt(i, host))
	}
	return all
}

// bindWith binds a cluster of n members whose Nodes all claim their members, as does one more Node.
func bindWith(
	c *v1alpha1.EtcdCluster, n int, also observation.AnnouncingNode,
) ([]v1alpha1.Binding, []membership.Refusal) {
	return membership.Bind(c, append(quorumtest.Nodes(n), also), []string{quorumtest.Nonce}, quorumtest.Noon())
}

// An intruder that claims member b and publishes its own list binds nothing to itself.
func TestBootstrapIntruder(t *testing.T) {
	const forged, one = workerAddress, "10.0.0.1"
	const three = "10.0.0.3"
	voters := quorumtest.Voters
	honest := func(n int) string { return strings.Join([]string{"a=u1", "b=u2", "c=u3"}[:n], " ") }
	for name, c := range map[string]struct {
		honest *quorumtest.Cluster
		lie    []v1alpha1.MemberStatus
		want   string
	}{
		"lists itself":                     {voters(3), []v1alpha1.MemberStatus{memberAt(1, forged)}, honest(3)},
		"lists itself, one list":           {voters(3).WithoutList(1, 2), []v1alpha1.MemberStatus{memberAt(1, forged)}, ""},
		"lists itself, two members":        {voters(2), []v1alpha1.MemberStatus{memberAt(1, forged)}, honest(2)},
		"lists all at itself":              {voters(3), membersAt(forged, forged, forged), honest(3)},
		"lists all at itself, two members": {voters(2), membersAt(forged, forged), honest(2)},
		"lists all at itself, no list":     {voters(3).WithoutList(0, 1, 2), membersAt(forged, forged, forged), ""},
		"lists all elsewhere, no list":     {voters(3).WithoutList(0, 1, 2), membersAt("192.0.2.1", forged, "192.0.2.2"), ""},
		"moves b, one list":                {voters(3).WithoutList(1, 2), membersAt(one, forged, three), ""},
		"moves b, no list of b":            {voters(3).WithoutList(1), membersAt(one, forged, three), "a=u1 c=u3"},
		"copies the list":                  {voters(3), members(3), honest(3)},
		"copies the list, one list":        {voters(3).WithoutList(1, 2), members(3), ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := c.honest.NeverBound()
			n := len(w.Cluster.Observations)
			worker, lie := quorumtest.Intruder(1, c.lie...)
			w.With(lie)
			reversed := w.Cluster.DeepCopy()
			slices.Reverse(reversed.Observations)
			bindings, _ := bindWith(reversed, n, worker)
			require.Equal(t, c.want, uids(bindings), "the order of the observations must not matter")
			bindings, refused := bindWith(w.Cluster, n, worker)
			require.Equal(t, c.want, uids(bindings), "%q", refused)
			if len(bindings) == 0 {
				require.Len(t, refused, n+1)
				return
			}
			w.Cluster.Spec.Members = bindings // these observers bind the other members
			bindings, _ = bindWith(w.Cluster, n, worker)
			require.Equal(t, honest(n), uids(bindings))
		})
	}
}

// A member that is alone in its list is trusted on first use. A wrong list of it does not delete
// the Nodes of agents with longer lists.
func TestTrustOnFirstUse(t *testing.T) {
	w := quorumtest.Voters(3).NeverBound()
	worker, lie := quorumtest.Intruder(1, memberAt(1, workerAddress))
	honest := w.Cluster.Observations
	w.Cluster.Observations = []v1alpha1.Observation{lie}
	nodes := []observation.AnnouncingNode{worker}
	w.Cluster.Spec.Members, _ = membership.Bind(w.Cluster, nodes, w.Nonces, quorumtest.Noon())
	require.Equal(t, "b=uw", uids(w.Cluster.Spec.Members))
	w.Nodes = map[string]observation.NodeState{"worker": {Known: true, UID: "uw"}}
	w.Cluster.Observations = append(honest, lie)
	quorumtest.RequireRefused(t, w, quorumtest.Deletion(0), "2 of 3 voters must be healthy, and only 1")
}

func TestBootstrapLoopback(t *testing.T) {
	w := quorumtest.Voters(3).NeverBound().URLsOfAll("https://127.0.0.1:2380")
	worker, lie := quorumtest.Intruder(1, w.Observer(0).Members...)
	bindings, refused := bindWith(w.With(lie).Cluster, 3, worker)
	require.Equal(t, "a=u1 c=u3", uids(bindings))
	require.Len(t, refused, 2)
	bindings, _ = bindWith(w.WithoutList(2).Cluster, 3, worker)
	require.Empty(t, bindings, "only one of three members is claimed by a single Node")
}

// The agents of a new cluster answer one after the other.
func TestBootstrapOneByOne(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4, 5, 7} {
		for name, url := range map[string]func(int) string{
			"own addresses":       func(i int) string { return "https://" + quorumtest.Address(i) + ":2380" },
			"loopback":            func(int) string { return "https://127.0.0.1:2380" },
			"addresses elsewhere": func(i int) string { return fmt.Sprintf("https://192.168.7.%d:2380", i) },
		} {
			t.Run(fmt.Sprint(n, " members, ", name), func(t *testing.T) {
				w := quorumtest.Voters(n).NeverBound()
				for i := range n {
					w.URLs(i, url(i))
				}
				all := w.Cluster.Observations
				for answered := 1; answered <= n; answered++ {
					w.Cluster.Observations = all[:answered]
					bindings, refused := membership.Bind(w.Cluster, quorumtest.Nodes(n), w.Nonces, quorumtest.Noon())
					if answered > n/2 {
						require.NotEmpty(t, bindings, "%q", refused)
					} else {
						require.Empty(t, bindings)
						require.Len(t, refused, n)
					}
					w.Cluster.Spec.Members = bindings
				}
				bindings, refused := membership.Bind(w.Cluster, quorumtest.Nodes(n), w.Nonces, quorumtest.Noon())
				require.Len(t, bindings, n, "%q", refused)
				require.Empty(t, refused)
			})
		}
	}
}

// No claim is expected for members on hosts that are not Nodes.
func TestBootstrapOutsideKubernetes(t *testing.T) {
	w := quorumtest.Voters(3).NeverBound()
	w.Cluster.Observations = w.Cluster.Observations[:1]
	bindings, refused := membership.Bind(w.Cluster, quorumtest.Nodes(1), w.Nonces, quorumtest.Noon())
	require.Equal(t, "a=u1", uids(bindings), "%q", refused)
}

// young returns a cluster without bindings whose EtcdCluster was created so long ago.
func young(n int, age time.Duration) *quorumtest.Cluster {
	w := quorumtest.Voters(n).NeverBound()
	w.Cluster.CreationTimestamp = metav1.NewTime(quorumtest.Noon().Add(-age))
	return w
}

// A worker that publishes first is not trusted while other Nodes announce the cluster.
func TestF22FirstPublisher(t *testing.T) {
	worker, lie := quorumtest.Intruder(1, memberAt(1, workerAddress))
	silent := func(n int) []observation.AnnouncingNode {
		nodes := quorumtest.Nodes(n)
		for i := range nodes {
			nodes[i].Announced = nil
		}
		return nodes
	}
	lying := func(age time.Duration) *quorumtest.Cluster { return young(3, age).WithoutList(0, 1, 2).With(lie) }
	external := young(3, time.Hour)
	external.Cluster.Observations = external.Cluster.Observations[:1]
	forger := observation.AnnouncingNode{
		Node: "worker", UID: "uw", Addresses: []string{quorumtest.Address(0), quorumtest.Address(1), quorumtest.Address(2)},
	}
	one := func(age time.Duration) *quorumtest.Cluster {
		w := young(3, age)
		w.Cluster.Observations = w.Cluster.Observations[:1]
		return w
	}
	for name, c := range map[string]struct {
		cluster *quorumtest.Cluster
		nodes   []observation.AnnouncingNode
		want    string
		refused string
	}{
		"the others announce": {
			lying(time.Hour), append(quorumtest.Nodes(3), worker), "", "node w3 has published none",
		},
		"the others announce soon":      {lying(time.Second), append(silent(3), worker), "", "until 2026-05-01T12:00:59Z"},
		"alone after the grace period":  {lying(time.Minute), append(silent(3), worker), "b=uw", ""},
		"complete":                      {young(3, time.Second), quorumtest.Nodes(3), "a=u1 b=u2 c=u3", ""},
		"one member":                    {young(1, time.Second), quorumtest.Nodes(1), "", "until 2026-05-01T12:00:59Z"},
		"one member, later":             {young(1, time.Minute), quorumtest.Nodes(1), "a=u1", ""},
		"one Node waits for the others": {one(time.Minute), append(quorumtest.Nodes(1), silent(3)[1:]...), "", "and 1 are"},
		"the others have no agent":      {one(10 * time.Minute), append(quorumtest.Nodes(1), silent(3)[1:]...), "a=u1", ""},
		"two of three, third expected":  {young(3, time.Second).WithoutList(2), quorumtest.Nodes(3), "", "until"},
		"two of three":                  {young(3, time.Minute).WithoutList(2), quorumtest.Nodes(3), "a=u1 b=u2", ""},
		"forged addresses":              {young(3, time.Second), append(quorumtest.Nodes(3), forger), "a=u1 b=u2 c=u3", ""},
		"forged external addresses":     {external, append(quorumtest.Nodes(1), forger), "a=u1", ""},
		"claim beside addresses": {
			young(3, time.Hour).URLs(2, "https://192.168.7.3:2380"), quorumtest.Nodes(3), "a=u1 b=u2", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			bindings, refused := membership.Bind(c.cluster.Cluster, c.nodes, c.cluster.Nonces, quorumtest.Noon())
			require.Equal(t, c.want, uids(bindings), "%v", refused)
			for _, b := range bindings {
				require.Equal(t, v1alpha1.BasisBootstrap, b.Basis)
			}
			if c.refused != "" {
				require.Contains(t, refused[0].String(), c.refused)
			}
		})
	}
}

// A Node that has the address of a member and announces it as well: the other members are bound.
func TestF22ForgedAnnouncement(t *testing.T) {
	worker, lie := quorumtest.Intruder(0, members(3)...)
	worker.Addresses = append(worker.Addresses, quorumtest.Address(0))
	w := young(3, time.Hour).With(lie)
	refused := bind(w, append(quorumtest.Nodes(3), worker))
	require.Equal(t, "b=u2 c=u3", uids(w.Cluster.Spec.Members), "%v", refused)
	refused = bind(w, append(quorumtest.Nodes(3), worker))
	require.Equal(t, "b=u2 c=u3", uids(w.Cluster.Spec.Members))
	require.Contains(t, refused[0].String(), "addresses of several Nodes: w1, worker")

	two := young(2, time.Hour).With(lie)
	two.Cluster.Observations[2].Members = members(2)
	refused = bind(two, append(quorumtest.Nodes(2), worker))
	require.Empty(t, two.Cluster.Spec.Members)
	require.Contains(t, refused[0].String(), "node w1 claims member a, which may run on several Nodes: w1, worker: "+
		"remove the address or the announcement from the wrong one")
}
