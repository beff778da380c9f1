package spc

import (
	"hash/fnv"
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

// Parts is the number of parts in which the inventory is published. An agent reads the part of its
// Node only. A change of one machine changes one part, for one agent in 32: with n machines, the
// agents read n²/32² records, and not n².
const Parts = 32

// PartOf returns the number of the part for the Node of this name.
func PartOf(node string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(node)) // never fails
	return int(h.Sum32() % Parts)
}

// Split returns the parts of the inventory that are for these Nodes, by their number. A part has
// every record on which the match of one of its Nodes depends, so that [Index.Find] returns the
// same Match with the part as with the whole inventory.
func (x *Index) Split(nodes []*corev1.Node) map[int]*Inventory {
	parts, positions := map[int]*Inventory{}, map[int][]int{}
	for _, n := range nodes {
		if !x.covers(n) {
			continue
		}
		number := PartOf(n.Name)
		if parts[number] == nil {
			parts[number] = &Inventory{Organization: x.inventory.Organization, Cluster: x.inventory.Cluster}
		}
		parts[number].Nodes = append(parts[number].Nodes, x.fingerprint(n))
		positions[number] = append(positions[number], x.relevant(n)...)
	}
	for number, part := range parts {
		slices.Sort(part.Nodes)
		slices.Sort(positions[number])
		for _, at := range slices.Compact(positions[number]) {
			part.Records = append(part.Records, x.records[at])
		}
	}
	return parts
}

// covers reports whether the list can be used for the Node. The whole list must be younger than the
// Node. A part must have been made for the Node with its present name, provider ID and addresses.
func (x *Index) covers(n *corev1.Node) bool {
	if x.inventory.Nodes != nil {
		return slices.Contains(x.inventory.Nodes, x.fingerprint(n))
	}
	return !n.CreationTimestamp.After(x.inventory.AsOf)
}

// relevant returns the positions of the records on which the match of a Node depends.
func (x *Index) relevant(n *corev1.Node) []int {
	found := positionsOf(x.byName, nameKeys(n)...) // with those that have no machine yet
	hasEvidence := false
	for _, m := range x.fieldMatches(n) {
		hasEvidence = hasEvidence || len(m.positions) > 0
		found = append(found, m.positions...)
	}
	if !hasEvidence {
		return append(found, x.claimedBy(n)...)
	}
	for _, at := range slices.Clone(found) {
		found = append(found, x.ids[x.records[at].InstanceID]...)
	}
	return found
}

// fingerprint identifies the Node and everything of it by which records are searched. The labels
// that name a machine are part of it only if nothing else of the Node points to a record, because
// the agent itself writes them after a match.
func (x *Index) fingerprint(n *corev1.Node) string {
	h := fnv.New64a()
	write := func(words ...string) {
		for _, word := range words {
			_, _ = h.Write(append([]byte(word), 0)) // never fails
		}
	}
	write(string(n.UID), lastSegment(n.Spec.ProviderID))
	write(nameKeys(n)...)
	for _, of := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		write(string(of))
		for _, a := range slices.SortedFunc(slices.Values(nodeAddresses(n, of)), netip.Addr.Compare) {
			write(a.String())
		}
	}
	isFound := func(m fieldMatch) bool { return len(m.positions) > 0 }
	if claim, _ := claimOf(n); !slices.ContainsFunc(x.fieldMatches(n), isFound) {
		write(claim.instance, claim.node, claim.cluster)
	}
	return strconv.FormatUint(h.Sum64(), 36)
}
