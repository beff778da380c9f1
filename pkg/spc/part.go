package spc

import (
	"hash/fnv"
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
	parts, relevant := map[int]*Inventory{}, map[int]map[*Record]bool{}
	for _, n := range nodes {
		if !x.covers(n) {
			continue
		}
		number := PartOf(n.Name)
		if parts[number] == nil {
			parts[number] = &Inventory{Organization: x.inventory.Organization, Cluster: x.inventory.Cluster}
			relevant[number] = map[*Record]bool{}
		}
		parts[number].Nodes = append(parts[number].Nodes, x.fingerprint(n))
		for _, r := range x.relevant(n) {
			relevant[number][r] = true
		}
	}
	for number, part := range parts {
		slices.Sort(part.Nodes)
		for _, r := range x.records {
			if relevant[number][r] {
				part.Records = append(part.Records, *r)
			}
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

// relevant returns the records on which the match of a Node depends.
func (x *Index) relevant(n *corev1.Node) []*Record {
	found := x.find(byInstanceID, nameKeys(n)...) // with those that have no machine yet
	hasEvidence := false
	for _, m := range x.fieldMatches(n) {
		hasEvidence = hasEvidence || len(m.records) > 0
		found = append(found, m.records...)
	}
	if !hasEvidence {
		return append(found, x.claimedBy(n)...)
	}
	for _, r := range slices.Clone(found) {
		found = append(found, x.ids[r.InstanceID]...)
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
		write(slices.Sorted(slices.Values(nodeAddresses(n, of)))...)
	}
	if !slices.ContainsFunc(x.fieldMatches(n), func(m fieldMatch) bool { return len(m.records) > 0 }) {
		claim := claimOf(n)
		write(claim.instance, claim.node, claim.cluster)
	}
	return strconv.FormatUint(h.Sum64(), 36)
}
