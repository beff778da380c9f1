package readiness

import (
	"cmp"
	"errors"
	"time"
)

// Presence is whether something exists. The zero value is Unknown: it could not be checked.
type Presence int

// The values of Presence.
const (
	Unknown Presence = iota
	Absent
	Present
)

// String returns the presence as a word for messages.
func (p Presence) String() string {
	return cmp.Or(map[Presence]string{Absent: "absent", Present: "present"}[p], "unknown")
}

// MarshalText returns the same word for JSON.
func (p Presence) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// Facts is the result of one inspection of the host. No field comes from a clock, except
// Probe.Since, which messages contain and no decision depends on.
type Facts struct {
	// BootID is /proc/sys/kernel/random/boot_id, empty if it could not be read.
	BootID string `json:"bootID,omitempty"`
	// Start is when the first process of the host began, in clock ticks since the boot of the kernel,
	// 0 if it could not be read (proc(5), starttime).
	Start uint64 `json:"-"`
	// Subnet is flannel's subnet file.
	Subnet SubnetFile `json:"subnet"`
	// Conflist is the CNI configuration that the container runtime uses: the first file by
	// name, even if it cannot be parsed. Files that the runtime's own package installs do not
	// count.
	Conflist Conflist `json:"conflist"`
	// Marker is the file that the network_plugin role writes when it has finished.
	Marker Marker `json:"marker"`
	// Units are the systemd units that Policy.Units lists.
	Units []Unit `json:"units,omitempty"`
	// Probes are the results of the gates that Policy.Endpoints lists.
	Probes []Probe `json:"probes,omitempty"`
	// Etcd is whether etcd is on the host, Unknown until a scan has finished. Holds do not
	// depend on it, but autoscaler annotations do: they must stay on a node with etcd.
	Etcd Presence `json:"-"`
	// GoingDown is true if the host is shutting down (logind's PrepareForShutdown), StaysUp if
	// it is not. AwaitsLogind is true if neither is known yet but soon will be: the agent has
	// just started, or the bus connection was lost. If all three are false, logind is not
	// available.
	GoingDown    bool `json:"goingDown,omitempty"`
	StaysUp      bool `json:"staysUp,omitempty"`
	AwaitsLogind bool `json:"awaitsWord,omitempty"`
	// SawShutdown is true if this agent has seen a shutdown of the host begin. A host that stays up
	// has cancelled that shutdown. Another agent in the same boot may run after a soft reboot, which
	// restarts everything but the kernel.
	SawShutdown bool `json:"-"`
}

// probeOf returns the result for a gate. Its answer is Unknown if there is none yet.
func (f Facts) probeOf(gate string) Probe {
	for _, p := range f.Probes {
		if p.Gate == gate {
			return p
		}
	}
	return Probe{}
}

// SubnetFile is flannel's subnet file (/run/flannel/subnet.env). flanneld writes it when it
// has a lease (flannel pkg/subnet, WriteSubnetFile).
type SubnetFile struct {
	Path     string   `json:"path"`
	Presence Presence `json:"presence"`
	// Volatile is Present if the file is on a tmpfs and was therefore written in this boot,
	// and Unknown if the file system could not be determined.
	Volatile Presence `json:"volatile"`
	// Network and Subnet are FLANNEL_NETWORK and FLANNEL_SUBNET as written in the file. The
	// IPv6 fields correspond to the IPv6 variables.
	Network     string `json:"network,omitempty"`
	Subnet      string `json:"subnet,omitempty"`
	IPv6Network string `json:"ipv6Network,omitempty"`
	IPv6Subnet  string `json:"ipv6Subnet,omitempty"`
	MTU         string `json:"mtu,omitempty"`
	// Problem is why the file could not be read or parsed.
	Problem string `json:"problem,omitempty"`
}

// Conflist is one CNI network configuration list.
type Conflist struct {
	// Directory is the directory that was searched. Several are separated by commas.
	Directory string   `json:"directory"`
	Path      string   `json:"path,omitempty"`
	Presence  Presence `json:"presence"`
	Name      string   `json:"name,omitempty"`
	Plugins   []Plugin `json:"plugins,omitempty"`
	// BridgeSubnets are the subnets of a plain bridge with host-local addresses, if pods use
	// that network. Packages also install such bridges, with subnets of their own. The JSON name is
	// older and stays, like those of the next two fields.
	BridgeSubnets []string `json:"bridged,omitempty"`
	// AmbiguousName is true if packages install configurations under this name and runtimes
	// also write the cluster's configuration under it.
	AmbiguousName bool `json:"borrowed,omitempty"`
	// Ignored are configurations that come with a package. They do not show that the cluster's
	// network is ready.
	Ignored []string `json:"passedOver,omitempty"`
	// Problem is why the directory could not be read, why no file in it could be parsed, or which
	// file that the configuration refers to is missing.
	Problem string `json:"problem,omitempty"`
}

