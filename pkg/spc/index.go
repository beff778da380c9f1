package spc

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Index is an Inventory prepared for lookups. A nil Index stands for a list that has not
// been read.
type Index struct {
	inventory *Inventory
	// records are those of the inventory without repetitions.
	records []Record
	// The evidence maps hold live records only: another machine may already have the addresses
	// of a machine that was deleted.
	byProvider, byName  map[string][]int
	byPrivate, byPublic map[netip.Addr][]int
	// ids holds all records by their exact instance ID. An autoscaler finds the machine to
	// delete by that ID and does not check that the record is live.
	ids map[string][]int
}

// NewIndex returns the index of an inventory, or nil for nil. Do not change the inventory
// later.
func NewIndex(i *Inventory) *Index {
	if i == nil {
		return nil
	}
	x := &Index{
		inventory: i, byProvider: map[string][]int{}, byName: map[string][]int{}, ids: map[string][]int{},
		byPrivate: map[netip.Addr][]int{}, byPublic: map[netip.Addr][]int{},
	}
	known := make(map[Record]bool, len(i.Records))
	for _, r := range i.Records {
		if known[r] {
			continue
		}
		known[r] = true
		at := len(x.records)
		x.records = append(x.records, r)
		x.ids[r.InstanceID] = append(x.ids[r.InstanceID], at)
		if !r.IsLive() {
			continue
		}
		if id := lastSegment(r.ProviderNodeID); id != "" {
			x.byProvider[id] = append(x.byProvider[id], at)
		}
		if r.InstanceID != "" {
			name := strings.ToLower(r.InstanceID)
			x.byName[name] = append(x.byName[name], at)
		}
		addPositions(x.byPrivate, parseAddresses(r.PrivateIP), at)
		addPositions(x.byPublic, parseAddresses(r.PublicIP), at)
	}
	return x
}

// Inventory returns the indexed inventory, or nil for a nil Index.
func (x *Index) Inventory() *Inventory {
	if x == nil {
		return nil
	}
	return x.inventory
}

func addPositions(to map[netip.Addr][]int, keys []netip.Addr, at int) {
	for _, key := range keys {
		if !slices.Contains(to[key], at) {
			to[key] = append(to[key], at)
		}
	}
}

// positionsOf returns the records under any of the keys, each once.
func positionsOf[K comparable](in map[K][]int, keys ...K) []int {
	var found []int
	for _, key := range keys {
		for _, at := range in[key] {
			if !slices.Contains(found, at) {
				found = append(found, at)
			}
		}
	}
	return found
}

// nodeAddresses returns a Node's addresses of one type, of both IP families.
func nodeAddresses(n *corev1.Node, of corev1.NodeAddressType) []netip.Addr {
	var found []netip.Addr
	for _, a := range n.Status.Addresses {
		if a.Type == of {
			found = append(found, parseAddresses(a.Address)...)
		}
	}
	return found
}

// parseAddresses returns the addresses in a text in canonical form. It accepts IPv4 in
// IPv6, a prefix length, a zone, and several addresses with commas between them. It leaves
// out addresses that every host has, such as loopback and link-local ones, because they
// identify no machine.
func parseAddresses(text string) []netip.Addr {
	var found []netip.Addr
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' || r == ';' }) {
		word, _, _ = strings.Cut(word, "/")
		addr, err := netip.ParseAddr(word)
		if err != nil {
			continue
		}
		addr = addr.Unmap().WithZone("")
		if addr.IsUnspecified() || addr.IsLoopback() || addr.IsLinkLocalUnicast() || addr.IsMulticast() {
			continue
		}
		found = append(found, addr)
	}
	return found
}

// lastSegment returns the part of a provider ID after the last slash, in lower case. For
// aws:///us-west-2a/i-0769aa it returns i-0769aa.
func lastSegment(id string) string {
	id = strings.TrimSpace(id)
	return strings.ToLower(id[strings.LastIndex(id, "/")+1:])
}
