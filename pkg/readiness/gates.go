package readiness

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Gate is one requirement for the release of a node.
type Gate struct {
	Name string `json:"name"`
	Open bool   `json:"open"`
	// Reason is the reason of the condition NetworkHeld while this is the first closed gate.
	Reason string `json:"-"`
	// Missing states exactly what is missing. It is empty if the gate is open.
	Missing string `json:"missing,omitempty"`
}

// evaluateGates returns the gates that this node has to pass, in a fixed order.
//
// The network_plugin role runs only when Ansible builds the node, and its result stays on
// disk. Its marker is valid for one boot. Therefore the marker is required until the node has
// been in service, and not again after a reboot. A marker that was observed before a reboot
// under the same hold also counts.
func (e holdEvaluation) evaluateGates() []Gate {
	f, p := e.facts, e.policy
	gates := []Gate{newGate(GateCNI, WaitingForCNI, missingCNI(e.node, f.Conflist))}
	if isFlannelNeeded(f, p) {
		gates = append(gates, newGate(GateFlannel, WaitingForFlannel, missingFlannel(e.node, f.Subnet, p)))
	}
	if (p.isForced(GateNetworkPlugin) || hasLabel(e.node.Labels, p.NetworkPluginLabel)) && !e.hasServed() {
		gates = append(gates, newGate(GateNetworkPlugin, WaitingForNetworkPlugin, e.missingMarker()))
	}
	for _, unit := range p.gateNames(GateUnit) {
		gates = append(gates, newGate(GateUnit+unit, WaitingForUnit, missingUnit(f.Units, unit)))
	}
	for _, wanted := range p.gateNames(GateCondition) {
		gates = append(gates, newGate(GateCondition+wanted, WaitingForCondition, e.missingCondition(wanted)))
	}
	for _, label := range p.gateNames(GateLabel) {
		gates = append(gates, newGate(GateLabel+label, WaitingForLabel, missingLabel(e.node.Labels, label)))
	}
	for _, endpoint := range p.Endpoints() {
		gates = append(gates, newGate(endpoint.Gate, WaitingForProbe, missingAnswer(f.probeOf(endpoint.Gate), endpoint)))
	}
	return gates
}

func newGate(name, reason, missing string) Gate {
	return Gate{Name: name, Open: missing == "", Reason: reason, Missing: missing}
}

// isFlannelNeeded reports whether flannel's gate is evaluated. Without a readable conflist, the CNI
// gate is closed.
func isFlannelNeeded(f Facts, p Policy) bool {
	return p.isForced(GateFlannel) ||
		slices.ContainsFunc(f.Conflist.Plugins, func(p Plugin) bool { return p.Type == flannelPlugin })
}

func missingCNI(n *corev1.Node, c Conflist) string {
	switch {
	case c.Problem != "":
		return fmt.Sprintf("a readable CNI configuration in %s (%s)", c.Directory, c.Problem)
	case c.Presence == Unknown:
		return fmt.Sprintf("a CNI configuration in %s (the directory could not be checked)", c.Directory)
	case c.Presence == Absent && len(c.Ignored) > 0:
		return fmt.Sprintf("a CNI configuration in %s (%s, which a package installed, is ignored; "+
			"if it configures the cluster's network, rename it)", c.Directory, strings.Join(c.Ignored, ", "))
	case c.Presence == Absent:
		return fmt.Sprintf("a CNI configuration in %s", c.Directory)
	case len(c.Plugins) == 0:
		return fmt.Sprintf("a plugin in the CNI configuration %s, which lists none", c.Path)
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
		return s + " could not be checked"
	}
	return s + " is missing or not executable"
}

// missingBridge checks whether a plain bridge was configured for this node: a bridge that a
// package installed differs from the cluster's only in its subnet. A bridge that shares a
// subnet with the node's podCIDRs is the cluster's, even if it is wider (minikube) or covers
// one of two address families. Without podCIDRs there is nothing to compare. But a
// configuration that a runtime writes under a package's name contains the podCIDR, so it has
// to wait for one.
func missingBridge(n *corev1.Node, c Conflist) string {
	cidrs := n.Spec.PodCIDRs
	if len(c.BridgeSubnets) == 0 || len(cidrs) == 0 && !c.AmbiguousName {
		return ""
	}
	for _, cidr := range cidrs {
		given, _ := netip.ParsePrefix(cidr) // an invalid prefix overlaps none
		for _, subnet := range c.BridgeSubnets {
			if bridge, _ := netip.ParsePrefix(subnet); bridge.Overlaps(given) {
				return ""
			}
		}
	}
	if len(cidrs) == 0 {
		return fmt.Sprintf("podCIDRs of the node, to check whether %s configures the cluster's network: "+
			"packages install a bridge under the same name", c.Path)
	}
	return fmt.Sprintf("the cluster's CNI configuration: %s is a bridge with subnets %s outside the node's "+
		"podCIDRs %s, as packages install; remove it, or give it the node's podCIDR if it configures the "+
		"cluster's network", c.Path, strings.Join(c.BridgeSubnets, ", "), strings.Join(cidrs, ", "))
}

