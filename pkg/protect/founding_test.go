package protect

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// intruder is a worker that claims member i and publishes this list of its own.
func intruder(i int, members ...v1alpha1.MemberStatus) (NodeClaim, v1alpha1.Observation) {
	return NodeClaim{Node: "worker", UID: "uw", Addresses: []string{"10.0.0.99"}, Announced: []MemberRef{{clusterX, id(i)}}},
		v1alpha1.Observation{Node: "worker", NodeUID: "uw", Nonce: asked, LocalMember: id(i), Linearizable: true, Members: members}
}

// at is member i with the URL of another host.
func at(i int, host string) v1alpha1.MemberStatus {
	m := member(i)
	m.PeerURLs, m.ClientURLs = []string{"https://" + host + ":2380"}, nil
	return m
}

func (w *world) with(o v1alpha1.Observation) *world {
	w.Cluster.Status.Observations = append(w.Cluster.Status.Observations, o)
	return w
}

func bound(bindings []v1alpha1.Binding) map[v1alpha1.MemberID]types.UID {
	found := map[v1alpha1.MemberID]types.UID{}
	for _, b := range bindings {
		found[b.MemberID] = b.NodeUID
	}
	return found
}

func TestFoundingWithAnIntruder(t *testing.T) {
	const away = "10.0.0.99"
	honest := func(n int) map[v1alpha1.MemberID]types.UID {
		all := map[v1alpha1.MemberID]types.UID{}
		for i := range n {
			all[id(i)] = uid(i)
		}
		return all
	}
	for name, c := range map[string]struct {
		honest  *world
		members []v1alpha1.MemberStatus
		want    map[v1alpha1.MemberID]types.UID
	}{
		"it lists itself alone, and everybody has answered": {voters(3), []v1alpha1.MemberStatus{at(1, away)}, honest(3)},
		"it lists itself alone, and one has answered":       {voters(3).blind(1, 2), []v1alpha1.MemberStatus{at(1, away)}, honest(0)},
		"it lists all, at its own address":                  {voters(3), []v1alpha1.MemberStatus{at(0, away), at(1, away), at(2, away)}, honest(3)},
		"it lists all, at its own address, of two":          {voters(2), []v1alpha1.MemberStatus{at(0, away), at(1, away)}, honest(2)},
		"it lists all, and one has answered":                {voters(3).blind(1, 2), []v1alpha1.MemberStatus{member(0), at(1, away), member(2)}, honest(0)},
		"it lists all as it is, and one has answered":       {voters(3).blind(1, 2), []v1alpha1.MemberStatus{member(0), member(1), member(2)}, honest(0)},
		"it lists all, and the member's host is silent":     {voters(3).blind(1), []v1alpha1.MemberStatus{member(0), at(1, away), member(2)}, map[v1alpha1.MemberID]types.UID{"a": "u1", "c": "u3"}},
		"it lists all, at its own address, and is first":    {voters(3).blind(0, 1, 2), []v1alpha1.MemberStatus{at(0, away), at(1, away), at(2, away)}, honest(0)},
		"it lists all, the others nowhere, and is first":    {voters(3).blind(0, 1, 2), []v1alpha1.MemberStatus{at(0, "192.0.2.1"), at(1, away), at(2, "192.0.2.2")}, honest(0)},
		"it lists all as it is":                             {voters(3), []v1alpha1.MemberStatus{member(0), member(1), member(2)}, honest(3)},
		"it claims the one member":                          {voters(2), []v1alpha1.MemberStatus{at(1, away)}, honest(2)},
	} {
		t.Run(name, func(t *testing.T) {
			w := c.honest.neverBound()
			n := len(w.Cluster.Status.Observations)
			worker, lie := intruder(1, c.members...)
			w.with(lie)
			last := w.Cluster.DeepCopy()
			slices.Reverse(last.Status.Observations)
			bindings, _ := Bind(last, append(claims(n), worker), w.Asked)
			require.Equal(t, c.want, bound(bindings), "whoever comes first")
			bindings, refused := Bind(w.Cluster, append(claims(n), worker), w.Asked)
			require.Equal(t, c.want, bound(bindings), "%q", refused)
			if len(bindings) == 0 {
				require.Len(t, refused, n+1)
				return
			}
			w.Cluster.Spec.Members = bindings // the others are bound by those who are
			bindings, _ = Bind(w.Cluster, append(claims(n), worker), w.Asked)
			require.Equal(t, honest(n), bound(bindings))
		})
	}
}

