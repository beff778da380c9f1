package readiness

// Presence says whether something is there. The zero value is Unknown: it could not be looked at.
type Presence int

// The presences.
const (
	Unknown Presence = iota
	Absent
	Present
)

// String returns the presence as a word for messages.
func (p Presence) String() string {
	switch p {
	case Absent:
		return "absent"
	case Present:
		return "present"
	case Unknown:
	}
	return "unknown"
}

// MarshalText writes the presence as that word in JSON.
func (p Presence) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// Facts is what one look at the host says about its network. Nothing in it is from a clock.
type Facts struct {
	// BootID is /proc/sys/kernel/random/boot_id, empty if it could not be read.
	BootID string `json:"bootID,omitempty"`
	// Subnet is flannel's subnet file.
	Subnet SubnetFile `json:"subnet"`
	// Conflist is the CNI configuration that the runtime takes: the first one by file name, also if it does not parse. Those
	// that a runtime's own package installs do not count.
	Conflist Conflist `json:"conflist"`
	// Marker is the file by which the network_plugin role says that it has finished.
	Marker Marker `json:"marker"`
	// Units are the systemd units that the policy waits for (Policy.Units).
	Units []Unit `json:"units,omitempty"`
	// Etcd says whether etcd is on the host, Unknown until somebody has looked for it. No hold depends on it; the marks for
	// autoscalers do, which have to stay on a node with etcd.
	Etcd Presence `json:"-"`
	// GoingDown says that the host is shutting down, by logind's PrepareForShutdown, and StaysUp that it is not. AwaitsWord
	// says that neither is known and will be in a moment: the agent has just started, or the bus was lost. None of the three
	// means that nobody will say.
	GoingDown  bool `json:"goingDown,omitempty"`
	StaysUp    bool `json:"staysUp,omitempty"`
	AwaitsWord bool `json:"awaitsWord,omitempty"`
}

// SubnetFile is flannel's subnet file (/run/flannel/subnet.env), written by flanneld when it has its lease
// (flannel pkg/subnet, WriteSubnetFile).
type SubnetFile struct {
	Path     string   `json:"path"`
	Presence Presence `json:"presence"`
	// Volatile says that the file lies on a tmpfs, and so was written since this boot; Unknown if that could not be told.
	Volatile Presence `json:"volatile"`
	// Network and Subnet are FLANNEL_NETWORK and FLANNEL_SUBNET as they stand in the file, IPv6 ones likewise.
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
	// Directory is where it was found, or where it was looked for: several with commas between them.
	Directory string   `json:"directory"`
	Path      string   `json:"path,omitempty"`
	Presence  Presence `json:"presence"`
	Name      string   `json:"name,omitempty"`
	Plugins   []Plugin `json:"plugins,omitempty"`
	// Bridged are the subnets of a plain bridge with host-local addresses, if that is the network that pods are given. Packages
	// install such bridges too, with subnets of their own choice.
	Bridged []string `json:"bridged,omitempty"`
	// Borrowed says that the configuration has a name under which packages install theirs and runtimes write the cluster's.
	Borrowed bool `json:"borrowed,omitempty"`
	// PassedOver are configurations that come with a package, and so do not show that the cluster's network is there.
	PassedOver []string `json:"passedOver,omitempty"`
	// Problem is why the directory could not be read or why no file in it parses.
	Problem string `json:"problem,omitempty"`
}

// Plugin is one program that a conflist needs.
type Plugin struct {
	// Type is the program's name: flannel, portmap, bridge.
	Type string `json:"type"`
	// NeededBy is the plugin that calls it if the conflist does not name it itself, flannel of bridge and host-local, or
	// another conflist in the same directory that does.
	NeededBy string `json:"neededBy,omitempty"`
	// Executable says whether the program is there and may be executed.
	Executable Presence `json:"executable"`
	// Problem is why it could not be looked at.
	Problem string `json:"problem,omitempty"`
}

// Marker is a file that holds the boot ID of the boot in which something finished.
type Marker struct {
	Path     string   `json:"path"`
	Presence Presence `json:"presence"`
	// BootID is the file's content, trimmed.
	BootID  string `json:"bootID,omitempty"`
	Problem string `json:"problem,omitempty"`
}

// Unit is a systemd unit as systemd has it in memory. Nothing of that survives a reboot, so that it is of this boot.
type Unit struct {
	Name string `json:"name"`
	// Presence says whether there is such a unit; Unknown if systemd could not be asked.
	Presence Presence `json:"presence"`
	// ActiveState, SubState and Result are systemd's own words: active, exited, success. Only services have a result.
	ActiveState string `json:"activeState,omitempty"`
	SubState    string `json:"subState,omitempty"`
	Result      string `json:"result,omitempty"`
	// Ran says that its main process has come to an end in this boot (ExecMainExitTimestampMonotonic is above zero).
	Ran     bool   `json:"ran,omitempty"`
	Problem string `json:"problem,omitempty"`
}
