package spc

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Outcome is what became of the search for a node's record. The zero value is Unknown: there was no list to search.
type Outcome int

// The outcomes.
const (
	Unknown Outcome = iota
	// Missing: no live record matches.
	Missing
	// Gone: none does, and the record that the node's labels name is gone or going.
	Gone
	// Matched: exactly one does, on every piece of evidence that says anything.
	Matched
	// Conflict: evidence points to several records, or contradicts itself.
	Conflict
)

// Match is the answer for one node.
type Match struct {
	Outcome Outcome
	// Organization is the number of the organization whose list was searched.
	Organization int64
	// Record is the node's record, nil unless Matched.
	Record *Record
	// Evidence names what agreed: "provider_node_id", "private_ip".
	Evidence []string
	// Message explains the outcome in one sentence.
	Message string
}

// The names of evidence are those of the record's fields.
const (
	byProvider   = "provider_node_id"
	byPrivateIP  = "private_ip"
	byInstanceID = "instance_id"
	byPublicIP   = "public_ip"
)

// clue is one way to recognise a record. The order is the one in which people would trust them.
type clue struct {
	name  string
	found []int
}

// Find looks for the record of a node.
//
// Labels that name a record are checked and never believed alone: they may be left over from another machine. A record
// whose instance ID another one has too is not taken, since an autoscaler could not tell them apart.
func (x *Index) Find(n *corev1.Node) Match {
	switch {
	case x == nil:
		return Match{Message: "the list of SPC machines has not been read yet"}
	case n.CreationTimestamp.After(x.inventory.AsOf):
		return Match{Message: "the list of SPC machines was asked for before the node was there; it is asked for again within about a minute"}
	}
	m := x.search(n)
	m.Organization = x.inventory.Organization
	return m
}

func (x *Index) search(n *corev1.Node) Match {
	at, evidence := -1, []string(nil)
	for _, c := range x.clues(n) {
		switch {
		case len(c.found) == 0:
			continue
		case len(c.found) > 1:
			return conflict("%d live SPC records match by %s: %s; ask SPC which of them is real", len(c.found), c.name, x.instances(c.found))
		case at >= 0 && at != c.found[0]:
			return conflict("by %s the node is SPC instance %s, by %s it is %s",
				strings.Join(evidence, " and "), x.instances([]int{at}), c.name, x.instances(c.found))
		}
		at = c.found[0]
		evidence = append(evidence, c.name)
	}
	if at < 0 {
		return x.unmatched(n)
	}
	r := x.records[at]
	if doubt := x.doubt(n, r, evidence); doubt != "" {
		return conflict("%s", doubt)
	}
	return Match{
		Outcome: Matched, Record: &r, Evidence: evidence,
		Message: fmt.Sprintf("SPC instance %s (node_id %d, state %s), by %s", r.InstanceID, r.PK, said(r), strings.Join(evidence, ", ")),
	}
}

// clues returns the live records that what the node itself shows points to. An empty field points to nothing.
func (x *Index) clues(n *corev1.Node) []clue {
	// A record that has no machine yet is recognised by its name alone by nobody: the node must be another's.
	named := slices.DeleteFunc(look(x.byName, names(n)...), func(at int) bool { return x.unmade(at) })
	return []clue{
		{byProvider, look(x.byProvider, providerName(n)...)},
		{byPrivateIP, look(x.byPrivate, addresses(n, corev1.NodeInternalIP)...)},
		{byInstanceID, named},
		{byPublicIP, look(x.byPublic, addresses(n, corev1.NodeExternalIP)...)},
	}
}

func (x *Index) unmade(at int) bool {
	return x.records[at].Phase() == Starting && !x.records[at].Made()
}

func providerName(n *corev1.Node) []string {
	if id := lastSegment(n.Spec.ProviderID); id != "" {
		return []string{id}
	}
	return nil
}

func names(n *corev1.Node) []string {
	found := []string{strings.ToLower(n.Name)}
	if host := strings.ToLower(n.Labels[corev1.LabelHostname]); host != "" {
		found = append(found, host)
	}
	return found
}

// unmatched says what is known of a node that nothing points to.
func (x *Index) unmatched(n *corev1.Node) Match {
	if claimed, _ := labelClaim(n); claimed.instance != "" || claimed.node != "" {
		gone := ""
		for _, r := range x.records {
			switch {
			case !claimed.fits(r):
			case r.Live():
				return conflict("its labels name SPC %s, and neither provider ID nor address nor name of that record is the node's; "+
					"if the labels are of another machine, take them off: %s", claimed, remedy(n))
			default:
				gone = fmt.Sprintf(": its state is %s", r.State)
			}
		}
		if gone == "" {
			gone = ": it is not in the list any more"
		}
		return Match{Outcome: Gone, Message: "its machine is gone from SPC, " + claimed.String() + gone}
	}
	if waiting := look(x.byName, names(n)...); len(waiting) > 0 {
		return Match{Outcome: Missing, Message: fmt.Sprintf("SPC instance %s has its name, and no machine yet (state %s)",
			x.instances(waiting[:1]), said(x.records[waiting[0]]))}
	}
	return Match{Outcome: Missing, Message: "no live SPC record has its provider ID, addresses or name"}
}

