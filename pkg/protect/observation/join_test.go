package observation_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

func TestJoin(t *testing.T) {
	object := func(cluster v1alpha1.ClusterID, owner types.UID, node string, uid types.UID) *v1alpha1.EtcdObservation {
		o := &v1alpha1.EtcdObservation{Cluster: cluster, Observation: v1alpha1.Observation{Node: node, NodeUID: uid}}
		o.OwnerReferences = []metav1.OwnerReference{{UID: owner}}
		return o
	}
	c := &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Name: "c1", UID: "now"}}
	c.Observations = []v1alpha1.Observation{{Node: "before"}}
	joined := observation.Join(c, []*v1alpha1.EtcdObservation{
		object("c1", "now", "b", "ub"), object("c1", "now", "a", "ua"),
		object("c1", "now", "no report", ""), object("c1", "earlier", "earlier object", "u"),
		object("c2", "now", "other", "u"),
	})
	require.Equal(t, []v1alpha1.Observation{{Node: "a", NodeUID: "ua"}, {Node: "b", NodeUID: "ub"}}, joined.Observations)
	require.Equal(t, "before", c.Observations[0].Node, "the argument must not change")
}
