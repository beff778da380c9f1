package etcddetect

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
)

// nfs is the foreignMount of a host with a file system of a network.
func nfs(name string) string {
	if strings.HasPrefix(name, "/mnt/nfs/") {
		return "/mnt/nfs"
	}
	return ""
}

// TestMentionOnNetwork: no text leads the scan to a file system that may hang. If it may be that of
// the settings or the data of a server, the host is unknown.
func TestMentionOnNetwork(t *testing.T) {
	for name, lines := range map[string]string{
		"settings": "EnvironmentFile=/mnt/nfs/etcd.env\nEnvironment=ETCD_DATA_DIR=/data\nExecStart=/usr/bin/etcd",
		"data":     "ExecStart=/usr/bin/etcd --data-dir=/mnt/nfs/etcd",
		"below":    "ExecStart=/usr/bin/etcd --data-dir=/mnt/nfs", // which is local
		"wildcard": "EnvironmentFile=/mnt/*/wild.env\nExecStart=/usr/bin/etcd",
		"backup":   "ExecStart=/usr/bin/etcdctl snapshot save /mnt/nfs/etcd",
	} {
		t.Run(name, func(t *testing.T) {
			root := hosttest.New(t, hosttest.Files{
				"/etc/systemd/system/etcd.service": "[Service]\n" + lines,
				"/mnt/nfs/etcd.env":                "ETCD_DATA_DIR=/mnt/nfs/etcd\n", "/mnt/nfs/etcd/member/snap/db": "x",
				"/mnt/nfs/wild.env": "ETCD_DATA_DIR=/data\n",
			})
			s := New(hostfs.Root(root), nil).newScan()
			s.foreignMount = nfs
			s.addUnits()
			s.addStopped()
			s.addOpaque()
			require.Empty(t, s.found)
			if name == "backup" {
				require.Empty(t, s.unknown)
				return
			}
			require.Len(t, s.unknown, 1)
			require.Contains(t, s.unknown[0], "is on a file system of a network or of another program")
		})
	}
}

// TestWildcards: a pattern that matches directories at each level of the disk ends early.
func TestWildcards(t *testing.T) {
	root := hosttest.New(t, hosttest.Files{
		etcdUnit: serviceOf("ExecStart=/bin/etcd --data-dir=/data/etcd /*/*/*/*/x"),
	})
	for i := range 4200 {
		require.NoError(t, os.MkdirAll(filepath.Join(root, "d", fmt.Sprint(i/80), fmt.Sprint(i)), 0o755))
	}
	var looked int
	s := New(hostfs.Root(root), nil).newScan()
	s.foreignMount = func(string) string { looked++; return "" }
	s.addUnits()
	s.addStopped()
	s.addOpaque()
	require.Less(t, looked, 4300)
	require.Len(t, s.unknown, 1)
	require.Contains(t, s.unknown[0], "more than 4096 paths match")
}

// TestManyPrograms has a script that names the programs of the system by their paths.
func TestManyPrograms(t *testing.T) {
	files := hosttest.Files{etcdUnit: serviceOf("ExecStart=/opt/start")}
	script := "#!/bin/sh\n"
	for i := range 20 {
		program := fmt.Sprintf("/bin/tool-%d", i)
		files[program], script = strings.Repeat("\x00", 48<<10), script+program+"\n"
	}
	files["/opt/start"] = script + "exec etcd --data-dir=/data/etcd\n"
	require.Empty(t, New(hostfs.Root(hosttest.New(t, files)), nil).Detect().Unknown)
}

// TestHostileTexts: the work for a text grows with its length, and not with its square, which would
// be minutes, whatever a user has written to a file that a wildcard leads to.
func TestHostileTexts(t *testing.T) {
	for name, line := range map[string]func(i int) string{
		"places":        func(i int) string { return fmt.Sprintf("--data-dir=/x%d\n", i) },
		"same place":    func(int) string { return "--data-dir=/x\n" },
		"variables":     func(i int) string { return fmt.Sprintf("--data-dir=$X%d_DATA_DIR\n", i) },
		"volumes":       func(i int) string { return fmt.Sprintf("/a%d:/b%d\n", i, i) },
		"network":       func(i int) string { return fmt.Sprintf("/mnt/nfs/%d\n", i) },
		"long path":     func(int) string { return "/a" },
		"blanks":        func(int) string { return " " },
		"path of blank": func(int) string { return " /a" },
	} {
		t.Run(name, func(t *testing.T) {
			var text strings.Builder
			for i := 0; text.Len() < maxTextSize-100; i++ {
				text.WriteString(line(i))
			}
			s := New(hostfs.Root(hosttest.New(t, hosttest.Files{
				etcdUnit:   serviceOf("ExecStartPre=rm /tmp/e-*", "ExecStart=/bin/etcd --data-dir=/data/$A"),
				"/tmp/e-1": text.String(),
			})), nil).newScan()
			s.foreignMount = nfs
			before := usedCPU(t)
			s.addUnits()
			s.addStopped()
			s.addOpaque()
			require.Less(t, usedCPU(t)-before, 20*time.Second)
			require.Len(t, s.unknown, 1)
		})
	}
}

