package readiness

import (
	"fmt"
	"slices"
	"strings"
)

// Policy is what the operator wants of holding. The zero value holds by cordon, and asks the gates that the node's own
// conflist calls for.
type Policy struct {
	// TaintKey makes new holds use a NoSchedule taint of this key instead of the cordon. It is for autoscalers and CNIs that
	// know startup taints: `startup-taint.cluster-autoscaler.kubernetes.io/…`, `readiness.k8s.io/…`, and for Cilium, which
	// fights for NetworkUnavailable. Empty holds by cordon.
	TaintKey string
	// Force names gates that are asked on every node, besides those that the node calls for: GateFlannel,
	// GateNetworkPlugin, GateUnit with the name of a unit, GateCondition with the type of a condition. GateCNI is always
	// asked.
	Force []string
	// NetworkPluginLabel, `key` or `key=value`, is the label of nodes that Ansible builds: until they have been released
	// once, they wait for the marker of the network_plugin role. Empty asks for no marker.
	NetworkPluginLabel string
	// TrustDurableSubnetFile accepts a subnet file that does not provably lie on a tmpfs, and so may be of an earlier boot.
	TrustDurableSubnetFile bool
	// HoldUnrecorded holds a node without a record if it is not Ready and its gates are closed. It is for clusters without
	// the born-held policy.
	HoldUnrecorded bool
}

// Validate says what is wrong with the policy, in a sentence for whoever set the flags.
func (p Policy) Validate() error {
	known := []string{GateCNI, GateFlannel, GateNetworkPlugin}
	for _, name := range p.Force {
		unit, isUnit := strings.CutPrefix(name, GateUnit)
		kind, isCondition := strings.CutPrefix(name, GateCondition)
		switch {
		case isUnit && badUnit(unit) != "":
			return fmt.Errorf("gate %q: %s", name, badUnit(unit))
		case isCondition && badCondition(kind) != "":
			return fmt.Errorf("gate %q: %s", name, badCondition(kind))
		case !isUnit && !isCondition && !slices.Contains(known, name):
			return fmt.Errorf("gate %q is not known; choose from %s, %sNAME.service, %sTYPE", name, strings.Join(known, ", "), GateUnit, GateCondition)
		}
	}
	if problem := badTaintKey(p.TaintKey); problem != "" {
		return fmt.Errorf("taint key %q %s", p.TaintKey, problem)
	}
	if key, _, _ := strings.Cut(p.NetworkPluginLabel, "="); key == "" && p.NetworkPluginLabel != "" {
		return fmt.Errorf("label %q has no key; write key=value", p.NetworkPluginLabel)
	}
	return nil
}

func badTaintKey(key string) string {
	switch {
	case strings.ContainsAny(key, "=: \t\n"):
		return "is more than a key; leave out value and effect, the effect is NoSchedule"
	case strings.HasPrefix(key, "node.kubernetes.io/") || slices.Contains(foreignTaints(), key):
		return "belongs to somebody else; choose one of your own"
	}
	return ""
}

// badUnit says what is wrong with the name of a unit. A pattern would be true of units that do not exist yet.
func badUnit(name string) string {
	dot := strings.LastIndexByte(name, '.')
	if dot <= 0 || dot == len(name)-1 || strings.ContainsAny(name, "/*?[] \t\n") {
		return "write the whole name of one systemd unit, such as network-plugin.service"
	}
	return ""
}

// badCondition says what is wrong with the type of a condition.
func badCondition(kind string) string {
	switch {
	case kind == NetworkHeld:
		return "a hold cannot wait for what it says itself"
	case kind == "" || strings.ContainsAny(kind, "= \t\n"):
		return "write the type of one condition of Nodes, such as condition:NetworkUnavailable"
	}
	return ""
}

// Units are the systemd units that are waited for; whoever looks at the host looks at them.
func (p Policy) Units() []string { return p.named(GateUnit) }

// named returns what follows the prefix in the names of the gates that are forced, each once.
func (p Policy) named(prefix string) []string {
	var found []string
	for _, gate := range p.Force {
		if name, is := strings.CutPrefix(gate, prefix); is && !slices.Contains(found, name) {
			found = append(found, name)
		}
	}
	return found
}

func (p Policy) forces(gate string) bool { return slices.Contains(p.Force, gate) }
