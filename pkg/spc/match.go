package spc

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/printable"
)

// Outcome is the result of the search for a Node's record. The zero value is Unknown: there
// was no list to search.
type Outcome int

// The outcomes.
const (
	Unknown Outcome = iota
	// Missing: no live record matches.
	Missing
	// Gone: no live record matches, and the record that the Node's labels name is deleted or
	// being deleted.
	Gone
	// Matched: all evidence that points to a record points to the same one.
	Matched
	// Conflict: evidence points to several records, or contradicts itself.
	Conflict
)

// Match describes the outcome for one Node.
type Match struct {
	Outcome Outcome
	// Organization is the number of the organization whose list was searched.
	Organization int64
	// Record is the Node's record. It is nil unless the outcome is Matched.
	Record *Record
	// Evidence lists the fields that matched, for example "provider_node_id" and "private_ip".
	Evidence []string
	// Message explains the outcome in one sentence.
	Message string
}

// Evidence has the names of the record's JSON fields.
const (
	byProvider   = "provider_node_id"
	byPrivateIP  = "private_ip"
	byInstanceID = "instance_id"
	byPublicIP   = "public_ip"
)

// fieldMatch holds the live records that match by one field.
type fieldMatch struct {
	field   string
	records []*Record
}

// Find returns the record that the Node's provider ID, addresses and name point to.
//
// Labels that name a record can only contradict a match: they may be left over from another
// machine. A record does not match if another record has the same instance ID, because an
// autoscaler cannot distinguish the two.
func (x *Index) Find(n *corev1.Node) Match {
	switch {
	case x == nil:
		return Match{Message: "the list of SPC machines has not been read yet"}
	case !x.covers(n):
		return Match{Message: "the list of SPC machines is older than the node, or than its addresses; " +
			"Holdfast reads it again within about a minute"}
	}
	m := x.search(n)
	m.Organization, m.Message = x.inventory.Organization, printable.Line(m.Message)
	return m
}

func (x *Index) search(n *corev1.Node) Match {
	var found *Record
	var evidence []string
	for _, m := range x.fieldMatches(n) {
		switch {
		case len(m.records) == 0:
			continue
		case len(m.records) > 1:
			return newConflict("%d live SPC records match by %s: %s; find out from SPC which one is correct",
				len(m.records), m.field, describeRecords(m.records...))
		case found != nil && found != m.records[0]:
			return newConflict("by %s the node is SPC instance %s, by %s it is %s",
				strings.Join(evidence, " and "), describeRecords(found), m.field, describeRecords(m.records...))
		}
		found, evidence = m.records[0], append(evidence, m.field)
	}
	if found == nil {
		return x.explainMissing(n)
	}
	if reason := x.conflictReason(n, found, evidence); reason != "" {
		return newConflict("%s", reason)
	}
	return Match{
		Outcome: Matched, Record: found, Evidence: evidence,
		Message: fmt.Sprintf("SPC instance %s (node_id %d, state %s), by %s",
			found.InstanceID, found.PK, found.describeState(), strings.Join(evidence, ", ")),
	}
}

// fieldMatches returns the live records that match the Node by each field, the most
// trustworthy field first. An empty field matches nothing.
func (x *Index) fieldMatches(n *corev1.Node) []fieldMatch {
	// A record without a machine cannot be the Node's, even if it has the same name.
	named := slices.DeleteFunc(x.find(byInstanceID, nameKeys(n)...), (*Record).isWithoutMachine)
	return []fieldMatch{
		{byProvider, x.providerRecords(n)},
		{byPrivateIP, x.find(byPrivateIP, nodeAddresses(n, corev1.NodeInternalIP)...)},
		{byInstanceID, named},
		{byPublicIP, x.find(byPublicIP, nodeAddresses(n, corev1.NodeExternalIP)...)},
	}
}

