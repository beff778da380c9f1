package main

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestInspectAMachineOfOpenStack(t *testing.T) {
	const uuid, other = "0fa7b6c2-63fa-4d54-ba5e-5f3c5f4d1e11", "17ab3ae7-1a81-43e6-98ec-b6ffd04f91d3"
	root := t.TempDir()
	require.NotContains(t, inspected(t, "--host-root="+root), "\nOpenStack\n")
	write(t, filepath.Join(root, "sys/class/dmi/id/product_name"), "OpenStack Compute\n")
	write(t, filepath.Join(root, "sys/class/dmi/id/product_uuid"), "0FA7B6C2-63FA-4D54-BA5E-5F3C5F4D1E11\n")
	write(t, filepath.Join(root, "etc/machine-id"), "0fa7b6c263fa4d54ba5e5f3c5f4d1e11\n")
	text := inspected(t, "--host-root="+root)
	require.Contains(t, text, "\nOpenStack\n  provider ID        unknown; give --provider-id=")
	require.Contains(t, text, "  Magnum             they do not agree: the provider ID is not known")

	write(t, filepath.Join(root, "var/lib/cloud/data/instance-id"), uuid+"\n")
	text = inspected(t, "--host-root="+root)
	for _, line := range []string{
		"  provider ID        " + uuid + " (from cloud-init's instance ID, from which the cloud provider makes it)\n",
		"  system UUID        " + uuid + "\n", "  machine ID         " + uuid + "\n",
		"  Magnum             they agree: all agree on " + uuid + "\n",
	} {
		require.Contains(t, text, line)
	}

	var seen struct {
		OpenStack struct {
			ProviderID, SystemUUID, MachineID, Message, Source string
			Agree                                              bool
		}
	}
	require.NoError(t, json.Unmarshal([]byte(inspected(t, "--host-root="+root, "-o=json", "--provider-id=openstack:///"+other)), &seen))
	require.Equal(t, other, seen.OpenStack.ProviderID)
	require.Equal(t, uuid, seen.OpenStack.SystemUUID)
	require.Equal(t, "--provider-id", seen.OpenStack.Source)
	require.False(t, seen.OpenStack.Agree)
	require.Contains(t, seen.OpenStack.Message, "another one goes")
}
