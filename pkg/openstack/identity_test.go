package openstack_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/pkg/openstack"
)

func TestIdentify(t *testing.T) {
	const uuid, bare, other = "0fa7b6c2-63fa-4d54-ba5e-5f3c5f4d1e11", "0fa7b6c263fa4d54ba5e5f3c5f4d1e11", "17ab3ae7-1a81-43e6-98ec-b6ffd04f91d3"
	for name, c := range map[string]struct {
		provider, system, machine string
		agree                     bool
		says                      string
	}{
		"all agree, each in its own spelling":  {"openstack:///" + uuid, "0FA7B6C2-63FA-4D54-BA5E-5F3C5F4D1E11", bare + "\n", true, "all agree on " + uuid},
		"with a region":                        {"openstack://RegionOne/" + uuid, uuid, bare, true, "all agree"},
		"the machine ID is not known":          {"openstack:///" + uuid, uuid, "", true, "all agree"},
		"the image brought its own machine ID": {"openstack:///" + uuid, uuid, "deadbeefdeadbeefdeadbeefdeadbeef", false, "before mid-2020 (1.15, 1.16) deletes by the machine ID"},
		"in another byte order":                {"openstack:///" + uuid, "c2b6a70f-fa63-544d-ba5e-5f3c5f4d1e11", bare, false, "in the other byte order"},
		"another machine":                      {"openstack:///" + uuid, other, bare, false, "another one goes"},
		"no provider ID":                       {"", uuid, bare, false, "the provider ID is not known"},
		"no system UUID":                       {"openstack:///" + uuid, "", bare, false, "the system UUID is not known"},
		"no UUIDs at all":                      {"openstack:///kube-minion-1", "Not Settable", "", false, "the provider ID is kube-minion-1"},
	} {
		t.Run(name, func(t *testing.T) {
			got := openstack.Identify(c.provider, c.system, c.machine)
			require.Equal(t, c.agree, got.Agree)
			require.Contains(t, got.Message, c.says)
		})
	}
	require.True(t, openstack.Is("openstack:///x"))
	require.False(t, openstack.Is("aws:///x"))
	got := openstack.Identify("openstack:///"+uuid, "{"+uuid+"}", bare)
	require.Equal(t, openstack.Identity{ProviderID: uuid, SystemUUID: uuid, MachineID: uuid, Agree: true, Message: "all agree on " + uuid}, got)
}
