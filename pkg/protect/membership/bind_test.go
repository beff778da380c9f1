package membership_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/membership"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
)

// workerAddress is the address of a Node that runs no member.
const workerAddress = "10.0.0.99"

// announcing returns a Node that announces a member of the cluster.
func announcing(node string, uid types.UID, member v1alpha1.MemberID, addresses ...string) observation.AnnouncingNode {
	return observation.AnnouncingNode{
		Node: node, UID: uid, Addresses: addresses,
		Announced: []evidence.MemberRef{{Cluster: quorumtest.ClusterID, Member: member}},
	}
}

// uids returns bindings as "a=u1 b=u2".
func uids(bindings []v1alpha1.Binding) string {
	var words []string
	for _, b := range bindings {
		words = append(words, fmt.Sprintf("%s=%s", b.MemberID, b.NodeUID))
	}
	return strings.Join(words, " ")
}

func ExampleBind() {
	cluster := &v1alpha1.EtcdCluster{
		ObjectMeta: metav1.ObjectMeta{Name: "cdf818194e3a8c32"},
		Observations: []v1alpha1.Observation{{
			Node: "node1", NodeUID: "uid1", Nonce: "n1", LocalMember: "a", Linearizable: true,
			Members: []v1alpha1.MemberStatus{{ID: "a", Name: "etcd1", PeerURLs: []string{"https://10.0.0.1:2380"}}},
		}},
	}
	nodes := []observation.AnnouncingNode{announcing("node1", "uid1", "a", "10.0.0.1")}
	cluster.Spec.Members, _ = membership.Bind(cluster, nodes, []string{"n1"}, quorumtest.Noon())
	nodes = append(nodes, announcing("node2", "uid2", "a", "10.0.0.2")) // the member of node1
	bindings, refused := membership.Bind(cluster, nodes, []string{"n1"}, quorumtest.Noon())
	fmt.Println(bindings[0].MemberID, "on", bindings[0].Node)
	fmt.Println(len(refused), "claim is refused")
	// Output:
	// a on node1
	// 1 claim is refused
}