func missingFlannel(n *corev1.Node, s SubnetFile, p Policy) string {
	switch {
	case s.Problem != "":
		return fmt.Sprintf("a readable flannel subnet file at %s (%s)", s.Path, s.Problem)
	case s.Presence == Unknown:
		return fmt.Sprintf("flannel's subnet file %s (the file could not be checked)", s.Path)
	case s.Presence == Absent:
		return fmt.Sprintf("flannel's subnet file %s", s.Path)
	case s.Volatile != Present && !p.TrustDurableSubnetFile:
		return fmt.Sprintf("proof that flannel wrote %s in this boot: %s", s.Path, staleReason(s.Volatile))
	}
	if mtu, err := strconv.Atoi(s.MTU); err != nil || mtu <= 0 {
		return fmt.Sprintf("a valid MTU in flannel's subnet file %s (FLANNEL_MTU=%q)", s.Path, s.MTU)
	}
	if s.Subnet == "" && s.IPv6Subnet == "" {
		return fmt.Sprintf("a subnet in flannel's subnet file %s", s.Path)
	}
	if missing := missingSubnet(n, "FLANNEL_SUBNET", s.Subnet, netip.Addr.Is4); missing != "" {
		return missing
	}
	if missing := missingSubnet(n, "FLANNEL_IPV6_SUBNET", s.IPv6Subnet, netip.Addr.Is6); missing != "" {
		return missing
	}
	if len(n.Spec.PodCIDRs) == 0 && !p.FlannelUsesEtcd {
		return fmt.Sprintf("podCIDRs of the node, to check that flannel's subnet file %s is not from an earlier Node of "+
			"this host (if flannel stores its subnets in etcd, set the agent's flag --flannel-uses-etcd)", s.Path)
	}
	return ""
}

func staleReason(volatile Presence) string {
	if volatile == Absent {
		return "the file is on a disk and may be from an earlier boot; put it on a tmpfs such as /run, " +
			"or set the agent's flag --trust-durable-subnet-file"
	}
	return "it is unknown whether the file is on a tmpfs"
}

// missingSubnet compares one subnet of the file with the node's podCIDRs, if it has any.
func missingSubnet(n *corev1.Node, variable, value string, family func(netip.Addr) bool) string {
	if value == "" {
		return ""
	}
	subnet, _ := netip.ParsePrefix(value) // an invalid prefix is of no family and contains nothing
	if !family(subnet.Addr()) {
		return fmt.Sprintf("a valid %s (found %q)", variable, value)
	}
	cidrs := n.Spec.PodCIDRs
	if len(cidrs) == 0 {
		return ""
	}
	for _, cidr := range cidrs {
		outer, _ := netip.ParsePrefix(cidr)
		if outer.Bits() <= subnet.Bits() && outer.Contains(subnet.Addr()) {
			return ""
		}
	}
	return fmt.Sprintf("a %s inside the node's podCIDRs %s (found %s)", variable, strings.Join(cidrs, ", "), value)
}

func (e holdEvaluation) missingMarker() string {
	f, m := e.facts, e.facts.Marker
	switch {
	case e.record.NetworkBuilt:
		return ""
	case m.Problem != "":
		return fmt.Sprintf("a readable marker of the network_plugin role at %s (%s)", m.Path, m.Problem)
	case m.Presence == Unknown:
		return fmt.Sprintf("the network_plugin role's marker %s (the file could not be checked)", m.Path)
	case m.Presence == Absent:
		return fmt.Sprintf("the network_plugin role's marker %s", m.Path)
	case f.BootID == "":
		return "the boot ID, which could not be read, to check the network_plugin role's marker"
	case m.BootID != f.BootID:
		return fmt.Sprintf("a marker of the network_plugin role from this boot: %s contains %q, this boot is %q",
			m.Path, m.BootID, f.BootID)
	}
	return ""
}

