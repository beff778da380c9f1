package host_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/host"
	"github.com/holdfast-dev/holdfast/internal/hosttest"
)

func newHost(t testing.TB, root string, units ...string) *host.Host {
	t.Helper()
	h, err := host.New(host.Options{Root: root, Units: units})
	require.NoError(t, err)
	return h
}

func TestNewWithoutRoot(t *testing.T) {
	root := hosttest.New(t, hosttest.Files{"/file": "x"})
	for _, name := range []string{"file", "nothing"} {
		_, err := host.New(host.Options{Root: filepath.Join(root, name)})
		require.ErrorContains(t, err, "opening the host root")
	}
}

func TestMachine(t *testing.T) {
	const instance, machineID = "0fa7b6c2-63fa-4d54-ba5e-5f3c5f4d1e11", "0fa7b6c263fa4d54ba5e5f3c5f4d1e11"
	root := t.TempDir()
	h := newHost(t, root)
	require.Equal(t, host.Machine{}, h.Machine(), "empty host")

	hosttest.Add(t, root, hosttest.Files{
		"/sys/devices/virtual/dmi/id/sys_vendor":   "OpenStack Foundation\n",
		"/sys/devices/virtual/dmi/id/product_uuid": instance + "\n",
		"/sys/class/dmi/id":                        "-> ../../devices/virtual/dmi/id",
		"/var/lib/cloud/data/instance-id":          instance + "\n",
		"/var/lib/dbus/machine-id":                 machineID + "\n",
		"/etc/machine-id":                          "\n",
		"/proc/7/comm":                             "kubelet\n",
		"/proc/7/cmdline":                          "/usr/bin/kubelet\x00--v=2\x00--provider-id\x00openstack:///0fa7\x00",
	})
	require.Equal(t, host.Machine{
		OpenStack: true, ProviderID: "openstack:///0fa7", InstanceID: instance, SystemUUID: instance, MachineID: machineID,
	}, h.Machine())

	hosttest.Remove(t, root, "/etc/machine-id")
	hosttest.Add(t, root, hosttest.Files{
		"/proc/7/cmdline":          "/usr/bin/kubelet\x00provider-id=x\x00--provider-id=openstack:///1\x00",
		"/etc/machine-id/anything": "",
	})
	got := h.Machine()
	require.Equal(t, "openstack:///1", got.ProviderID)
	require.Equal(t, []string{"/etc/machine-id: not a regular file"}, got.Unread)
	require.Equal(t, machineID, got.MachineID)
}
