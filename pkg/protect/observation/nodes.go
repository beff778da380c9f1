package observation

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// An AnnouncingNode is a Node with what shows which members run on it: its addresses, and the
// members that its agent announces. A Node may announce none.
type AnnouncingNode struct {
	Node string
	UID  types.UID
	// Addresses are as AddressesOf returns them.
	Addresses []string
	Announced []evidence.MemberRef
	Deleting  bool
	// HasRole is as in NodeState.
	HasRole bool
	// Machine and ProviderID are as in NodeState.
	Machine    Machine
	ProviderID string
}

// NodeOf returns the Node. An announcement that cannot be parsed announces nothing.
func NodeOf(n *corev1.Node) AnnouncingNode {
	announced, _ := AnnouncedOn(n)
	return AnnouncingNode{
		Node: n.Name, UID: n.UID, Addresses: AddressesOf(n), Announced: announced, Deleting: n.DeletionTimestamp != nil,
		HasRole: HasRole(n), Machine: machineOf(n), ProviderID: storable(n.Spec.ProviderID, maxProviderID),
	}
}

// IsLabelled reports whether the Node has the label that selects the fail-closed entry.
func IsLabelled(n *corev1.Node) bool { return n.Labels[EtcdMemberLabel] == EtcdMemberLabelValue }

// HasReported reports whether the agent of the Node has found out whether the node holds a member.
func HasReported(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == EtcdMemberCondition && c.Status != corev1.ConditionUnknown
	})
}

// HasGrant reports whether a grant for the Node of the binding names the member.
func HasGrant(c *v1alpha1.EtcdCluster, b v1alpha1.Binding) bool {
	return slices.ContainsFunc(c.Spec.Grants, func(g v1alpha1.Grant) bool {
		return g.NodeUID == b.NodeUID && slices.Contains(g.Members, b.MemberID)
	})
}

// AnnouncedOn returns the members that the agent announces on its Node. A Node without the label
// announces nothing: the agent writes both together.
func AnnouncedOn(n *corev1.Node) ([]evidence.MemberRef, error) {
	if !IsLabelled(n) {
		return nil, nil
	}
	return ParseAnnouncement(n.Annotations[AnnouncementAnnotation])
}

// AddressesOf returns the addresses of the Node that show where a member runs, in the form in which
// they are compared.
func AddressesOf(n *corev1.Node) []string {
	var addresses []string
	for _, a := range n.Status.Addresses {
		if h := comparableHost(a.Address); h != "" {
			addresses = append(addresses, h)
		}
	}
	return addresses
}

// NodeState is the state of a Node according to a live read without a cache.
type NodeState struct {
	// Known is false if the read failed. The other fields mean nothing then, and the members on the
	// Node count as lost.
	Known bool
	// UID is empty if no Node has the name.
	UID types.UID
	// Version is the resourceVersion of the Node.
	Version string
	// Deleting means that the Node has a deletion timestamp.
	Deleting bool
	// HasRole means that the Node has the label of a role that a kubelet cannot give itself.
	HasRole bool
	// Cordoned means that no pod is scheduled to the Node (spec.unschedulable).
	Cordoned bool
	// Departure is the mark by which a program announces that the machine goes for good, or is away
	// for a while.
	Departure departure.Mark
	// Notice is what a condition of the Node says about its maintenance without a mark.
	Notice departure.Mark
	// Machine is the machine that registered the Node.
	Machine Machine
	// ProviderID is the identity of the machine in its cloud. It is empty if it is unknown, or longer
	// than a grant can store.
	ProviderID string
}

// StateOf returns the state of a Node that exists. The table has the marks that count.
func StateOf(n *corev1.Node, marks departure.Table) NodeState {
	return NodeState{
		Known: true, UID: n.UID, Version: n.ResourceVersion, Deleting: n.DeletionTimestamp != nil,
		Departure: marks.Of(n), Notice: marks.Notice(n), Cordoned: n.Spec.Unschedulable, HasRole: HasRole(n),
		Machine: machineOf(n), ProviderID: storable(n.Spec.ProviderID, maxProviderID),
	}
}

func machineOf(n *corev1.Node) Machine {
	return NewMachine(n.Status.NodeInfo.MachineID, n.Status.NodeInfo.SystemUUID)
}

// storable returns a text that a grant can store within the limit, or "".
func storable(text string, limit int) string {
	if len(text) > limit {
		return ""
	}
	return text
}

// Closed returns how the Node is closed: it is being deleted, a program has marked it, or it is
// cordoned. It returns the empty string for a Node that is open. The state must be known.
func (n NodeState) Closed() string {
	switch {
	case n.Deleting:
		return "is being deleted"
	case n.Departure.Class != departure.None:
		return fmt.Sprintf("%s (%s)", n.Departure.Says, n.Departure)
	case n.Cordoned:
		return "is cordoned"
	}
	return ""
}

