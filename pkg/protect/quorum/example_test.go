package quorum_test

import (
	"fmt"
	"strings"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

// The cluster has the voters a, b and c on the nodes w1, w2 and w3. Member c is down.
func ExampleDecide() {
	members := []v1alpha1.MemberStatus{
		{ID: "a", Name: "etcd1", Healthy: true},
		{ID: "b", Name: "etcd2", Healthy: true},
		{ID: "c", Name: "etcd3", Reason: "connection refused"},
	}
	cluster := &v1alpha1.EtcdCluster{}
	cluster.Name = "cdf818194e3a8c32"
	cluster.Spec.Observers = v1alpha1.NodesWithRole
	cluster.Spec.Members = []v1alpha1.Binding{
		{MemberID: "a", Node: "w1", NodeUID: "u1", Basis: v1alpha1.BasisRole},
		{MemberID: "b", Node: "w2", NodeUID: "u2", Basis: v1alpha1.BasisRole},
		{MemberID: "c", Node: "w3", NodeUID: "u3", Basis: v1alpha1.BasisRole},
	}
	cluster.Observations = []v1alpha1.Observation{
		{Node: "w2", NodeUID: "u2", Nonce: "n1", LocalMember: "b", Linearizable: true, Members: members},
	}
	view := quorum.View{
		Cluster: cluster,
		Nonces:  []string{"n1"},
		Nodes: map[string]observation.NodeState{
			"w1": {Known: true, UID: "u1", HasRole: true}, "w2": {Known: true, UID: "u2", HasRole: true},
			"w3": {Known: true, UID: "u3", HasRole: true},
		},
	}
	for _, node := range []string{"1", "9"} {
		request := quorum.Request{Node: "w" + node, UID: view.Nodes["w"+node].UID, Labelled: true}
		verdict := quorum.Decide(view, request)
		fact, _, _ := strings.Cut(words.Message(verdict), "\n")
		fmt.Println(verdict.Allowed, verdict.Reason)
		fmt.Println(strings.ReplaceAll(fact, ": ", ":\n  "))
	}
	// Output:
	// false QuorumWouldBeLost
	// deleting node w1 would break quorum of etcd cluster cdf818194e3a8c32:
	//   2 of 3 voters must be healthy, and only 1 would remain
	// true NothingToProtect
	// no member of etcd cluster cdf818194e3a8c32 is on node w9
}
