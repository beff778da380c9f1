package host

import (
	"strings"

	"github.com/prometheus/procfs"
)

// Machine is what the host itself knows of the machine that it is.
type Machine struct {
	// OpenStack says that the firmware calls the machine one of OpenStack's.
	OpenStack bool
	// ProviderID is what the kubelet was told to call the machine, empty if it was not.
	ProviderID string
	// InstanceID is the cloud's name for the machine as cloud-init noted it, from which OpenStack's cloud provider makes
	// the provider ID (openstack:///<instance ID>).
	InstanceID string
	// SystemUUID is the firmware's, MachineID that of machine-id(5): the kubelet reports both.
	SystemUUID, MachineID string
	// Unread is what there is and could not be read, with the reason.
	Unread []string
}

// Machine looks up what the machine is called.
func (h *Host) Machine() Machine {
	var m Machine
	first := func(paths ...string) string {
		for _, path := range paths {
			text, err := h.root.read(path)
			if err != nil {
				if !absent(err) {
					m.Unread = append(m.Unread, path+": "+plain(err).Error())
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
	m.OpenStack = strings.Contains(first(dmi+"sys_vendor")+first(dmi+"product_name")+first(dmi+"chassis_asset_tag"), "OpenStack")
	m.InstanceID = first("/var/lib/cloud/data/instance-id")
	m.SystemUUID = first(dmi + "product_uuid")
	m.MachineID = first("/etc/machine-id", "/var/lib/dbus/machine-id")
	m.ProviderID = h.toldProviderID()
	return m
}

// toldProviderID is the kubelet's --provider-id, empty if it runs without or not at all.
func (h *Host) toldProviderID() string {
	table, err := procfs.NewFS(h.proc(""))
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
			name, value, inOne := strings.Cut(strings.TrimLeft(word, "-"), "=")
			switch {
			case name != "provider-id" || !strings.HasPrefix(word, "-"):
			case inOne:
				return value
			case i+1 < len(line):
				return line[i+1]
			}
		}
	}
	return ""
}
