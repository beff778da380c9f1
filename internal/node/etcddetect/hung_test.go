package etcddetect

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
			end := hosttest.MountHung(t, filepath.Join(root, "nfs"))
			ended := make(chan evidence.Scan, 1)
			go func() { ended <- New(hostfs.Root(root), nil).Detect() }()
			var findings evidence.Scan
			hasHung := false
			select {
			case findings = <-ended:
			case <-time.After(10 * time.Second):
				hasHung = true
			}
			end()
			if hasHung {
				<-ended
			}
			require.False(t, hasHung, "the scan ends")
			require.Len(t, findings.Unknown, 1)
			require.Contains(t, findings.Unknown[0], "is on a file system of a network or of another program")
		})
	}
}