// usedCPU returns the CPU time of the process, which other processes do not lengthen.
func usedCPU(t *testing.T) time.Duration {
	t.Helper()
	var usage unix.Rusage
	require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// TestKernelFileSystems: a pattern and a link in a script lead to the file systems of the kernel,
// which do not make a host unknown whose data directory is known.
func TestKernelFileSystems(t *testing.T) {
	root := hosttest.New(t, hosttest.Files{
		etcdUnit:         serviceOf("ExecStart=/opt/start"),
		"/opt/start":     "#!/bin/sh\ngrep x /etc/mtab\ncase $1 in\n /*) exec etcd --data-dir=/data/etcd\nesac\n",
		"/etc/mtab":      "-> /proc/self/mounts",
		"/sys/kernel/x":  "x",
		"/dev/shm/etc.d": "x",
	})
	s := New(hostfs.Root(root), nil).newScan()
	s.foreignMount = func(name string) string { return map[string]string{"/etc/mtab": "/proc", "/sys": "/sys"}[name] }
	s.addUnits()
	s.addStopped()
	s.addOpaque()
	require.Empty(t, s.unknown)
	require.Equal(t, []string{
		"systemd unit etcd.service does not run, and its data directory /data/etcd holds no member",
	}, s.notes)
}

// TestManyTexts: a wildcard in a unit leads to what any user has in /tmp. It costs little, and
// hides no member that the unit names.
func TestManyTexts(t *testing.T) {
	for name, c := range map[string]struct {
		count, size int
		reason      string
	}{
		"large": {20, maxTextSize, "its files mention more than 256 KiB of texts"},
		"many":  {maxMentions + 1, 1, "its files mention more than 1000 paths"},
	} {
		t.Run(name, func(t *testing.T) {
			files := hosttest.Files{
				etcdUnit:                    serviceOf("ExecStartPre=rm /tmp/e-*", "ExecStart=/bin/etcd --data-dir=/data/etcd"),
				"/data/etcd/member/snap/db": "x",
			}
			for i := range c.count {
				files[fmt.Sprintf("/tmp/e-%d", i)] = strings.Repeat("\n", c.size)
			}
			s := New(hostfs.Root(hosttest.New(t, files)), nil).newScan()
			s.addUnits()
			s.addStopped()
			s.addOpaque()
			require.Len(t, s.found, 1)
			require.Empty(t, s.unknown)
			require.Equal(t, []string{c.reason}, s.starters[0].skipped)
			size := 0
			for _, text := range s.starters[0].all {
				size += len(text.content)
			}
			require.Less(t, size, maxTextsSize+1<<10)
		})
	}
}

// TestMentions has units that mention more than one directory.
func TestMentions(t *testing.T) {
	const server = "[Service]\nExecStart=/usr/bin/etcd --data-dir=/data/etcd\n"
	for name, c := range map[string]struct {
		files hosttest.Files
		where []string
	}{
		"backup comes last": {hosttest.Files{
			"/etc/systemd/system/etcd-backup.service": "[Service]\nEnvironment=ETCD_DATA_DIR=/data/etcd\nExecStart=/opt/backup",
			"/etc/systemd/system/etcd.service":        server,
		}, []string{"data directory /data/etcd of systemd unit etcd.service, with no server running on it"}},
		"backup alone": {hosttest.Files{
			"/etc/systemd/system/etcd-backup.service": "[Service]\nEnvironment=ETCD_DATA_DIR=/data/etcd\nExecStart=/opt/backup",
		}, []string{"data directory /data/etcd of systemd unit etcd-backup.service, with no server running on it"}},
		"copies of a backup": {hosttest.Files{
			"/etc/systemd/system/etcd-backup.service": "[Service]\n" +
				"ExecStart=/usr/bin/etcdutl snapshot restore --data-dir=/data/etcd",
		}, nil},
		"key": {hosttest.Files{
			"/etc/systemd/system/etcd.service": "[Service]\nExecStart=/usr/bin/etcd --key-file=/etc/etcd.key --data-dir=/x",
			"/etc/etcd.key":                    "/data/etcd",
		}, nil},
		"unit before static pod": {hosttest.Files{
			"/etc/systemd/system/etcd.service":    server,
			"/etc/kubernetes/manifests/etcd.yaml": "path: /data/etcd",
		}, []string{"data directory /data/etcd of systemd unit etcd.service, with no server running on it"}},
		"two": {hosttest.Files{
			"/etc/systemd/system/etcd.service": server + "Environment=OLD=/old\n", "/old/member/snap/db": "x",
		}, []string{
			"data directory /data/etcd of systemd unit etcd.service, with no server running on it",
			"data directory /old of systemd unit etcd.service, with no server running on it",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			root := hosttest.New(t, hosttest.Files{"/data/etcd/member/snap/db": "x"})
			hosttest.Add(t, root, c.files)
			findings := New(hostfs.Root(root), nil).Detect()
			require.Empty(t, findings.Unknown)
			var where []string
			for _, f := range findings.Found {
				where = append(where, f.Where)
			}
			require.Equal(t, c.where, where)
		})
	}
	t.Run("copy", func(t *testing.T) {
		const segment = "/member/wal/0000000000000000-0000000000000000.wal"
		head := string(walHead(t))
		root := hosttest.New(t, hosttest.Files{
			"/etc/systemd/system/etcd.service": server + "Environment=OLD=/old\n",
			"/data/etcd" + segment:             head, "/old" + segment: head,
		})
		findings := New(hostfs.Root(root), nil).Detect()
		require.Len(t, findings.Found, 1)
		require.Contains(t, findings.Notes[len(findings.Notes)-1], "/old has a copy of the data of member ")
	})
}
