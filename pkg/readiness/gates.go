package readiness

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Gate is one thing that must be there before a node is released.
type Gate struct {
	Name string
	Open bool
	// Reason is the word for the condition NetworkHeld while the gate is closed.
	Reason string
	// Missing says exactly what is missing, empty if the gate is open.
	Missing string
}

// askedGates looks at each gate that this node has to pass, in a fixed order. What could not be read keeps its gate shut.
//
// The network_plugin role runs when Ansible builds the node and never after, and what it leaves behind lies on disk. So its
// marker, which is of one boot, is asked for until the node has been in service, and not again after a reboot. One that was
// seen before a reboot under the same hold is as good.
func (s situation) askedGates() []Gate {
	f, p := s.facts, s.policy
	gates := []Gate{gate(GateCNI, WaitingForCNI, missingCNI(s.node, f.Conflist))}
	if wantsFlannel(f, p) {
		gates = append(gates, gate(GateFlannel, WaitingForFlannel, missingFlannel(s.node, f.Subnet, p)))
	}
	if (p.forces(GateNetworkPlugin) || matches(s.node.Labels, p.NetworkPluginLabel)) && !s.served() {
		gates = append(gates, gate(GateNetworkPlugin, WaitingForNetworkPlugin, s.missingMarker()))
	}
	for _, unit := range p.named(GateUnit) {
		gates = append(gates, gate(GateUnit+unit, WaitingForUnit, missingUnit(f.Units, unit)))
	}
	for _, kind := range p.named(GateCondition) {
		gates = append(gates, gate(GateCondition+kind, WaitingForCondition, s.missingCondition(corev1.NodeConditionType(kind))))
	}
	return gates
}

func gate(name, reason, missing string) Gate {
	return Gate{Name: name, Open: missing == "", Reason: reason, Missing: missing}
}

// wantsFlannel says whether flannel's gate is asked. As long as no conflist can be read nobody can say which CNI the node
// will have; the CNI gate is shut then, and flannel's is shown with it if flannel has been seen to run.
func wantsFlannel(f Facts, p Policy) bool {
	if p.forces(GateFlannel) {
		return true
	}
	if f.Conflist.Presence != Present || f.Conflist.Problem != "" {
		return f.Subnet.Presence == Present
	}
	return slices.ContainsFunc(f.Conflist.Plugins, func(p Plugin) bool { return p.Type == flannelPlugin })
}

func missingCNI(n *corev1.Node, c Conflist) string {
	switch {
	case c.Problem != "":
		return fmt.Sprintf("a CNI configuration that can be read in %s (%s)", c.Directory, c.Problem)
	case c.Presence == Unknown:
		return fmt.Sprintf("a CNI configuration in %s, which could not be looked at", c.Directory)
	case c.Presence == Absent && len(c.PassedOver) > 0:
		return fmt.Sprintf("a CNI configuration in %s (%s comes with a package; if it is the cluster's network, rename it)",
			c.Directory, strings.Join(c.PassedOver, ", "))
	case c.Presence == Absent:
		return fmt.Sprintf("a CNI configuration in %s", c.Directory)
	case len(c.Plugins) == 0:
		return fmt.Sprintf("a plugin in the CNI configuration %s: it names none", c.Path)
	}
	var missing []string
	for _, plugin := range c.Plugins {
		if plugin.Executable != Present {
			missing = append(missing, missingPlugin(plugin))
		}
	}
	if len(missing) == 0 {
		return missingBridge(n, c)
	}
	return fmt.Sprintf("CNI plugins of %s: %s", c.Path, strings.Join(missing, ", "))
}

func missingPlugin(p Plugin) string {
	s := p.Type
	if p.NeededBy != "" {
		s += " (called by " + p.NeededBy + ")"
	}
	switch {
	case p.Problem != "":
		return s + ": " + p.Problem
	case p.Executable == Unknown:
		return s + " could not be looked at"
	}
	return s + " is not there or not executable"
}

func missingFlannel(n *corev1.Node, s SubnetFile, p Policy) string {
	switch {
	case s.Problem != "":
		return fmt.Sprintf("a flannel subnet file that can be read at %s (%s)", s.Path, s.Problem)
	case s.Presence == Unknown:
		return fmt.Sprintf("flannel's subnet file %s, which could not be looked at", s.Path)
	case s.Presence == Absent:
		return fmt.Sprintf("flannel's subnet file %s", s.Path)
	case s.Volatile != Present && !p.TrustDurableSubnetFile:
		return fmt.Sprintf("proof that flannel wrote %s in this boot: %s", s.Path, whyStale(s.Volatile))
	}
	if mtu, err := strconv.Atoi(s.MTU); err != nil || mtu <= 0 {
		return fmt.Sprintf("an MTU in flannel's subnet file %s (FLANNEL_MTU=%q)", s.Path, s.MTU)
	}
	if s.Subnet == "" && s.IPv6Subnet == "" {
		return fmt.Sprintf("a subnet in flannel's subnet file %s", s.Path)
	}
	if missing := missingSubnet(n, "FLANNEL_SUBNET", s.Subnet, netip.Addr.Is4); missing != "" {
		return missing
	}
	return missingSubnet(n, "FLANNEL_IPV6_SUBNET", s.IPv6Subnet, netip.Addr.Is6)
}

