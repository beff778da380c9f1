package guard_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// A cluster of three voters has a member on node w1, which has no guard pod yet. The image of guard
// pods is that of the agent's pod on the node.
func ExamplePlan() {
	voters := int32(3)
	cluster := &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Name: "cdf818194e3a8c32"}}
	cluster.Spec.Members = []v1alpha1.Binding{{MemberID: "a", Node: "w1", NodeUID: "u1"}}
	cluster.Status.Voters = &voters
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "w1", UID: "u1", Labels: map[string]string{observation.EtcdMemberLabel: observation.EtcdMemberLabelValue},
	}}
	for _, d := range guard.Plan(guard.State{Clusters: []*v1alpha1.EtcdCluster{cluster}, Nodes: []*corev1.Node{node}}) {
		fmt.Println(d.Pod, d.Action, d.Why)
	}
	// Output:
	// holdfast-guard-w1 Create the node has a member of etcd cluster cdf818194e3a8c32
}