// providerRecords returns the live records with the last part of the Node's provider ID. Of
// several, it leaves out those whose IDs have another zone, project, group or scale set.
func (x *Index) providerRecords(n *corev1.Node) []*Record {
	found := x.find(byProvider, lastSegment(n.Spec.ProviderID))
	isElsewhere := func(r *Record) bool { return hasOtherPath(n.Spec.ProviderID, r.ProviderNodeID) }
	if here := slices.DeleteFunc(slices.Clone(found), isElsewhere); len(here) > 0 {
		return here
	}
	return found
}

func nameKeys(n *corev1.Node) []string {
	found := []string{strings.ToLower(n.Name)}
	if host := strings.ToLower(n.Labels[corev1.LabelHostname]); host != "" {
		found = append(found, host)
	}
	return found
}

// explainMissing returns the match of a Node for which there is no evidence.
func (x *Index) explainMissing(n *corev1.Node) Match {
	if claimed := claimOf(n); claimed.namesMachine() {
		gone := "it is no longer in the list"
		for _, r := range x.claimedBy(n) {
			if r.isLive() {
				return newConflict("its labels name SPC %s, but the provider ID, the addresses and the name of that record "+
					"do not match; if the labels belong to another machine, remove them: %s",
					claimed, removeLabelsCommand(n))
			}
			gone = "its state is " + r.State
		}
		return Match{Outcome: Gone, Message: fmt.Sprintf("its machine no longer exists in SPC, %s: %s", claimed, gone)}
	}
	if waiting := x.find(byInstanceID, nameKeys(n)...); len(waiting) > 0 {
		return Match{Outcome: Missing, Message: fmt.Sprintf("SPC instance %s has its name but no machine yet (state %s)",
			describeRecords(waiting[0]), waiting[0].describeState())}
	}
	return Match{Outcome: Missing, Message: "no live SPC record has its provider ID, addresses or name"}
}

func (x *Index) claimedBy(n *corev1.Node) []*Record {
	claimed := claimOf(n)
	var found []*Record
	for _, r := range x.records {
		if claimed.namesMachine() && claimed.isFor(r) {
			found = append(found, r)
		}
	}
	return found
}

func newConflict(format string, args ...any) Match {
	return Match{Outcome: Conflict, Message: fmt.Sprintf(format, args...)}
}

// describeState returns the record's state, with the API's failure flag.
func (r Record) describeState() string {
	state := cmp.Or(r.State, "unnamed")
	if r.IsFailed && r.State != "failed" {
		return state + ", failed"
	}
	return state
}

func describeRecords(records ...*Record) string {
	var names []string
	for _, r := range records {
		names = append(names, fmt.Sprintf("%s (node_id %d, %s)", r.InstanceID, r.PK, r.describeState()))
	}
	return strings.Join(printable.First(names, 5), ", ")
}

// conflictReason returns why the Node cannot have the record that the evidence points to,
// or "".
func (x *Index) conflictReason(n *corev1.Node, r *Record, evidence []string) string {
	by := strings.Join(evidence, " and ")
	if claimed := claimOf(n); claimed != (labelClaim{}) && !claimed.isFor(r) {
		return fmt.Sprintf("its labels name SPC %s, but by %s it is %s (node_id %d, cluster %d); if the labels belong "+
			"to an earlier machine, remove them: %s",
			claimed, by, r.InstanceID, r.PK, r.Cluster, removeLabelsCommand(n))
	}
	if r.InstanceID == "" {
		return fmt.Sprintf("by %s it is SPC node_id %d, which has no instance ID", by, r.PK)
	}
	found := fmt.Sprintf("by %s it is SPC instance %s", by, r.InstanceID)
	if same := x.ids[r.InstanceID]; len(same) > 1 {
		return fmt.Sprintf("%s, and %d records have that instance ID: %s", found, len(same), describeRecords(same...))
	}
	if isControlPlane(n) && strings.EqualFold(r.Role, "worker") {
		return found + ", whose role is worker, but the node belongs to the control plane"
	}
	isByProvider := slices.Contains(evidence, byProvider)
	if id := n.Spec.ProviderID; isOtherCloudID(id, r.ProviderNodeID) {
		if !isByProvider {
			id = lastSegment(id)
		}
		return fmt.Sprintf("%s, whose cloud ID is %s, but the node's is %s", found, r.ProviderNodeID, id)
	}
	if isByProvider && isUniqueInCloud(n.Spec.ProviderID) {
		return ""
	}
	if reason := x.reasonAgainstName(n, r, evidence); reason != "" {
		return found + reason
	}
	return ""
}

