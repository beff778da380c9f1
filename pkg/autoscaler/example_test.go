package autoscaler_test

import (
	"fmt"

	"github.com/holdfast-dev/holdfast/pkg/autoscaler"
)

func ExampleAnnotations() {
	values := autoscaler.Annotations("etcd member etcd1")
	for _, key := range autoscaler.Keys() {
		fmt.Printf("%s: %q\n", key, values[key])
	}
	// Output:
	// atlassian.com/no-delete: "etcd member etcd1"
	// autoscaling.cast.ai/removal-disabled: "true"
	// cluster-autoscaler.kubernetes.io/scale-down-disabled: "true"
	// karpenter.sh/do-not-disrupt: "true"
}