// TestFoundedByALiar: a member that is alone in its list is trusted on first use. What it is trusted with then does not
// delete the Nodes of those who see more.
func TestFoundedByALiar(t *testing.T) {
	w := voters(3).neverBound()
	worker, lie := intruder(1, at(1, "10.0.0.99"))
	honest := w.Cluster.Status.Observations
	w.Cluster.Status.Observations = []v1alpha1.Observation{lie}
	w.Cluster.Spec.Members, _ = Bind(w.Cluster, []NodeClaim{worker}, w.Asked)
	require.Equal(t, map[v1alpha1.MemberID]types.UID{"b": "uw"}, bound(w.Cluster.Spec.Members))
	w.Nodes = map[string]NodeState{"worker": {Known: true, UID: "uw"}}
	w.Cluster.Status.Observations = append(honest, lie)
	refuses(t, w, deletion(0), "of 3 voters 2 must live, and only 1")
}

func TestFoundingWithTwoClaimsThatNoAddressTellsApart(t *testing.T) {
	w := voters(3).neverBound().urlsOfAll("https://127.0.0.1:2380")
	worker, lie := intruder(1, w.observer(0).Members...)
	w.with(lie)
	nodes := append(claims(3), worker)
	bindings, _ := Bind(w.blind(2).Cluster, nodes, w.Asked)
	require.Empty(t, bindings, "one of three is claimed by one Node alone")
	w = voters(3).neverBound().urlsOfAll("https://127.0.0.1:2380").with(lie)
	bindings, refused := Bind(w.Cluster, nodes, w.Asked)
	require.Equal(t, map[v1alpha1.MemberID]types.UID{"a": "u1", "c": "u3"}, bound(bindings))
	require.Len(t, refused, 2)
}

// TestFoundingOneByOne lets the agents of a new cluster answer one after the other.
func TestFoundingOneByOne(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4, 5, 7} {
		for name, url := range map[string]func(int) string{
			"own addresses":       func(i int) string { return "https://" + address(i) + ":2380" },
			"loopback":            func(int) string { return "https://127.0.0.1:2380" },
			"addresses elsewhere": func(i int) string { return fmt.Sprintf("https://192.168.7.%d:2380", i) },
		} {
			t.Run(fmt.Sprint(n, " members, ", name), func(t *testing.T) {
				w := voters(n).neverBound()
				for i := range n {
					w.urls(i, url(i))
				}
				all := w.Cluster.Status.Observations
				for answered := 1; answered <= n; answered++ {
					w.Cluster.Status.Observations = all[:answered]
					bindings, refused := Bind(w.Cluster, claims(n), w.Asked)
					if answered > n/2 {
						require.NotEmpty(t, bindings, "%q", refused)
					} else {
						require.Empty(t, bindings)
						require.Len(t, refused, n)
					}
					w.Cluster.Spec.Members = bindings
				}
				bindings, refused := Bind(w.Cluster, claims(n), w.Asked)
				require.Len(t, bindings, n, "%q", refused)
				require.Empty(t, refused)
			})
		}
	}
}

// Hosts that are no Nodes can claim nothing, and are not waited for.
func TestFoundingOfAClusterThatRunsOutsideForTheMostPart(t *testing.T) {
	w := voters(3).neverBound()
	w.Cluster.Status.Observations = w.Cluster.Status.Observations[:1]
	bindings, refused := Bind(w.Cluster, claims(1), w.Asked)
	require.Equal(t, map[v1alpha1.MemberID]types.UID{"a": "u1"}, bound(bindings), "%q", refused)
}