// reasonAgainstName returns why the Node cannot have a record that only names or addresses point
// to, or "". Other machines may have had them, or may have them elsewhere.
func (x *Index) reasonAgainstName(n *corev1.Node, r *Record, evidence []string) string {
	isByProvider := slices.Contains(evidence, byProvider)
	if !isByProvider {
		// SPC may not have noticed the machine of a draft yet.
		isOther := func(d *Record) bool { return d.isWithoutMachine() && d.InstanceID != r.InstanceID }
		named := x.find(byInstanceID, nameKeys(n)...)
		if at := slices.IndexFunc(named, isOther); at >= 0 {
			return fmt.Sprintf(", but SPC instance %s has its name and no machine yet", describeRecords(named[at]))
		}
	}
	onlyPublic := len(evidence) == 1 && evidence[0] == byPublicIP
	onlyNames := isByProvider && !slices.Contains(evidence, byPrivateIP) && !slices.Contains(evidence, byPublicIP)
	if (onlyPublic || onlyNames) && r.PrivateIP != "" && len(nodeAddresses(n, corev1.NodeInternalIP)) > 0 {
		return fmt.Sprintf(", whose private address %s is not the node's", r.PrivateIP)
	}
	if isElsewhere(n, r) {
		return fmt.Sprintf(" in %s, but the node is in %s",
			strings.Join(recordPlaces(r), ", "), strings.Join(nodePlaces(n), ", "))
	}
	return ""
}

// labelClaim holds the labels of a Node that name its machine, each empty if the Node lacks
// it.
type labelClaim struct{ instance, node, cluster string }

func claimOf(n *corev1.Node) labelClaim {
	return labelClaim{n.Labels[InstanceIDLabel], n.Labels[NodeIDLabel], n.Labels[ClusterIDLabel]}
}

// namesMachine reports whether there is more than the cluster.
func (c labelClaim) namesMachine() bool { return c.instance != "" || c.node != "" }

// isFor reports whether no label contradicts the record.
func (c labelClaim) isFor(r *Record) bool {
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
func nodePlaces(n *corev1.Node) []string { return places(nodeZone(n), nodeRegion(n)) }

func nodeZone(n *corev1.Node) string {
	return place(cmp.Or(n.Labels[corev1.LabelTopologyZone], n.Labels[corev1.LabelFailureDomainBetaZone]))
}

func nodeRegion(n *corev1.Node) string {
	return place(cmp.Or(n.Labels[corev1.LabelTopologyRegion], n.Labels[corev1.LabelFailureDomainBetaRegion]))
}

// recordPlaces returns the zone and the region that a record names. Values of the API are
// "nyc1", "us-west1-a", "us-west-2:us-west-2a" and "nyc1:nyc1".
func recordPlaces(r *Record) []string {
	return places(append([]string{r.Zone}, strings.Split(r.Location, ":")...)...)
}

// places returns the names that are not empty, each once.
func places(names ...string) []string {
	var found []string
	for _, name := range names {
		if name = place(name); name != "" && !slices.Contains(found, name) {
			found = append(found, name)
		}
	}
	return found
}

// place returns a name in lower case and without spaces: "East US" in one place is "eastus" in
// another.
func place(name string) string { return strings.ToLower(strings.ReplaceAll(name, " ", "")) }

// isElsewhere reports whether the Node and the record name unrelated places, or different
// zones of one region.
func isElsewhere(n *corev1.Node, r *Record) bool {
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
