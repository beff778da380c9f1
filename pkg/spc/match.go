package spc

import (
	"fmt"
	"net/netip"
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
	// Matched: exactly one does, on every piece of evidence that says anything.
	Matched
	// Conflict: evidence points to several records, or to one that is gone.
	Conflict
)

// Match is the answer for one node.
type Match struct {
	Outcome Outcome
	// Record is the node's record, nil unless Matched.
	Record *Record
	// Evidence names what agreed: "provider_node_id", "private_ip".
	Evidence []string
	// Message explains the outcome in one sentence.
	Message string
}

// clue is one way to recognise a record. The order is the one in which people would trust them.
type clue struct {
	name string
	is   func(Record) bool
}

// Find looks for the record of a node. A nil inventory is Unknown.
//
// A label that names a record is checked and never believed alone: it may be left over from another machine.
func Find(n *corev1.Node, inventory *Inventory) Match {
	if inventory == nil {
		return Match{Outcome: Unknown, Message: "the list of SPC machines has not been read yet"}
	}
	var candidate *Record
	var evidence []string
	for _, c := range clues(n) {
		found := live(inventory.Records, c.is)
		switch {
		case len(found) == 0:
			continue
		case len(found) > 1:
			return conflict("%d live SPC records match by %s: %s", len(found), c.name, instances(found))
		case candidate != nil && candidate.PK != found[0].PK:
			return conflict("by %s the node is SPC instance %s, by %s it is %s",
				strings.Join(evidence, " and "), candidate.InstanceID, c.name, found[0].InstanceID)
		}
		candidate = &found[0]
		evidence = append(evidence, c.name)
	}
	claimed, byLabel := labelClue(n)
	if candidate == nil {
		if byLabel {
			return conflict("its labels name SPC %s, and neither provider ID nor address nor name of any live record agrees", claimed.name)
		}
		return Match{Outcome: Missing, Message: "no live SPC record has its provider ID, addresses or name"}
	}
	if byLabel && !claimed.is(*candidate) {
		return conflict("its labels name SPC %s, but by %s it is instance %s (node_id %d)",
			claimed.name, strings.Join(evidence, " and "), candidate.InstanceID, candidate.PK)
	}
	return Match{
		Outcome: Matched, Record: candidate, Evidence: evidence,
		Message: fmt.Sprintf("SPC instance %s (node_id %d, state %s), by %s",
			candidate.InstanceID, candidate.PK, candidate.State, strings.Join(evidence, ", ")),
	}
}

func conflict(format string, args ...any) Match {
	return Match{Outcome: Conflict, Message: fmt.Sprintf(format, args...)}
}

// clues returns what the node itself shows. Each compares canonical forms; an empty field recognises nothing.
func clues(n *corev1.Node) []clue {
	provider := n.Spec.ProviderID[strings.LastIndex(n.Spec.ProviderID, "/")+1:]
	internal, external := addresses(n, corev1.NodeInternalIP), addresses(n, corev1.NodeExternalIP)
	names := map[string]bool{strings.ToLower(n.Name): true, strings.ToLower(n.Labels[corev1.LabelHostname]): true}
	delete(names, "")
	return []clue{
		{"provider_node_id", func(r Record) bool { return provider != "" && strings.EqualFold(r.ProviderNodeID, provider) }},
		{"private_ip", func(r Record) bool { a, ok := canonical(r.PrivateIP); return ok && internal[a] }},
		{"instance_id", func(r Record) bool { return names[strings.ToLower(r.InstanceID)] }},
		{"public_ip", func(r Record) bool { a, ok := canonical(r.PublicIP); return ok && external[a] }},
	}
}

// labelClue returns what the labels that are there already say, and whether they say anything.
func labelClue(n *corev1.Node) (clue, bool) {
	instance, node := n.Labels[InstanceIDLabel], n.Labels[NodeIDLabel]
	if instance == "" && node == "" {
		return clue{}, false
	}
	return clue{
		name: strings.TrimSpace("instance " + instance + " (node_id " + node + ")"),
		is: func(r Record) bool {
			return (instance == "" || instance == labelValue(r.InstanceID)) && (node == "" || node == strconv.FormatInt(r.PK, 10))
		},
	}, true
}

func live(records []Record, is func(Record) bool) []Record {
	var found []Record
	for _, r := range records {
		if r.Live() && is(r) {
			found = append(found, r)
		}
	}
	return found
}

func instances(records []Record) string {
	names := make([]string, 0, len(records))
	for _, r := range records {
		names = append(names, fmt.Sprintf("%s (node_id %d)", r.InstanceID, r.PK))
	}
	return strings.Join(names, ", ")
}

func addresses(n *corev1.Node, of corev1.NodeAddressType) map[netip.Addr]bool {
	found := map[netip.Addr]bool{}
	for _, a := range n.Status.Addresses {
		if addr, ok := canonical(a.Address); ok && a.Type == of {
			found[addr] = true
		}
	}
	return found
}

// canonical reads an address in any of its spellings: IPv4 in IPv6, with a prefix length, with a zone.
func canonical(s string) (netip.Addr, bool) {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "/")
	addr, err := netip.ParseAddr(s)
	if err != nil || addr.IsUnspecified() {
		return netip.Addr{}, false
	}
	return addr.Unmap().WithZone(""), true
}