// A worker must not inherit what a deleted Node held, and a replaced host must.
func TestTakingOverAMemberWhoseNodeIsGone(t *testing.T) {
	addressOf := func(host string) func(*world) *world {
		return func(w *world) *world { return w.urls(1, "https://"+host+":2380") }
	}
	same := func(w *world) *world { return w }
	settledByHand := func(w *world) *world {
		grants, bindings, ok := SettledByHand(w.Cluster, "u2", map[string]NodeState{"w2": {Known: true}})
		require.True(t, ok)
		w.Cluster.Spec.Grants, w.Cluster.Spec.Members = grants, bindings
		return w
	}
	for name, c := range map[string]struct {
		world    func(*world) *world
		claimant NodeClaim
		want     types.UID
		refused  string
	}{
		"a worker, no Node has the address":          {same, NodeClaim{Node: "worker", UID: "uw", Addresses: []string{"10.0.0.99"}}, "u2", "only a Node of that name"},
		"a worker, loopback":                         {addressOf("127.0.0.1"), NodeClaim{Node: "worker", UID: "uw", Addresses: []string{"10.0.0.99"}}, "u2", "only a Node of that name"},
		"a worker that has forged the address":       {same, NodeClaim{Node: "worker", UID: "uw", Addresses: []string{"10.0.0.99", address(1)}}, "u2", "only a Node of that name"},
		"the host under a new name":                  {same, NodeClaim{Node: "renamed", UID: "u9", Addresses: []string{address(1)}}, "u2", "only a Node of that name can take it over, or any once the grant for UID u2 is settled by hand"},
		"the host under a new name, settled by hand": {settledByHand, NodeClaim{Node: "renamed", UID: "u9", Addresses: []string{address(1)}}, "u9", ""},
		"the host under its old name":                {same, NodeClaim{Node: "w2", UID: "u2-again", Addresses: []string{address(1)}}, "u2-again", ""},
		"under its old name, loopback":               {addressOf("127.0.0.1"), NodeClaim{Node: "w2", UID: "u2-again", Addresses: []string{address(1)}}, "u2-again", ""},
		"under its old name, elsewhere":              {addressOf("192.168.7.2"), NodeClaim{Node: "w2", UID: "u2-again", Addresses: []string{address(1)}}, "u2-again", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := c.world(voters(3).granted(1))
			c.claimant.Announced = []MemberRef{{clusterX, "b"}}
			bindings, refused := Bind(w.Cluster, []NodeClaim{claims(3)[0], claims(3)[2], c.claimant}, w.Asked)
			require.Equal(t, map[v1alpha1.MemberID]types.UID{"a": "u1", "b": c.want, "c": "u3"}, bound(bindings))
			require.Equal(t, c.refused == "", len(refused) == 0, "%q", refused)
			if c.refused != "" {
				require.Contains(t, refused[0], c.refused)
			}
		})
	}
}

// A worker with a lost root announces the member of a deleted Node, and writes that Node's address into its own. Bound, it
// would be heard, and could prove the dead healthy.
func TestAForgedAddressMakesNoObserver(t *testing.T) {
	w := voters(5).granted(2).state(2, goneNode).dead(1, 2)
	refuses(t, w, deletion(0), "of 5 voters 3 must live, and only 2")
	all := claims(5)
	worker, lie := intruder(2, member(0), member(1), member(2), member(3), member(4))
	worker.Addresses = append(worker.Addresses, address(2))
	w.Cluster.Spec.Members, _ = Bind(w.Cluster, []NodeClaim{all[0], all[1], all[3], all[4], worker}, w.Asked)
	w.Nodes["worker"] = NodeState{Known: true, UID: "uw"}
	refuses(t, w.with(lie), deletion(0), "of 5 voters 3 must live, and only 2")

	again := all[2]
	again.UID = "u3-again"
	worker.Addresses = worker.Addresses[:1]
	bindings, _ := Bind(w.Cluster, []NodeClaim{all[0], all[1], again, all[3], all[4], worker}, w.Asked)
	require.EqualValues(t, "u3-again", bound(bindings)["c"], "who announces it as well does not keep it from its own host")
}

func TestOneVoiceUnbindsNobodyWhileAnotherMayContradict(t *testing.T) {
	w := voters(3).removed(0).silent(1, 2)
	bindings, _ := Bind(w.Cluster, claims(3), w.Asked)
	require.Len(t, bindings, 3)
	bindings, _ = Bind(w.Cluster, claims(1), w.Asked)
	require.Len(t, bindings, 2, "the others are gone")
}
