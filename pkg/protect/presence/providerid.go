package presence

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/printable"
)

// Taints of Nodes that are not ready to be found by the ID of their machine.
const (
	// karpenterUnregistered is on a Node until Karpenter has registered it (apis/v1/taints.go).
	karpenterUnregistered = "karpenter.sh/unregistered"
	// cloudUninitialized is on a Node until a cloud controller manager has initialized it.
	cloudUninitialized = "node.cloudprovider.kubernetes.io/uninitialized"
)

// A pool is a label of Nodes whose machines an autoscaler manages.
type pool struct {
	label string
	// prefix begins the provider IDs of the cloud that made the label. It is empty if it depends on
	// the provider.
	prefix string
}

// pools returns the labels that show an autoscaler with certainty. The prefixes are those that
// cluster-autoscaler compares. The label does not prove the cloud: Google Distributed Cloud has
// GKE's label on machines with baremetal:// IDs.
func pools() []pool {
	return []pool{
		{"cloud.google.com/gke-nodepool", "gce://"},
		{"eks.amazonaws.com/nodegroup", "aws:///"},
		{"karpenter.sh/nodepool", ""},
		{"kubernetes.azure.com/agentpool", "azure:///"},
	}
}

// providerIDProblem explains why an autoscaler does not find this Node by the ID of its machine, or
// returns "". An autoscaler ends such a machine whatever the annotations of the Node, and without
// the deletion of the Node. Only what is certain from the Node alone counts: the ID of the machine
// in the cloud is not known here.
func providerIDProblem(in Inputs) string {
	const effect = ": an autoscaler that does not find a machine by this ID ends it in spite of the annotations"
	hasTaint := func(key string) bool {
		return slices.ContainsFunc(in.Taints, func(t corev1.Taint) bool { return t.Key == key })
	}
	if hasTaint(karpenterUnregistered) {
		return fmt.Sprintf("Karpenter has not registered this node (taint %s): it ends the machine without the deletion of "+
			"the Node; see the conditions of its NodeClaim", karpenterUnregistered)
	}
	for _, p := range pools() {
		if _, isMember := in.Labels[p.label]; !isMember {
			continue
		}
		switch id := in.ProviderID; {
		case id == "":
			return fmt.Sprintf("spec.providerID is empty on a node with the label %s%s; set it with the cloud controller "+
				"manager or the kubelet's --provider-id", p.label, effect)
		case !p.mayFind(id):
			return fmt.Sprintf("spec.providerID is %q on a node with the label %s, and is no ID of a machine%s; keep the "+
				"machine out of the autoscaler's node groups, and give new machines the right ID: the ID of a Node cannot be "+
				"changed", printable.Quote(id), p.label, effect)
		}
	}
	if in.ProviderID == "" && hasTaint(cloudUninitialized) {
		return fmt.Sprintf("spec.providerID is empty, because no cloud controller manager has initialized this node "+
			"(taint %s)%s", cloudUninitialized, effect)
	}
	return ""
}

// mayFind reports whether the autoscaler of the pool, or that of another cloud, may find a machine
// by the ID.
func (p pool) mayFind(id string) bool {
	scheme, rest, hasScheme := strings.Cut(id, "://")
	if !hasScheme || scheme == "" || rest == "" || strings.ContainsAny(id, " \t\r\n") {
		return false
	}
	own, _, _ := strings.Cut(p.prefix, "://")
	switch scheme {
	case own:
		return strings.HasPrefix(id, p.prefix)
	case "k3s": // names the Node (k3s pkg/cloudprovider)
		return p.prefix == ""
	default:
		return true
	}
}