// NodesAt returns the Nodes that have an address which one of the member's URLs names. A call with
// many Nodes takes much less time than a call for each.
func NodesAt(m v1alpha1.MemberStatus, nodes []AnnouncingNode) []AnnouncingNode {
	if len(nodes) == 0 {
		return nil
	}
	hosts := comparableHosts(m)
	var found []AnnouncingNode
	for _, n := range nodes {
		if hasAddressOf(hosts, n.Addresses) {
			found = append(found, n)
		}
	}
	return found
}

// IsAtAddress reports whether one of the member's URLs names one of these addresses of a Node.
func IsAtAddress(m v1alpha1.MemberStatus, addresses []string) bool {
	return hasAddressOf(comparableHosts(m), addresses)
}

func hasAddressOf(hosts, addresses []string) bool {
	return slices.ContainsFunc(addresses, func(a string) bool { return slices.Contains(hosts, a) })
}

// IsLocalOnly reports whether a started member advertises only client URLs that are the same on
// every machine (k0s). Then no agent but its own can reach it.
func IsLocalOnly(m v1alpha1.MemberStatus) bool {
	return len(m.ClientURLs) > 0 && len(comparableHosts(v1alpha1.MemberStatus{PeerURLs: m.ClientURLs})) == 0
}

// comparableHosts returns the hosts of a member's URLs in the form in which they are compared. It
// omits hosts that are the same on every machine (127.0.0.1, 0.0.0.0, localhost), because they do
// not show where a member runs: k0s advertises 127.0.0.1 for all of its members.
func comparableHosts(m v1alpha1.MemberStatus) []string {
	var found []string
	for _, raw := range slices.Concat(m.PeerURLs, m.ClientURLs) {
		u, err := url.Parse(raw)
		if err != nil {
			continue
		}
		if h := comparableHost(u.Hostname()); h != "" {
			found = append(found, h)
		}
	}
	return found
}

// comparableHost returns the canonical form of an address or host name: an IPv4-mapped IPv6 address
// as IPv4, an address without a zone, a name in lower case without the final dot. It returns the
// empty string for a host that is the same on every machine.
func comparableHost(host string) string {
	if a, err := netip.ParseAddr(host); err == nil {
		a = a.Unmap().WithZone("")
		if a.IsLoopback() || a.IsUnspecified() {
			return ""
		}
		return a.String()
	}
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	if name == "localhost" {
		return ""
	}
	return name
}

const (
	// maxMachineAddresses and maxMachineAddress are the limits of Grant.Addresses.
	maxMachineAddresses, maxMachineAddress = 8, 253
	// maxMachineID is the limit of Grant.MachineID and Grant.SystemUUID.
	maxMachineID = 128
	// maxProviderID is the limit of Grant.ProviderID.
	maxProviderID = 512
)

// A Machine identifies the machine of a Node, as its kubelet reports it (status.nodeInfo). An empty
// field is unknown.
type Machine struct {
	MachineID, SystemUUID string
}

// NewMachine returns the Machine with these IDs. An ID that a grant cannot store is unknown.
func NewMachine(machineID, systemUUID string) Machine {
	return Machine{
		MachineID:  strings.ToLower(storable(machineID, maxMachineID)),
		SystemUUID: strings.ToLower(storable(systemUUID, maxMachineID)),
	}
}

// IsOther reports whether two machines are known to be different. The UUID of the hardware takes
// precedence: machines that were cloned from one image may share a machine ID, and a machine that
// is installed again has another one. Without a common kind of ID, they may be the same machine.
func (m Machine) IsOther(o Machine) bool {
	if m.SystemUUID != "" && o.SystemUUID != "" {
		return m.SystemUUID != o.SystemUUID && m.SystemUUID != swapUUID(o.SystemUUID)
	}
	return m.MachineID != "" && o.MachineID != "" && m.MachineID != o.MachineID
}

// swapUUID returns a UUID with the bytes of its first three groups in the other order, and any
// other text unchanged. SMBIOS 2.6 made these groups little-endian: the firmware of a virtual
// machine may report them in the other order after an upgrade of its virtual hardware.
func swapUUID(id string) string {
	groups := strings.Split(id, "-")
	if len(groups) != 5 {
		return id
	}
	for i, group := range groups[:3] {
		groups[i] = ""
		for ; len(group) > 1; group = group[2:] {
			groups[i] = group[:2] + groups[i]
		}
	}
	return strings.Join(groups, "-")
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