// doubt says what speaks against a record that the evidence points to.
func (x *Index) doubt(n *corev1.Node, r Record, evidence []string) string {
	by := strings.Join(evidence, " and ")
	if claimed, says := labelClaim(n); says && !claimed.fits(r) {
		return fmt.Sprintf("its labels name SPC %s, but by %s it is %s (node_id %d, cluster %d); if the labels are of a machine that it "+
			"was before, take them off: %s", claimed, by, r.InstanceID, r.PK, r.Cluster, remedy(n))
	}
	if r.InstanceID == "" {
		return fmt.Sprintf("by %s it is SPC node_id %d, which has no instance ID", by, r.PK)
	}
	if same := x.ids[r.InstanceID]; len(same) > 1 {
		return fmt.Sprintf("by %s it is SPC instance %s, and %d records have that instance ID: %s", by, r.InstanceID, len(same), x.instances(same))
	}
	if controlPlane(n) && strings.EqualFold(r.Role, "worker") {
		return fmt.Sprintf("by %s it is SPC instance %s, whose role is worker, and the node is one of the control plane", by, r.InstanceID)
	}
	if slices.Contains(evidence, byProvider) {
		return "" // the cloud's own name for the machine
	}
	if id := lastSegment(n.Spec.ProviderID); contradict(id, lastSegment(r.ProviderNodeID)) {
		return fmt.Sprintf("by %s it is SPC instance %s, which is %s at the cloud, and the node is %s", by, r.InstanceID, r.ProviderNodeID, id)
	}
	if internal := addresses(n, corev1.NodeInternalIP); len(evidence) == 1 && evidence[0] == byPublicIP && len(internal) > 0 && r.PrivateIP != "" {
		return fmt.Sprintf("by %s it is SPC instance %s, whose private address %s is not the node's", by, r.InstanceID, r.PrivateIP)
	}
	if elsewhere(n, r) {
		return fmt.Sprintf("by %s it is SPC instance %s in %s, and the node is in %s",
			by, r.InstanceID, strings.Join(locations(r), ", "), strings.Join(places(n), ", "))
	}
	return ""
}

func conflict(format string, args ...any) Match {
	return Match{Outcome: Conflict, Message: fmt.Sprintf(format, args...)}
}

// claim is what the labels that are there already say.
type claim struct{ instance, node, cluster string }

func labelClaim(n *corev1.Node) (claim, bool) {
	c := claim{n.Labels[InstanceIDLabel], n.Labels[NodeIDLabel], n.Labels[ClusterIDLabel]}
	return c, c != claim{}
}

func (c claim) fits(r Record) bool {
	return (c.instance == "" || c.instance == r.InstanceID) && (c.node == "" || c.node == strconv.FormatInt(r.PK, 10)) &&
		(c.cluster == "" || c.cluster == strconv.FormatInt(r.Cluster, 10))
}

func (c claim) String() string {
	var said []string
	for _, part := range []struct{ name, value string }{{"instance", c.instance}, {"node_id", c.node}, {"cluster", c.cluster}} {
		if part.value != "" {
			said = append(said, part.name+" "+part.value)
		}
	}
	return strings.Join(said, ", ")
}

// remedy is the command that takes the labels off.
func remedy(n *corev1.Node) string {
	return fmt.Sprintf("kubectl label node %s %s- %s- %s- %s- %s- %s- %s- %s-", n.Name, InstanceIDLabel, NodeIDLabel, NodeGroupLabel,
		NodePoolLabel, RoleLabel, ClusterIDLabel, PrivateIPLabel, SizeLabel)
}

// said is the record's state with what else the API says of it.
func said(r Record) string {
	state := r.State
	if state == "" {
		state = "unnamed"
	}
	if r.IsFailed && r.State != "failed" {
		return state + ", failed"
	}
	return state
}

func (x *Index) instances(at []int) string {
	names := make([]string, 0, len(at))
	for _, i := range at[:min(len(at), 5)] {
		r := x.records[i]
		names = append(names, fmt.Sprintf("%s (node_id %d, %s)", r.InstanceID, r.PK, said(r)))
	}
	if more := len(at) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}
