package host

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMachine(t *testing.T) {
	root := t.TempDir()
	put := func(path, text string) {
		path = filepath.Join(root, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	h, err := New(Options{Root: root})
	require.NoError(t, err)
	require.Equal(t, Machine{}, h.Machine(), "a host that shows nothing")

	put("sys/devices/virtual/dmi/id/sys_vendor", "OpenStack Foundation\n")
	put("sys/devices/virtual/dmi/id/product_uuid", "0fa7b6c2-63fa-4d54-ba5e-5f3c5f4d1e11\n")
	put("var/lib/cloud/data/instance-id", "0fa7b6c2-63fa-4d54-ba5e-5f3c5f4d1e11\n")
	put("var/lib/dbus/machine-id", "0fa7b6c263fa4d54ba5e5f3c5f4d1e11\n")
	put("etc/machine-id", "\n")
	put("proc/7/comm", "kubelet\n")
	put("proc/7/cmdline", "/usr/bin/kubelet\x00--v=2\x00--provider-id\x00openstack:///0fa7\x00")
	require.NoError(t, os.MkdirAll(filepath.Join(root, "sys/class/dmi"), 0o755))
	require.NoError(t, os.Symlink("../../devices/virtual/dmi/id", filepath.Join(root, "sys/class/dmi/id")))
	require.Equal(t, Machine{
		OpenStack: true, ProviderID: "openstack:///0fa7", InstanceID: "0fa7b6c2-63fa-4d54-ba5e-5f3c5f4d1e11",
		SystemUUID: "0fa7b6c2-63fa-4d54-ba5e-5f3c5f4d1e11", MachineID: "0fa7b6c263fa4d54ba5e5f3c5f4d1e11",
	}, h.Machine())

	put("proc/7/cmdline", "/usr/bin/kubelet\x00provider-id=x\x00--provider-id=openstack:///1\x00")
	require.NoError(t, os.RemoveAll(filepath.Join(root, "etc/machine-id")))
	require.NoError(t, os.MkdirAll(filepath.Join(root, "etc/machine-id"), 0o755))
	got := h.Machine()
	require.Equal(t, "openstack:///1", got.ProviderID)
	require.Equal(t, []string{"/etc/machine-id: not a regular file"}, got.Unread)
	require.Equal(t, "0fa7b6c263fa4d54ba5e5f3c5f4d1e11", got.MachineID)
}