func TestBind(t *testing.T) {
	const unchanged, unboundA = "a=u1 b=u2 c=u3", "b=u2 c=u3"
	three := func() *quorumtest.Cluster { return quorumtest.Voters(3).WithoutRoles() }
	fresh := func() *quorumtest.Cluster { return three().NeverBound() }
	nodes := func(n int) []observation.AnnouncingNode { return quorumtest.WithoutRoles(quorumtest.Nodes(n)) }
	with := func(n observation.AnnouncingNode) []observation.AnnouncingNode { return append(nodes(3), n) }
	insteadOfFirst := func(n ...observation.AnnouncingNode) []observation.AnnouncingNode {
		return append(nodes(3)[1:], n...)
	}
	worker := announcing("worker", "uw", "a", workerAddress)
	forger := announcing("worker", "uw", "a", quorumtest.Address(0))
	silent := observation.AnnouncingNode{Node: "w1", UID: "u1", Addresses: []string{quorumtest.Address(0)}}
	otherCluster := silent
	otherCluster.Announced = []evidence.MemberRef{{Cluster: "abc", Member: "a"}}
	hostOfTwo := append(nodes(2), announcing("worker", "uw", "a", workerAddress))
	hostOfTwo[0].Announced, hostOfTwo[2].Announced = refs(0, 2), refs(0, 2)
	reborn := nodes(3)
	reborn[0].UID = "u1-again"
	const unlisted, likely = "no confirmed member list of an observer contains the member", "equally likely"
	const howToList = unlisted + ": two Nodes must publish the same one, or a Node with a role: " +
		"kubectl label node NAME node-role.kubernetes.io/etcd="
	const unwritten = "the member's node w1 is gone, and the grant for it is not written yet"
	voters, alone := quorumtest.Voters, quorumtest.Voters(1).NeverBound().Unconfirmed(0)
	at := func(w *quorumtest.Cluster, url string) *quorumtest.Cluster {
		return w.Unbound(0).URLs(0, "https://"+url)
	}
	twoOnOne := three().Unbound(0).Unbound(2).URLs(2, "https://"+quorumtest.Address(0)+":2381")
	atWorker := observation.AnnouncingNode{Node: "x", UID: "ux", Addresses: []string{workerAddress}}
	type refusals = []string
	for name, c := range map[string]struct {
		cluster *quorumtest.Cluster
		nodes   []observation.AnnouncingNode
		want    string
		refused refusals
	}{
		"new cluster":                   {fresh(), nodes(3), unchanged, nil},
		"new cluster, roles":            {fresh().WithoutList(0, 1), quorumtest.Nodes(3), unchanged, nil},
		"new cluster, one list":         {fresh().WithoutList(0, 1), nodes(3), "", refusals{howToList, "w2", "w3"}},
		"new cluster, no list":          {fresh().WithoutList(0, 1, 2), nodes(1), "", refusals{"w1: " + unlisted}},
		"new cluster, unconfirmed list": {alone, nodes(1), "", refusals{unlisted}},
		"new cluster, list of a Node without claim": {
			fresh().WithoutList(0, 1), nodes(2), "", refusals{"w1: ", "w2: "},
		},
		"unchanged": {three(), nodes(3), unchanged, nil},
		"bound to an existing Node": {
			three(), with(worker), unchanged, refusals{"worker: the member is bound to node w1, which exists"},
		},
		"at the address of another Node": {
			three().Unbound(0), insteadOfFirst(silent, worker), unboundA,
			refusals{"the member's URLs name an address of node w1"},
		},
		"forged address": {
			three().Unbound(0), with(forger), unboundA,
			refusals{"several Nodes are equally likely to run the member: w1, worker", likely},
		},
		"forged address, roles": {voters(3).Unbound(0), append(quorumtest.Nodes(3), forger), unchanged, nil},
		"address of a silent Node, role": {
			at(voters(3), workerAddress+":2380"), append(quorumtest.Nodes(3), atWorker), unchanged, nil,
		},
		"address of no Node": {at(three(), "192.168.7.1:2380"), nodes(3), unchanged, nil},
		"address 127.0.0.1":  {at(three(), "127.0.0.1:2380"), nodes(3), unchanged, nil},
		"address of no Node, twice": {
			at(three(), "192.168.7.1:2380"), with(worker), unboundA, refusals{likely, likely},
		},
		"host of two members beside a worker": {twoOnOne, hostOfTwo, "a=u1 b=u2 c=u1", nil},
		"unlisted member":                     {three(), with(announcing("worker", "uw", "f")), unchanged, nil},
		"member of another cluster":           {three().Unbound(0), insteadOfFirst(otherCluster), unboundA, nil},
		"tombstone without claim":             {three(), insteadOfFirst(), unchanged, nil},
		"tombstone with grant":                {three().Granted(0), reborn, "a=u1-again b=u2 c=u3", nil},
		"tombstone without grant":             {three(), reborn, unchanged, refusals{unwritten}},
		"left every list":                     {three().Removed(0), nodes(3), unboundA, nil},
		"left one of three lists":             {three().RemovedFrom(1, 0), nodes(3), unchanged, nil},
		"left the lists of old answers":       {three().Removed(0).Silent(0, 1, 2), nodes(3), unchanged, nil},
		"left an unconfirmed list":            {three().Removed(0).Unconfirmed(0, 1, 2), nodes(3), unchanged, nil},
	} {
		t.Run(name, func(t *testing.T) {
			before := c.cluster.Cluster.DeepCopy()
			bindings, refused := membership.Bind(c.cluster.Cluster, c.nodes, c.cluster.Nonces, quorumtest.Noon())
			require.Equal(t, c.want, uids(bindings))
			require.Len(t, refused, len(c.refused), "%q", refused)
			for i, words := range c.refused {
				require.Contains(t, refused[i].Node+": "+refused[i].Reason, words)
			}
			require.Equal(t, before, c.cluster.Cluster, "the argument must not change")
		})
	}
}

// A worker must not take over a member whose Node is gone. The host that replaces the Node must.
func TestTombstoneTakeover(t *testing.T) {
	at := func(host string) func(*quorumtest.Cluster) {
		return func(w *quorumtest.Cluster) { w.URLs(1, "https://"+host+":2380") }
	}
	own := at(quorumtest.Address(1))
	claimed := func(w *quorumtest.Cluster) { w.Basis(v1alpha1.BasisClaim, 1) }
	resolvedByHand := func(w *quorumtest.Cluster) {
		gone := map[string]observation.NodeState{"w2": {Known: true}}
		grants, bindings := membership.ResolveByHand(w.Cluster, "u2", gone)
		w.Cluster.Spec.Grants, w.Cluster.Spec.Members = grants, bindings
	}
	const address = "10.0.0.2"
	const sameName = "only a Node with that name"
	for name, c := range map[string]struct {
		change   func(*quorumtest.Cluster)
		claimant observation.AnnouncingNode
		want     string
		refused  string
	}{
		"worker":                   {own, announcing("worker", "uw", "b", workerAddress), "u2", sameName},
		"worker, loopback":         {at("127.0.0.1"), announcing("worker", "uw", "b", workerAddress), "u2", sameName},
		"worker, forged address":   {own, announcing("worker", "uw", "b", workerAddress, address), "u2", sameName},
		"new name, resolved":       {resolvedByHand, announcing("renamed", "u9", "b", address), "u9", ""},
		"same name":                {own, announcing("w2", "u2-again", "b", address), "u2-again", ""},
		"same name, loopback":      {at("127.0.0.1"), announcing("w2", "u2-again", "b", address), "u2-again", ""},
		"same name, other address": {at("192.168.7.2"), announcing("w2", "u2-again", "b", address), "u2-again", ""},
		"worker, after a claim":    {claimed, announcing("worker", "uw", "b", workerAddress), "u2", sameName},
		"same name, after a claim": {claimed, announcing("w2", "u2-again", "b", workerAddress), "u2-again", ""},
		"same name, in no list": {
			func(w *quorumtest.Cluster) { w.WithoutList(0, 1, 2) }, announcing("w2", "u2-again", "b", address), "u2",
			"no confirmed member list of an observer contains the member",
		},
		"new name": {
			own, announcing("renamed", "u9", "b", address), "u2",
			sameName + " can take it over, or any Node after an operator resolves the grant for UID u2",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := quorumtest.Voters(3).Granted(1)
			c.change(w)
			nodes := slices.Replace(quorumtest.Nodes(3), 1, 2, c.claimant)
			bindings, refused := membership.Bind(w.Cluster, nodes, w.Nonces, quorumtest.Noon())
			require.Equal(t, "a=u1 b="+c.want+" c=u3", uids(bindings))
			require.Equal(t, c.refused == "", len(refused) == 0, "%q", refused)
			if c.refused != "" {
				require.Contains(t, refused[0].Reason, c.refused)
			}
		})
	}
}