// Plugin is one program that a conflist needs.
type Plugin struct {
	// Type is the program's name, for example flannel, portmap or bridge.
	Type string `json:"type"`
	// NeededBy is set for a program that the conflist does not name itself. It is the plugin
	// that calls the program (flannel calls bridge and host-local), or another file that
	// configures it.
	NeededBy string `json:"neededBy,omitempty"`
	// Executable is whether the program exists and may be executed.
	Executable Presence `json:"executable"`
	// Problem is why the program could not be checked.
	Problem string `json:"problem,omitempty"`
}

// Marker is a file with the boot ID of the boot in which a task finished.
type Marker struct {
	Path     string   `json:"path"`
	Presence Presence `json:"presence"`
	// BootID is the trimmed content of the file.
	BootID  string `json:"bootID,omitempty"`
	Problem string `json:"problem,omitempty"`
}

// Unit is the state of a systemd unit in systemd's memory. That state does not survive a
// reboot, so it always belongs to the current boot.
type Unit struct {
	Name string `json:"name"`
	// Presence is whether the unit exists, Unknown if systemd did not answer.
	Presence Presence `json:"presence"`
	// ActiveState, SubState and Result are systemd's own values, for example active, exited
	// and success. Only services have a result.
	ActiveState string `json:"activeState,omitempty"`
	SubState    string `json:"subState,omitempty"`
	Result      string `json:"result,omitempty"`
	// Ran is true if the main process has exited in this boot (ExecMainExitTimestampMonotonic
	// is greater than zero).
	Ran     bool   `json:"ran,omitempty"`
	Problem string `json:"problem,omitempty"`
}

// Probe is the result of the last probe of an Endpoint.
type Probe struct {
	// Gate is the name of the gate.
	Gate string `json:"gate"`
	// Answer is Present if the last probe succeeded, Absent if it failed, and Unknown before
	// the first one.
	Answer Presence `json:"answer"`
	// Problem is why the last probe failed.
	Problem string `json:"problem,omitempty"`
	// Since is when the first of the latest failures happened, without a success since.
	Since time.Time `json:"since,omitzero"`
}

// Policy is the operator's configuration of holds. The zero value holds by cordon and
// evaluates the gates that the node's own conflist calls for.
type Policy struct {
	// TaintKey makes new holds use a NoSchedule taint with this key instead of the cordon. It
	// is for autoscalers and CNIs that support startup taints
	// (`startup-taint.cluster-autoscaler.kubernetes.io/…`, `readiness.k8s.io/…`), and for
	// Cilium, which overwrites NetworkUnavailable. Empty holds by cordon.
	TaintKey string
	// Force names gates that are evaluated on every node, in addition to those that the node
	// calls for: GateFlannel, GateNetworkPlugin, or a prefix such as GateUnit with its
	// argument. GateCNI is always evaluated.
	Force []string
	// NetworkPluginLabel, `key` or `key=value`, is the label of nodes that Ansible builds.
	// Until their first release, such nodes wait for the marker of the network_plugin role.
	// Empty requires no marker.
	NetworkPluginLabel string
	// TrustDurableSubnetFile accepts a subnet file that is not proven to be on a tmpfs and may
	// be from an earlier boot.
	TrustDurableSubnetFile bool
	// FlannelUsesEtcd accepts flannel's subnet file on a Node without podCIDRs. flannel needs
	// them unless it stores its subnets in etcd.
	FlannelUsesEtcd bool
	// HoldUnrecorded holds a node without a record if it is not Ready, not known to have been
	// Ready, and has a closed gate. It is for clusters without the born-held policy.
	HoldUnrecorded bool
}

// Validate returns an error that names the first gate that cannot be used. It is meant for the
// person who set the flags.
func (p Policy) Validate() error {
	for _, name := range p.Force {
		if problem := gateProblem(name); problem != "" {
			return errors.New(problem)
		}
	}
	return nil
}
