package departure_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/departure"
)

// kured reboots one node, and cluster-autoscaler is about to delete the other one.
func ExampleTable_Of() {
	rebooting, departing := &corev1.Node{}, &corev1.Node{}
	rebooting.Annotations = map[string]string{"weave.works/kured-reboot-in-progress": "2026-05-01T12:00:00Z"}
	rebooting.Spec.Unschedulable = true
	departing.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}}
	var table departure.Table
	for _, node := range []*corev1.Node{rebooting, departing, {}} {
		mark := table.Of(node)
		fmt.Println(mark.Class == departure.ForAWhile, mark.Class == departure.ForGood, mark.Says)
	}
	// Output:
	// true false is being rebooted by kured
	// false true is about to be deleted
	// false false
}
