package quorum

import (
	"time"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// A View describes one etcd cluster while a deletion is reviewed. The bindings and grants are from
// one version of the EtcdCluster, and the observations were read after it.
type View struct {
	// Cluster is never nil.
	Cluster *v1alpha1.EtcdCluster
	// Nonces are the nonce of the probe request, and those of later versions of the object. An
	// observation with another nonce is older than the probe request.
	Nonces []string
	// Nodes maps the name of a Node to its live state. It contains the Nodes of all bindings,
	// grants and entries of PossibleNodes.
	Nodes map[string]observation.NodeState
	// PossibleNodes is the result of the function PossibleNodes: where the members may run that are
	// not located.
	PossibleNodes []v1alpha1.Binding
	// Others are all EtcdClusters; Cluster itself among them has no effect. A Node that one of their
	// grants gives up is lost for this cluster too: after a restore with new IDs, the grants are in
	// the EtcdCluster of the old ones.
	Others []*v1alpha1.EtcdCluster
	// Now is the time of the decision, and of the grant that follows from it. No verdict depends on
	// it: it selects the words about times that are still to come. The zero time is before all of
	// them.
	Now time.Time
	// MinRemainingTolerance is the number of further voters that the cluster must be able to lose
	// after the deletion. Default 0. Only Decide reads it.
	MinRemainingTolerance int
}

// ResolveAnnotation on an EtcdCluster names the Node UID of a grant that an operator resolves by
// hand. Its key and the event Settled keep their public names: there, to settle means to resolve.
const ResolveAnnotation = "holdfast.dev/settle"

const (
	// ResolvePresentAfter is the time after the last grant for a Node when its continued
	// existence shows that the deletion failed, although the Node was not written since. It is longer
	// than any DELETE can take: the request timeout of the API server (60 s by default) and an etcd
	// election after it.
	ResolvePresentAfter = 5 * time.Minute
	// ResolveReturnedAfter is the minimum time between the first and the last probe that prove a
	// drained member healthy after its node was opened again.
	ResolveReturnedAfter = 30 * time.Second
	// ResolveMovedAfter is the time during which a member must be proven healthy on its new Node,
	// and during which a machine whose Node was deleted may still be removed.
	// It is longer than the time after which cluster-autoscaler terminates an instance whose Node
	// has vanished (--max-node-provision-time, 15 minutes by default).
	ResolveMovedAfter = 20 * time.Minute
	// ResolveByHandAfter is the minimum age of a grant that is resolved by hand. If a grant is
	// younger, the operator may mean an earlier deletion of the Node while this one is still in
	// progress, which takes up to the request timeout of the API server (60 s by default). The rest is
	// for a longer timeout, and for the clocks of the replicas.
	ResolveByHandAfter = 3 * time.Minute
)
