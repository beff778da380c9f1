package readiness_test

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// bornHeld returns a Node as the born-held policy creates it.
func bornHeld() *corev1.Node {
	record := readiness.Record{State: readiness.Held, BootID: "boot-1", Reason: readiness.NewNode}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "worker-1", Annotations: map[string]string{readiness.HoldAnnotation: record.Format()},
		},
		Spec: corev1.NodeSpec{Unschedulable: true, PodCIDRs: []string{"10.244.3.0/24"}},
	}
}

// The network plugin of a new node starts: first its program is missing, then everything is
// present.
func ExampleDecide() {
	facts := readiness.Facts{
		BootID: "boot-1",
		Conflist: readiness.Conflist{
			Path: "/cni/10-calico.conflist", Presence: readiness.Present,
			Plugins: []readiness.Plugin{{Type: "calico", Executable: readiness.Absent}},
		},
	}
	d := readiness.Decide(bornHeld(), facts, readiness.Policy{}, time.Now())
	fmt.Println(d.Held, d.Reason)
	fmt.Println(d.Message)

	facts.Conflist.Plugins[0].Executable = readiness.Present
	d = readiness.Decide(bornHeld(), facts, readiness.Policy{}, time.Now())
	fmt.Println(d.Held, d.Reason)
	fmt.Println("cordon:", *d.Unschedulable, "record:", d.Record.State)
	// Output:
	// true WaitingForCNI
	// waiting for CNI plugins of /cni/10-calico.conflist: calico is missing or not executable
	// false NotHeld
	// cordon: false record: released
}

// The flag --gates adds gates to those that the node's own conflist calls for.
func ExamplePolicy_Validate() {
	policy := readiness.Policy{Force: []string{"unit:network-plugin.service", "condition:NetworkUnavailable"}}
	fmt.Println(policy.Validate(), policy.Units())

	policy.Force = []string{"calico"}
	problem, _, _ := strings.Cut(policy.Validate().Error(), "; ")
	fmt.Println(problem)
	// Output:
	// <nil> [network-plugin.service]
	// unknown gate "calico"
}
