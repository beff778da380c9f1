package etcddetect

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// TestHungMount scans a host on which a file system hangs, as NFS whose server is gone, to which
// the texts of a unit lead.
func TestHungMount(t *testing.T) {
	for name, unit := range map[string]string{
		"link to a directory":     "ExecStart=/usr/bin/etcd --data-dir=/opt/etcd/data",
		"link in a link":          "ExecStart=/usr/bin/etcd --data-dir=/srv/link/etcd/data",
		"configuration file":      "ExecStart=/usr/bin/etcd --config-file=/nfs/etcd.yml",
		"link to a configuration": "ExecStart=/usr/bin/etcd --config-file=/opt/etcd/etcd.yml",
	} {
		t.Run(name, func(t *testing.T) {
			root := hosttest.New(t, hosttest.Files{
				"/nfs/x": "x", "/opt/etcd": "-> ../nfs/etcd", "/srv/link": "-> /opt", etcdUnit: serviceOf(unit),
			})
			server, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
			if err != nil {
				t.Skipf("SKIPPED: a hung file system is not tested, because this test may not open /dev/fuse: %v", err)
			}
			dir := filepath.Join(root, "nfs")
			options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d", server, os.Getuid(), os.Getgid())
			if err := unix.Mount("hung", dir, "fuse", 0, options); err != nil {
				require.NoError(t, unix.Close(server))
				t.Skipf("SKIPPED: a hung file system is not tested, because this test may not mount one: %v", err)
			}
			ended := make(chan evidence.Scan, 1)
			go func() { ended <- New(hostfs.Root(root), nil).Detect() }()
			var findings evidence.Scan
			hasHung := false
			select {
			case findings = <-ended:
			case <-time.After(10 * time.Second):
				hasHung = true
			}
			require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH))
			require.NoError(t, unix.Close(server)) // ends what hangs
			if hasHung {
				<-ended
			}
			require.False(t, hasHung, "the scan ends")
			require.Len(t, findings.Unknown, 1)
			require.Contains(t, findings.Unknown[0], "is on a file system of a network or of another program")
		})
	}
}