func whyStale(volatile Presence) string {
	if volatile == Absent {
		return "the file lies on a disk and may be of an earlier boot; put it on a tmpfs such as /run, or give the agent --trust-durable-subnet-file"
	}
	return "it could not be told whether the file lies on a tmpfs"
}

// missingBridge asks of a plain bridge whether it was made for this node: a bridge that some package has installed looks like
// the cluster's but for its subnet. One that shares a subnet with the node's podCIDRs is the cluster's, be it wider (minikube's)
// or one family of two. Where Kubernetes gives out no podCIDRs nothing can be compared; but what runtimes write under a
// package's name has the podCIDR in it, and waits for one.
func missingBridge(n *corev1.Node, c Conflist) string {
	cidrs := podCIDRs(n)
	if len(c.Bridged) == 0 || len(cidrs) == 0 && !c.Borrowed {
		return ""
	}
	for _, cidr := range cidrs {
		given, err := netip.ParsePrefix(cidr)
		for _, subnet := range c.Bridged {
			if its, bad := netip.ParsePrefix(subnet); err == nil && bad == nil && its.Overlaps(given) {
				return ""
			}
		}
	}
	if len(cidrs) == 0 {
		return fmt.Sprintf("podCIDRs of the node that show whose network %s is: a package's bridge has the same name", c.Path)
	}
	return fmt.Sprintf("a CNI configuration of the cluster's: %s is a bridge with %s outside the node's podCIDRs %s, as packages install them; "+
		"remove it, or give it the node's podCIDR if it is the cluster's network", c.Path, strings.Join(c.Bridged, ", "), strings.Join(cidrs, ", "))
}

// missingSubnet checks one subnet of the file against the CIDRs that Kubernetes gave the node. A node without any (flannel
// with etcd as its store) is not checked.
func missingSubnet(n *corev1.Node, variable, value string, family func(netip.Addr) bool) string {
	if value == "" {
		return ""
	}
	subnet, err := netip.ParsePrefix(value)
	if err != nil || !family(subnet.Addr()) {
		return fmt.Sprintf("a valid %s: %q is none", variable, value)
	}
	cidrs := podCIDRs(n)
	if len(cidrs) == 0 {
		return ""
	}
	for _, cidr := range cidrs {
		outer, err := netip.ParsePrefix(cidr)
		if err == nil && outer.Bits() <= subnet.Bits() && outer.Contains(subnet.Addr()) {
			return ""
		}
	}
	return fmt.Sprintf("a %s inside the node's podCIDRs %s: %s is not", variable, strings.Join(cidrs, ", "), value)
}

func podCIDRs(n *corev1.Node) []string {
	if len(n.Spec.PodCIDRs) == 0 && n.Spec.PodCIDR != "" {
		return []string{n.Spec.PodCIDR}
	}
	return n.Spec.PodCIDRs
}

func (s situation) missingMarker() string {
	f, m := s.facts, s.facts.Marker
	switch {
	case s.record.NetworkBuilt:
		return ""
	case m.Problem != "":
		return fmt.Sprintf("a marker of the network_plugin role that can be read at %s (%s)", m.Path, m.Problem)
	case m.Presence == Unknown:
		return fmt.Sprintf("the network_plugin role's marker %s, which could not be looked at", m.Path)
	case m.Presence == Absent:
		return fmt.Sprintf("the network_plugin role's marker %s", m.Path)
	case f.BootID == "":
		return "this boot's ID, which could not be read, to check the network_plugin role's marker against"
	case m.BootID != f.BootID:
		return fmt.Sprintf("a marker of the network_plugin role from this boot: %s says %q, this boot is %q", m.Path, m.BootID, f.BootID)
	}
	return ""
}

// matches says whether the labels have `key` or `key=value`. An empty selector matches nothing.
func matches(labels map[string]string, selector string) bool {
	if selector == "" {
		return false
	}
	key, want, exact := strings.Cut(selector, "=")
	got, found := labels[key]
	return found && (!exact || got == want)
}
