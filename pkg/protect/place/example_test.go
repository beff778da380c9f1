package place_test

import (
	"fmt"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/place"
)

// Member a is bound to an earlier Node of the name w1. The Node w1 is kept, but a drain of it needs
// no guard pod.
func ExampleOf() {
	cluster := &v1alpha1.EtcdCluster{}
	cluster.Spec.Members = []v1alpha1.Binding{{MemberID: "a", Node: "w1", NodeUID: "u1"}}
	places := place.Of(cluster, []observation.AnnouncingNode{{Node: "w1", UID: "u1-again"}})
	fmt.Println(place.Members(places, place.Unlabelled), place.Members(places, place.GuardPod))
	// Output:
	// [a] []
}
