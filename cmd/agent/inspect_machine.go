package main

import (
	"fmt"

	"github.com/holdfast-dev/holdfast/internal/host"
	"github.com/holdfast-dev/holdfast/pkg/openstack"
)

// openstackReport is what the machine is called in the places that Magnum's autoscaler compares.
type openstackReport struct {
	openstack.Identity
	// Source is where the provider ID is from.
	Source string   `json:"source,omitempty"`
	Unread []string `json:"unread,omitempty"`
}

// describeMachine compares the names of a machine of OpenStack's, nil for others. The provider ID stands on the Node, which
// an inspection does not ask for: it is what was given, else what the kubelet was told, else what the cloud provider
// makes of cloud-init's note.
func describeMachine(m host.Machine, given string) *openstackReport {
	id, source := given, "--provider-id"
	if id == "" {
		id, source = m.ProviderID, "the kubelet's --provider-id"
	}
	if id == "" && m.OpenStack && m.InstanceID != "" {
		id, source = "openstack:///"+m.InstanceID, "cloud-init's instance ID, from which the cloud provider makes it"
	}
	if !m.OpenStack && !openstack.Is(id) {
		return nil
	}
	if id == "" {
		source = ""
	}
	return &openstackReport{Identity: openstack.Identify(id, m.SystemUUID, m.MachineID), Source: source, Unread: m.Unread}
}

func (p page) machine(o *openstackReport) {
	if o == nil {
		return
	}
	p.section("OpenStack")
	id := or(o.ProviderID, "unknown; give --provider-id=$(kubectl get node NAME -o jsonpath={.spec.providerID})")
	if o.Source != "" {
		id = fmt.Sprintf("%s (from %s)", id, o.Source)
	}
	p.row(2, "provider ID", id)
	p.row(2, "system UUID", or(o.SystemUUID, "unknown"))
	p.row(2, "machine ID", or(o.MachineID, "unknown"))
	p.row(2, "unread", o.Unread...)
	p.row(2, "Magnum", map[bool]string{true: "they agree: ", false: "they do not agree: "}[o.Agree]+o.Message)
}
