package host

import (
	"strings"

	"github.com/prometheus/procfs"

	"github.com/holdfast-dev/holdfast/internal/hostfs"
)

// A Machine has the names that the host knows for its machine.
type Machine struct {
	// OpenStack is set if the firmware names OpenStack.
	OpenStack bool
	// ProviderID is the kubelet's --provider-id, or "" if it has none.
	ProviderID string
	// InstanceID is the cloud's name for the machine as cloud-init recorded it. OpenStack's
	// cloud provider makes the provider ID from it (openstack:///<instance ID>).
	InstanceID string
	// SystemUUID is the firmware's, MachineID that of machine-id(5). The kubelet reports
	// both.
	SystemUUID, MachineID string
	// Unread are the files that exist and could not be read, with the reason.
	Unread []string
}

// Machine reads the names of the machine.
func (h *Host) Machine() Machine {
	var m Machine
	first := func(paths ...string) string {
		for _, path := range paths {
			text, err := h.root.ReadFile(path)
			if err != nil {
				if !hostfs.IsAbsent(err) {
					m.Unread = append(m.Unread, path+": "+hostfs.Reason(err).Error())
				}
				continue
			}
			if value := strings.TrimSpace(string(text)); value != "" {
				return value
			}
		}
		return ""
	}
	const dmi = "/sys/class/dmi/id/"
	firmware := first(dmi+"sys_vendor") + first(dmi+"product_name") + first(dmi+"chassis_asset_tag")
	m.OpenStack = strings.Contains(firmware, "OpenStack")
	m.InstanceID = first("/var/lib/cloud/data/instance-id")
	m.SystemUUID = first(dmi + "product_uuid")
	m.MachineID = first("/etc/machine-id", "/var/lib/dbus/machine-id")
	m.ProviderID = kubeletProviderID(h.root.Proc(""))
	return m
}

// kubeletProviderID returns the --provider-id of the kubelet in a process table, or "" if the
// kubelet has none or does not run.
func kubeletProviderID(dir string) string {
	table, err := procfs.NewFS(dir)
	if err != nil {
		return ""
	}
	all, err := table.AllProcs()
	if err != nil {
		return ""
	}
	for _, p := range all {
		line, err := p.CmdLine()
		if comm, failed := p.Comm(); err != nil || failed != nil || comm != "kubelet" {
			continue
		}
		for i, word := range line {
			name, value, joined := strings.Cut(strings.TrimLeft(word, "-"), "=")
			switch {
			case name != "provider-id" || !strings.HasPrefix(word, "-"):
			case joined:
				return value
			case i+1 < len(line):
				return line[i+1]
			}
		}
	}
	return ""
}
