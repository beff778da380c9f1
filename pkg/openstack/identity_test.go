package openstack_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/pkg/openstack"
)

// The firmware and the image of a machine agree with its provider ID, in different
// notations.
func ExampleIdentify() {
	identity := openstack.Identify("openstack:///0fa7b6c2-63fa-4d54-ba5e-5f3c5f4d1e11",
		"0FA7B6C2-63FA-4D54-BA5E-5F3C5F4D1E11", "0fa7b6c263fa4d54ba5e5f3c5f4d1e11")
	fmt.Println(identity.Agree, identity.Message)
	// Output: true all agree on 0fa7b6c2-63fa-4d54-ba5e-5f3c5f4d1e11
}

func TestIdentify(t *testing.T) {
	const (
		uuid        = "0fa7b6c2-63fa-4d54-ba5e-5f3c5f4d1e11"
		bare        = "0fa7b6c263fa4d54ba5e5f3c5f4d1e11"
		swapped     = "c2b6a70f-fa63-544d-ba5e-5f3c5f4d1e11"
		other       = "17ab3ae7-1a81-43e6-98ec-b6ffd04f91d3"
		fromImage   = "deadbeefdeadbeefdeadbeefdeadbeef"
		providerID  = "openstack:///" + uuid
		byMachineID = "before mid-2020 (1.15, 1.16) deletes by the machine ID"
	)
	for name, c := range map[string]struct {
		provider, system, machine string
		agree                     bool
		message                   string
	}{
		"different notations": {
			providerID, "0FA7B6C2-63FA-4D54-BA5E-5F3C5F4D1E11", bare + "\n", true, "all agree on " + uuid,
		},
		"region":               {"openstack://RegionOne/" + uuid, uuid, bare, true, "all agree"},
		"no machine ID":        {providerID, uuid, "", true, "all agree"},
		"machine ID of image":  {providerID, uuid, fromImage, false, byMachineID},
		"swapped byte order":   {providerID, swapped, bare, false, "in the other byte order"},
		"another machine":      {providerID, other, bare, false, "deletes no machine or another one"},
		"no provider ID":       {"", uuid, bare, false, "the provider ID is not known"},
		"no system UUID":       {providerID, "", bare, false, "the system UUID is not known"},
		"IDs that are no UUID": {"openstack:///kube-minion-1", "Not Settable", "", false, "the provider ID is kube-minion-1"},
	} {
		t.Run(name, func(t *testing.T) {
			got := openstack.Identify(c.provider, c.system, c.machine)
			require.Equal(t, c.agree, got.Agree)
			require.Contains(t, got.Message, c.message)
		})
	}
	require.True(t, openstack.IsProviderID("openstack:///x"))
	require.False(t, openstack.IsProviderID("aws:///x"))
	got := openstack.Identify(providerID, "{"+uuid+"}", bare)
	require.Equal(t, openstack.Identity{
		ProviderID: uuid, SystemUUID: uuid, MachineID: uuid, Agree: true, Message: "all agree on " + uuid,
	}, got)
}
