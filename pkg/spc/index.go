package spc

import (
	"net/netip"
	"slices"
	"strings"
)

// Index is an Inventory made ready for searching. A nil Index is a list that has not been read.
type Index struct {
	inventory *Inventory
	// records are the inventory's without repetitions.
	records []Record
	// The maps of evidence hold live records only; the addresses of one that is gone may be another's by now.
	byProvider, byName  map[string][]int
	byPrivate, byPublic map[netip.Addr][]int
	// ids holds all records by their exact instance ID: that is how an autoscaler finds the one to delete, and it does not
	// ask whether the record is live.
	ids map[string][]int
}

// NewIndex returns the index of an inventory, nil for nil. The inventory must not change afterwards.
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
		if !r.Live() {
			continue
		}
		if id := lastSegment(r.ProviderNodeID); id != "" {
			x.byProvider[id] = append(x.byProvider[id], at)
		}
		if r.InstanceID != "" {
			name := strings.ToLower(r.InstanceID)
			x.byName[name] = append(x.byName[name], at)
		}
		file(x.byPrivate, canonical(r.PrivateIP), at)
		file(x.byPublic, canonical(r.PublicIP), at)
	}
	return x
}

// Inventory returns what was indexed, nil for a nil Index.
func (x *Index) Inventory() *Inventory {
	if x == nil {
		return nil
	}
	return x.inventory
}

func file(under map[netip.Addr][]int, keys []netip.Addr, at int) {
	for _, key := range keys {
		if !slices.Contains(under[key], at) {
			under[key] = append(under[key], at)
		}
	}
}

// look returns the records under any of the keys, each once.
func look[K comparable](in map[K][]int, keys ...K) []int {
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
