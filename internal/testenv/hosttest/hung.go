package hosttest

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// MountHung mounts a file system on a directory whose server never answers. So every access to it
// waits, as with NFS whose server is gone. The returned function ends the mount, and what waits for
// it. Where a test may not mount, it is skipped.
func MountHung(t *testing.T, dir string) (end func()) {
	t.Helper()
	server, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("SKIPPED: a hung file system is not tested, because this test may not open /dev/fuse: %v", err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d", server, os.Getuid(), os.Getgid())
	if err := unix.Mount("hung", dir, "fuse", 0, options); err != nil {
		require.NoError(t, unix.Close(server))
		t.Skipf("SKIPPED: a hung file system is not tested, because this test may not mount one: %v", err)
	}
	return func() {
		require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH))
		require.NoError(t, unix.Close(server))
	}
}
