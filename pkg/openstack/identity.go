// Package openstack compares the names that one OpenStack machine has in different places.
//
// Magnum's autoscaler finds a node's machine by one of them and deletes it by another. Where they differ it deletes
// nothing, or another machine. It is pure.
package openstack

import (
	"fmt"
	"strings"
)

// Annotation holds an Identity as compact JSON, on Nodes that run on OpenStack.
const Annotation = "holdfast.dev/openstack"

// scheme begins the provider IDs of OpenStack's cloud provider: openstack:///<uuid> or openstack://<region>/<uuid>.
const scheme = "openstack://"

// Identity is what a node's machine is called. The identifiers are UUIDs in lower case with hyphens; one that is not a
// UUID is as it was found, one that is not known is empty.
type Identity struct {
	// ProviderID is the last part of spec.providerID, by which cluster-autoscaler has found the node group since mid-2020.
	ProviderID string `json:"providerID"`
	// SystemUUID is status.nodeInfo.systemUUID, the firmware's, by which it has had the machine deleted since then.
	SystemUUID string `json:"systemUUID"`
	// MachineID is status.nodeInfo.machineID, by which it did before (1.15, 1.16).
	MachineID string `json:"machineID"`
	// Agree says that all that are known, and at least the first two, are the same UUID.
	Agree bool `json:"agree"`
	// Message says it in a sentence, with what follows from a difference.
	Message string `json:"message"`
}

// Is says whether a provider ID is of OpenStack.
func Is(providerID string) bool { return strings.HasPrefix(providerID, scheme) }

// Identify compares the identifiers of a node.
func Identify(providerID, systemUUID, machineID string) Identity {
	last := strings.TrimSpace(providerID)
	if Is(last) {
		last = last[strings.LastIndex(last, "/")+1:]
	}
	i := Identity{ProviderID: canonical(last), SystemUUID: canonical(systemUUID), MachineID: canonical(machineID)}
	switch {
	case i.ProviderID == "":
		i.Message = "the provider ID is not known: cluster-autoscaler finds no group for the node before it has one"
	case i.SystemUUID == "":
		i.Message = "the system UUID is not known, by which cluster-autoscaler has the machine deleted"
	case i.ProviderID == i.SystemUUID && (i.MachineID == "" || i.MachineID == i.ProviderID):
		i.Agree, i.Message = true, "all agree on "+i.ProviderID
	case i.ProviderID == i.SystemUUID:
		i.Message = fmt.Sprintf("provider ID and system UUID agree on %s, the machine ID is %s: cluster-autoscaler before mid-2020 "+
			"(1.15, 1.16) deletes by the machine ID and finds no machine, later versions work", i.ProviderID, i.MachineID)
	case i.ProviderID == swapped(i.SystemUUID):
		i.Message = fmt.Sprintf("the system UUID %s is the provider ID %s with its first three parts in the other byte order, as some "+
			"firmware tells it: cluster-autoscaler deletes by the system UUID and finds no machine", i.SystemUUID, i.ProviderID)
	default:
		i.Message = fmt.Sprintf("the provider ID is %s and the system UUID %s: cluster-autoscaler finds the group by the first and "+
			"deletes by the second, so that the node's machine stays, or another one goes", i.ProviderID, i.SystemUUID)
	}
	return i
}

// canonical writes a UUID in lower case with hyphens, whatever it came with; machine-id(5) has none.
func canonical(id string) string {
	id = strings.ToLower(strings.TrimSpace(id))
	digits := strings.ReplaceAll(strings.Trim(id, "{}"), "-", "")
	if len(digits) != 32 || strings.Trim(digits, "0123456789abcdef") != "" {
		return id
	}
	return digits[:8] + "-" + digits[8:12] + "-" + digits[12:16] + "-" + digits[16:20] + "-" + digits[20:]
}

// swapped turns the first three parts of a UUID around, byte by byte: SMBIOS 2.6 and later has them little-endian, older
// firmware not.
func swapped(id string) string {
	digits := strings.ReplaceAll(id, "-", "")
	if len(digits) != 32 {
		return id
	}
	turned := func(from, to int) string {
		var s strings.Builder
		for at := to - 2; at >= from; at -= 2 {
			s.WriteString(digits[at : at+2])
		}
		return s.String()
	}
	return canonical(turned(0, 8) + turned(8, 12) + turned(12, 16) + digits[16:])
}