// missingUnit returns what a systemd unit has not done yet. An active unit has done its work:
// a unit of type oneshot becomes active only then (systemd.service(5)) and stays active with
// RemainAfterExit=yes. Without that setting it becomes inactive again, and Ran is set.
func missingUnit(units []Unit, name string) string {
	i := slices.IndexFunc(units, func(u Unit) bool { return u.Name == name })
	if i < 0 {
		return fmt.Sprintf("systemd unit %s, which was not checked", name)
	}
	u := units[i]
	switch {
	case u.Problem != "" && u.Presence == Present:
		return fmt.Sprintf("systemd unit %s (%s)", name, u.Problem)
	case u.Problem != "":
		return fmt.Sprintf("systemd unit %s, which could not be checked (%s)", name, u.Problem)
	case u.Presence == Unknown:
		return fmt.Sprintf("systemd unit %s, which could not be checked", name)
	case u.Presence == Absent:
		return fmt.Sprintf("systemd unit %s, which does not exist", name)
	case u.ActiveState == "active":
		return ""
	case u.ActiveState == "failed":
		return fmt.Sprintf("systemd unit %s to succeed: it failed (%s); to see why: `journalctl -b -u %s`",
			name, u.Result, name)
	case u.ActiveState == "inactive" && u.Ran && u.Result == "success":
		return ""
	case u.ActiveState == "inactive":
		return fmt.Sprintf("systemd unit %s, which has not run in this boot", name)
	}
	return fmt.Sprintf("systemd unit %s to finish: it is %s (%s)", name, u.ActiveState, u.SubState)
}

// missingCondition returns how a condition of the Node differs from its required status. Unless
// a status is given, that is False for NetworkUnavailable and True for any other type. A
// condition that Holdfast itself has written proves nothing.
func (e holdEvaluation) missingCondition(wanted string) string {
	name, status, hasStatus := strings.Cut(wanted, "=")
	kind, want := corev1.NodeConditionType(name), corev1.ConditionTrue
	switch {
	case hasStatus:
		want = corev1.ConditionStatus(status)
	case kind == corev1.NodeNetworkUnavailable:
		want = corev1.ConditionFalse
	}
	c := FindCondition(e.node, kind)
	switch {
	case c == nil:
		return fmt.Sprintf("condition %s=%s, which is not set", kind, want)
	case IsByHoldfast(c):
		if e.record.NetworkUp != "" && e.record.BootID == e.facts.BootID {
			return ""
		}
		return fmt.Sprintf("condition %s=%s from the network plugin: only Holdfast has written it", kind, want)
	case c.Status != want:
		return fmt.Sprintf("condition %s=%s: it is %s (%s: %s)", kind, want, c.Status, c.Reason, c.Message)
	case e.isStale(c):
		return fmt.Sprintf("condition %s=%s from this boot: it was last written at %s, in an earlier boot",
			kind, want, lastWritten(c))
	}
	return ""
}

func missingLabel(labels map[string]string, selector string) string {
	if hasLabel(labels, selector) {
		return ""
	}
	key, _, _ := strings.Cut(selector, "=")
	if value, found := labels[key]; found {
		return fmt.Sprintf("label %s of the node: it is %s=%s", selector, key, value)
	}
	return fmt.Sprintf("label %s of the node, which is not set", selector)
}

// missingAnswer returns why the gate of an endpoint is closed. The time in it is when the
// failures began, so the text stays the same while a probe fails for the same reason.
func missingAnswer(p Probe, e Endpoint) string {
	wanted := e.Gate + " to accept connections"
	if e.URL != nil {
		wanted = e.Gate + " to answer with a 2xx status"
	}
	switch p.Answer {
	case Present:
		return ""
	case Absent:
		return fmt.Sprintf("%s: %s, since %s", wanted, p.Problem, p.Since.UTC().Format(time.RFC3339))
	case Unknown:
	}
	return wanted + ", which was not probed yet"
}

// hasUnprobedEndpoint reports whether the first probe of an endpoint has not ended yet.
func (e holdEvaluation) hasUnprobedEndpoint() bool {
	return slices.ContainsFunc(e.policy.Endpoints(), func(endpoint Endpoint) bool {
		return e.facts.probeOf(endpoint.Gate).Answer == Unknown
	})
}

// hasLabel reports whether the labels contain `key` or `key=value`. An empty selector matches
// nothing, because each label has a key.
func hasLabel(labels map[string]string, selector string) bool {
	key, want, exact := strings.Cut(selector, "=")
	got, found := labels[key]
	return found && (!exact || got == want)
}
