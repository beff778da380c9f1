// Package openstack compares the identifiers of a Node's OpenStack machine.
//
// [Identify] returns the [Identity] of a Node and explains a difference. Magnum's
// autoscaler finds the machine of a Node by one identifier and deletes it by another. If
// they differ, it deletes no machine or the wrong one. The package is pure: it does no I/O.
package openstack

import (
	"fmt"
	"strings"

	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// Annotation holds an Identity as compact JSON, on Nodes that run on OpenStack.
const Annotation = "holdfast.dev/openstack"

// scheme begins the provider IDs of OpenStack's cloud provider: openstack:///<uuid> or
// openstack://<region>/<uuid>.
const scheme = "openstack://"

// Identity holds the identifiers of a Node's machine. UUIDs are in lower case with hyphens.
// An identifier that is not a UUID stays as it was found. An unknown identifier is empty.
type Identity struct {
	// ProviderID is the last part of spec.providerID. Since mid-2020 cluster-autoscaler finds
	// the node group by it.
	ProviderID string `json:"providerID"`
	// SystemUUID is the firmware's UUID in status.nodeInfo.systemUUID. Since mid-2020
	// cluster-autoscaler deletes the machine by it.
	SystemUUID string `json:"systemUUID"`
	// MachineID is status.nodeInfo.machineID. Earlier versions (1.15, 1.16) delete the machine
	// by it.
	MachineID string `json:"machineID"`
	// Agree is set if ProviderID and SystemUUID are known and all known identifiers are the
	// same UUID.
	Agree bool `json:"agree"`
	// Message describes the result in a sentence, with the effect of a difference.
	Message string `json:"message"`
}

// IsProviderID reports whether a provider ID is one of OpenStack.
func IsProviderID(providerID string) bool { return strings.HasPrefix(providerID, scheme) }

// Identify compares the identifiers of a Node.
func Identify(providerID, systemUUID, machineID string) Identity {
	last := strings.TrimSpace(providerID)
	if IsProviderID(last) {
		last = last[strings.LastIndex(last, "/")+1:]
	}
	i := Identity{
		ProviderID: canonicalUUID(last), SystemUUID: canonicalUUID(systemUUID), MachineID: canonicalUUID(machineID),
	}
	switch {
	case i.ProviderID == "":
		i.Message = "the provider ID is not known: cluster-autoscaler finds no group for the node without it"
	case i.SystemUUID == "":
		i.Message = "the system UUID is not known: cluster-autoscaler deletes the machine by it"
	case i.ProviderID == i.SystemUUID && (i.MachineID == "" || i.MachineID == i.ProviderID):
		i.Agree, i.Message = true, "all agree on "+i.ProviderID
	case i.ProviderID == i.SystemUUID:
		i.Message = fmt.Sprintf("provider ID and system UUID agree on %s, but the machine ID is %s: cluster-autoscaler "+
			"before mid-2020 (1.15, 1.16) deletes by the machine ID and finds no machine; later versions work",
			i.ProviderID, i.MachineID)
	case !observation.Machine{SystemUUID: i.ProviderID}.IsOther(observation.Machine{SystemUUID: i.SystemUUID}):
		i.Message = fmt.Sprintf("the system UUID %s is the provider ID %s with its first three parts in the other byte "+
			"order, as some firmware reports it: cluster-autoscaler deletes by the system UUID and finds no machine",
			i.SystemUUID, i.ProviderID)
	default:
		i.Message = fmt.Sprintf("the provider ID is %s, but the system UUID is %s: cluster-autoscaler finds the group by "+
			"the first and deletes by the second, so it deletes no machine or another one",
			i.ProviderID, i.SystemUUID)
	}
	return i
}

// canonicalUUID returns a UUID in lower case with hyphens. The UUID may come without
// hyphens, as in machine-id(5), or in braces. Other texts are returned trimmed and in lower
// case.
func canonicalUUID(id string) string {
	id = strings.ToLower(strings.TrimSpace(id))
	digits := strings.ReplaceAll(strings.Trim(id, "{}"), "-", "")
	if len(digits) != 32 || strings.Trim(digits, "0123456789abcdef") != "" {
		return id
	}
	return digits[:8] + "-" + digits[8:12] + "-" + digits[12:16] + "-" + digits[16:20] + "-" + digits[20:]
}
