package observation

import (
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

const (
	// maxMachineAddresses and maxMachineAddress are the limits of Grant.Addresses.
	maxMachineAddresses, maxMachineAddress = 8, 253
	// maxMachineID is the limit of Grant.MachineID and Grant.SystemUUID.
	maxMachineID = 128
)

// A Machine identifies the machine of a Node, as its kubelet reports it (status.nodeInfo). An empty
// field is unknown.
type Machine struct {
	MachineID, SystemUUID string
}

// NewMachine returns the Machine with these IDs. An ID that a grant cannot store is unknown.
func NewMachine(machineID, systemUUID string) Machine {
	return Machine{MachineID: machineIdentity(machineID), SystemUUID: machineIdentity(systemUUID)}
}

func machineIdentity(id string) string {
	if len(id) > maxMachineID {
		return ""
	}
	return strings.ToLower(id)
}

// IsOther reports whether two machines are known to be different. The UUID of the hardware takes
// precedence: machines that were cloned from one image may share a machine ID, and a machine that
// is installed again has another one. Without a common kind of ID, they may be the same machine.
func (m Machine) IsOther(o Machine) bool {
	if m.SystemUUID != "" && o.SystemUUID != "" {
		return m.SystemUUID != o.SystemUUID
	}
	return m.MachineID != "" && o.MachineID != "" && m.MachineID != o.MachineID
}

// MachineAddresses returns the hosts that identify the machine of these members: the hosts of their
// peer URLs, and the addresses of their Node. The result is bounded, and sorted within each kind.
func MachineAddresses(members []v1alpha1.MemberStatus, nodeAddresses []string) []string {
	var peers, addresses, found []string
	for _, m := range members {
		peers = append(peers, PeerHosts(m)...)
	}
	for _, a := range nodeAddresses {
		addresses = append(addresses, comparableHost(a))
	}
	slices.Sort(peers)
	slices.Sort(addresses)
	for _, a := range slices.Concat(peers, addresses) {
		isUsable := a != "" && len(a) <= maxMachineAddress && len(found) < maxMachineAddresses
		if isUsable && !slices.Contains(found, a) {
			found = append(found, a)
		}
	}
	return found
}

// PeerHosts returns the hosts of a member's peer URLs in the form of MachineAddresses. In contrast
// to a client URL, a peer URL belongs to one member only: etcd refuses a second one.
func PeerHosts(m v1alpha1.MemberStatus) []string {
	return comparableHosts(v1alpha1.MemberStatus{PeerURLs: m.PeerURLs})
}
