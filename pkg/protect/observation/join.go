package observation

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// Join returns a copy of the EtcdCluster with its observations, sorted by node. An object without a
// report is not among them, nor is one that belongs to another EtcdCluster, or to an earlier one of
// the same name.
//
// The observations must have been read after the EtcdCluster: the end of a grant rests on
// observations, and a ledger without that grant must not meet older ones (docs/decisions.md,
// decision 39).
func Join(c *v1alpha1.EtcdCluster, all []*v1alpha1.EtcdObservation) *v1alpha1.EtcdCluster {
	joined := *c
	joined.Observations = nil
	for _, o := range all {
		if BelongsTo(o, c.UID) && o.Cluster == ClusterIDOf(c) && HasReport(o) {
			joined.Observations = append(joined.Observations, o.Observation)
		}
	}
	slices.SortFunc(joined.Observations, func(a, b v1alpha1.Observation) int { return strings.Compare(a.Node, b.Node) })
	return &joined
}

// BelongsTo reports whether the leader created the object for the EtcdCluster with this UID.
func BelongsTo(o *v1alpha1.EtcdObservation, cluster types.UID) bool {
	return slices.ContainsFunc(o.OwnerReferences, func(r metav1.OwnerReference) bool { return r.UID == cluster })
}

// HasReport reports whether an agent has written the object.
func HasReport(o *v1alpha1.EtcdObservation) bool { return o.NodeUID != "" }
