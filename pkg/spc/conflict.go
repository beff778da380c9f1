package spc

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// conflictReason returns why the Node cannot have the record that the evidence points to,
// or "".
func (x *Index) conflictReason(n *corev1.Node, r Record, evidence []string) string {
	by := strings.Join(evidence, " and ")
	if claimed, has := claimOf(n); has && !claimed.isFor(r) {
		return fmt.Sprintf("its labels name SPC %s, but by %s it is %s (node_id %d, cluster %d); if the labels belong "+
			"to an earlier machine, remove them: %s",
			claimed, by, r.InstanceID, r.PK, r.Cluster, removeLabelsCommand(n))
	}
	if r.InstanceID == "" {
		return fmt.Sprintf("by %s it is SPC node_id %d, which has no instance ID", by, r.PK)
	}
	if same := x.ids[r.InstanceID]; len(same) > 1 {
		return fmt.Sprintf("by %s it is SPC instance %s, and %d records have that instance ID: %s",
			by, r.InstanceID, len(same), x.describeRecords(same))
	}
	if isControlPlane(n) && strings.EqualFold(r.Role, "worker") {
		return fmt.Sprintf("by %s it is SPC instance %s, whose role is worker, but the node belongs to the control plane",
			by, r.InstanceID)
	}
	if slices.Contains(evidence, byProvider) {
		return "" // the cloud's own name for the machine
	}
	if id := lastSegment(n.Spec.ProviderID); isOtherCloudID(id, lastSegment(r.ProviderNodeID)) {
		return fmt.Sprintf("by %s it is SPC instance %s, whose cloud ID is %s, but the node's is %s",
			by, r.InstanceID, r.ProviderNodeID, id)
	}
	onlyPublic := len(evidence) == 1 && evidence[0] == byPublicIP
	if onlyPublic && r.PrivateIP != "" && len(nodeAddresses(n, corev1.NodeInternalIP)) > 0 {
		return fmt.Sprintf("by %s it is SPC instance %s, whose private address %s is not the node's",
			by, r.InstanceID, r.PrivateIP)
	}
	if isElsewhere(n, r) {
		return fmt.Sprintf("by %s it is SPC instance %s in %s, but the node is in %s",
			by, r.InstanceID, strings.Join(recordPlaces(r), ", "), strings.Join(nodePlaces(n), ", "))
	}
	return ""
}

// labelClaim holds the labels of a Node that name its machine, each empty if the Node lacks
// it.
type labelClaim struct{ instance, node, cluster string }

// claimOf returns the Node's labels that name its machine, and whether it has any.
func claimOf(n *corev1.Node) (labelClaim, bool) {
	c := labelClaim{n.Labels[InstanceIDLabel], n.Labels[NodeIDLabel], n.Labels[ClusterIDLabel]}
	return c, c != labelClaim{}
}

// isFor reports whether no label contradicts the record.
func (c labelClaim) isFor(r Record) bool {
	return (c.instance == "" || c.instance == r.InstanceID) &&
		(c.node == "" || c.node == strconv.FormatInt(r.PK, 10)) &&
		(c.cluster == "" || c.cluster == strconv.FormatInt(r.Cluster, 10))
}

func (c labelClaim) String() string {
	var parts []string
	for _, part := range []struct{ name, value string }{
		{"instance", c.instance}, {"node_id", c.node}, {"cluster", c.cluster},
	} {
		if part.value != "" {
			parts = append(parts, part.name+" "+part.value)
		}
	}
	return strings.Join(parts, ", ")
}

// removeLabelsCommand returns the command that removes all labels of this package from a
// Node.
func removeLabelsCommand(n *corev1.Node) string {
	return fmt.Sprintf("kubectl label node %s %s- %s- %s- %s- %s- %s- %s- %s-", n.Name, InstanceIDLabel, NodeIDLabel,
		NodeGroupLabel, NodePoolLabel, RoleLabel, ClusterIDLabel, PrivateIPLabel, SizeLabel)
}

// isControlPlane reports whether the Node has the label of the control plane, by its
// current or its former name.
func isControlPlane(n *corev1.Node) bool {
	_, now := n.Labels["node-role.kubernetes.io/control-plane"]
	_, before := n.Labels["node-role.kubernetes.io/master"]
	return now || before
}

// nodePlaces returns the zone and the region of the Node's labels, by their current or
// their former names.
func nodePlaces(n *corev1.Node) []string {
	return addPlace(addPlace(nil, nodeZone(n)), nodeRegion(n))
}

func nodeZone(n *corev1.Node) string {
	return firstPlace(n.Labels[corev1.LabelTopologyZone], n.Labels[corev1.LabelFailureDomainBetaZone])
}

func nodeRegion(n *corev1.Node) string {
	return firstPlace(n.Labels[corev1.LabelTopologyRegion], n.Labels[corev1.LabelFailureDomainBetaRegion])
}

// recordPlaces returns the zone and the region that a record names. Values of the API are
// "nyc1", "us-west1-a", "us-west-2:us-west-2a" and "nyc1:nyc1".
func recordPlaces(r Record) []string {
	found := addPlace(nil, firstPlace(r.Zone))
	for part := range strings.SplitSeq(r.Location, ":") {
		found = addPlace(found, firstPlace(part))
	}
	return found
}

// firstPlace returns the first name that is not empty, in lower case and without spaces:
// "East US" in one place is "eastus" in another.
func firstPlace(names ...string) string {
	for _, name := range names {
		if name = strings.ToLower(strings.ReplaceAll(name, " ", "")); name != "" {
			return name
		}
	}
	return ""
}

func addPlace(to []string, name string) []string {
	if name == "" || slices.Contains(to, name) {
		return to
	}
	return append(to, name)
}

// isElsewhere reports whether the Node and the record name unrelated places, or different
// zones of one region.
func isElsewhere(n *corev1.Node, r Record) bool {
	here, there := nodePlaces(n), recordPlaces(r)
	if len(here) == 0 || len(there) == 0 {
		return false
	}
	related := false
	for _, one := range here {
		for _, other := range there {
			related = related || strings.HasPrefix(one, other) || strings.HasPrefix(other, one)
		}
	}
	within := nodeRegion(n)
	isZone := func(name string) bool { return within != "" && name != within && strings.HasPrefix(name, within) }
	if isZone(nodeZone(n)) && slices.ContainsFunc(there, isZone) && !slices.Contains(there, nodeZone(n)) {
		return true
	}
	return !related
}

// isOtherCloudID reports whether two cloud IDs are of the same kind and differ. IDs of
// different kinds, such as a number and a name, may be of the same machine.
func isOtherCloudID(a, b string) bool {
	return a != "" && b != "" && a != b && cloudIDKind(a) == cloudIDKind(b)
}

func cloudIDKind(id string) string {
	switch {
	case strings.HasPrefix(id, "i-"):
		return "aws"
	case strings.Trim(id, "0123456789") == "":
		return "number"
	case len(id) == 36 && strings.Count(id, "-") == 4 && strings.Trim(id, "0123456789abcdef-") == "":
		return "uuid"
	}
	return "name"
}