// Of three members, two are on Nodes. The member of the first one is removed, and its host is
// wiped: its agent has no server left through which it could publish a second list. Without a role,
// neither its word nor the list of the other observer frees the node alone.
// F30: no second list could show that a removed member had left, and its wiped node stayed
// protected.
func TestF30EmptiedHost(t *testing.T) {
	cluster := func() *quorumtest.Cluster {
		w := quorumtest.Voters(3).WithoutRoles().Unbound(2).Silent(0)
		w.Cluster.Observations = w.Cluster.Observations[:2]
		return w
	}
	oneAnswer := func() *quorumtest.Cluster { return quorumtest.Voters(3).Removed(0).Silent(1, 2) }
	stale := cluster().RemovedFrom(1, 0).Emptied(0)
	other := cluster().RemovedFrom(1, 0).Emptied(0)
	other.Observer(0).NodeUID = "u1-before"
	withRole := quorumtest.Voters(3).Unbound(2).Silent(0).RemovedFrom(1, 0)
	withoutList := quorumtest.Voters(3).Unbound(2).Emptied(0).WithoutList(0, 1)
	third := quorumtest.Voters(3).WithoutRoles().RemovedFrom(1, 0).Silent(0, 2).Emptied(0)
	for name, c := range map[string]struct {
		cluster *quorumtest.Cluster
		nodes   int
		want    string
	}{
		"one of three answers, with a role":       {oneAnswer(), 3, "b=u2 c=u3"},
		"one of three answers":                    {oneAnswer().WithoutRoles(), 3, "a=u1 b=u2 c=u3"},
		"the other observers have no Nodes":       {oneAnswer().WithoutRoles(), 1, "b=u2 c=u3"},
		"emptied, one list":                       {cluster().RemovedFrom(1, 0).Emptied(0), 2, "b=u2"},
		"emptied, one list, third agent silent":   {third, 3, "b=u2 c=u3"},
		"one list, and the host says nothing":     {cluster().RemovedFrom(1, 0), 2, "a=u1 b=u2"},
		"emptied, still listed":                   {cluster().Emptied(0), 2, "a=u1 b=u2"},
		"emptied, old list":                       {stale.Silent(1), 2, "a=u1 b=u2"},
		"emptied, unconfirmed list":               {cluster().RemovedFrom(1, 0).Emptied(0).Unconfirmed(1), 2, "a=u1 b=u2"},
		"an earlier Node of the name was emptied": {other, 2, "a=u1 b=u2"},
		"another host is emptied":                 {cluster().RemovedFrom(1, 0).Emptied(1), 2, "a=u1 b=u2"},
		"one list of a Node with a role":          {withRole, 2, "b=u2"},
		"one of two lists of Nodes with a role":   {quorumtest.Voters(3).Unbound(2).RemovedFrom(1, 0), 2, "a=u1 b=u2"},
		"emptied, with a role, no list":           {withoutList, 2, "a=u1 b=u2"},
	} {
		t.Run(name, func(t *testing.T) {
			nodes := quorumtest.WithoutRoles(quorumtest.Nodes(c.nodes))
			for i := range nodes {
				nodes[i].HasRole = c.cluster.Cluster.Spec.Observers == v1alpha1.NodesWithRole
			}
			nodes[0].Announced = nil // Otherwise a binding that has ended would be made again.
			bindings, _ := membership.Bind(c.cluster.Cluster, nodes, c.cluster.Nonces, quorumtest.Noon())
			require.Equal(t, c.want, uids(bindings))
		})
	}
}
