package spc_test

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/pkg/spc"
)

// A Node is matched with its machine by its address and gets the labels that it lacks.
func Example() {
	created := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	index := spc.NewIndex(&spc.Inventory{Organization: 6, Cluster: 504, AsOf: created, Records: []spc.Record{{
		PK: 331, Cluster: 504, InstanceID: "spce0-worker-1", GroupName: "autoscaling-spce0-pool-1", State: "running",
		PrivateIP: "10.138.0.3",
	}}})
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-1", CreationTimestamp: metav1.NewTime(created)}}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.138.0.3"}}

	match := index.Find(node)
	fmt.Println(match.Message)
	report, err := spc.NewReport(node, match, spc.Terms{Now: created})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, key := range slices.Sorted(maps.Keys(report.Labels)) {
		fmt.Printf("%s=%s\n", key, *report.Labels[key])
	}
	// Output:
	// SPC instance spce0-worker-1 (node_id 331, state running), by private_ip
	// stackpoint.io/cluster_id=504
	// stackpoint.io/instance_id=spce0-worker-1
	// stackpoint.io/node_group=autoscaling-spce0-pool-1
	// stackpoint.io/node_id=331
	// stackpoint.io/private_ip=10.138.0.3
}
