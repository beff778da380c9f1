package etcddetect

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/node/datasearch"
	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// detectWithSearch scans a host after a search of its disks.
func detectWithSearch(t *testing.T, root string) evidence.Scan {
	t.Helper()
	limits := datasearch.Limits{Interval: time.Hour, MaxTime: time.Minute, MaxDirectories: 10_000}
	search := datasearch.New(hostfs.Root(root), limits, slog.New(slog.DiscardHandler))
	detector := New(hostfs.Root(root), nil)
	detector.UseSearch(search)
	require.True(t, detector.Detect().Searching)
	search.Once(t.Context())
	findings := detector.Detect()
	require.False(t, findings.Searching)
	return findings
}

// TestDataOnUnmountedDisk: what a search found on a disk of /etc/fstab is not gone while nothing is
// mounted there.
func TestDataOnUnmountedDisk(t *testing.T) {
	root := hosttest.New(t, hosttest.Files{
		"/etc/fstab": "UUID=x /data ext4 nofail\n",
		"/data/etcd/member/wal/0000000000000000-0000000000000000.wal": string(walHead(t)),
	})
	search := datasearch.New(hostfs.Root(root), datasearch.Limits{MaxTime: time.Minute, MaxDirectories: 1000},
		slog.New(slog.DiscardHandler))
	search.Once(t.Context())
	detector := New(hostfs.Root(root), nil)
	detector.UseSearch(search)
	require.Len(t, detector.Detect().Data, 1)
	hosttest.Remove(t, root, "/data/etcd")
	require.Equal(t, []string{"the data directory /data/etcd: nothing is mounted on /data"}, detector.Detect().Unknown)
	hosttest.Add(t, root, hosttest.Files{"/etc/fstab": ""})
	require.Empty(t, detector.Detect().Unknown)
}

// TestData has the data of a stopped member in places that nothing names.
func TestData(t *testing.T) {
	const (
		segment = "/0000000000000000-0000000000000000.wal"
		dir     = "/data/etcd"
		log     = dir + "/member/wal" + segment
		command = "/usr/bin/etcd --data-dir=" + dir + "\n"
	)
	head := string(walHead(t))
	ref := *parseWALHead([]byte(head))
	found := func(dir string) []evidence.Data { return []evidence.Data{{Dir: dir, Ref: ref}} }
	unit := func(flags string) hosttest.Files {
		text := serviceOf("ExecStart=" + strings.TrimSpace(command) + flags)
		return hosttest.Files{"/etc/systemd/system/etcd.service": text, log: head}
	}
	for name, c := range map[string]struct {
		files   hosttest.Files
		data    []evidence.Data
		servers int
		unknown string
	}{
		"no unit": {files: hosttest.Files{log: head}, data: found(dir)},
		"starters that are not read": {files: hosttest.Files{
			log: head, "/etc/rc.local": command, "/etc/cron.d/etcd": "@reboot root " + command,
			"/etc/supervisord.conf":                          "[program:etcd]\ncommand=" + command,
			"/home/a/.config/systemd/user/etcd.service":      serviceOf("ExecStart=" + command),
			"/home/a/.config/containers/systemd/x.container": "[Container]\nExec=" + command,
		}, data: found(dir)},
		"docker volume": {
			files: hosttest.Files{"/var/lib/docker/volumes/e/_data/member/wal" + segment: head},
			data:  found("/var/lib/docker/volumes/e/_data"),
		},
		"log alone":     {files: hosttest.Files{"/wal" + segment: head}, data: found("/wal")},
		"log and copy":  {files: hosttest.Files{"/wal" + segment: head, "/wal/x.wal": "x"}, data: found("/wal")},
		"unit names it": {files: unit(""), servers: 1},
		"unit names log": {
			files: with(with(unit(" --wal-dir=/wal"), dir+"/member/snap/db", "x"), "/wal"+segment, head), servers: 1,
		},
		"copy": {files: with(unit(""), "/backup/member/wal"+segment, head), servers: 1},
		"damaged": {
			files:   hosttest.Files{log: "x", dir + "/member/snap": hosttest.Loop},
			unknown: "the data directory /data/etcd: its log does not tell whose data it is",
		},
		"unreadable": {
			files:   hosttest.Files{"/wal" + segment: hosttest.Loop},
			unknown: "the log of etcd /wal: too many levels of symbolic links",
		},
		"another program": {files: hosttest.Files{"/var/lib/docker/swarm/raft/wal-v3-encrypted" + segment: "x"}},
	} {
		t.Run(name, func(t *testing.T) {
			root := hosttest.New(t, c.files)
			require.NoError(t, filepath.WalkDir(root, func(at string, entry os.DirEntry, _ error) error {
				if filepath.Ext(at) == ".wal" && entry.Type().IsRegular() {
					return os.Chtimes(at, time.Time{}, time.Now().Add(-recentLog))
				}
				return nil
			}))
			findings := detectWithSearch(t, root)
			require.Equal(t, c.data, findings.Data)
			require.Len(t, findings.Found, c.servers)
			if c.unknown == "" {
				require.Empty(t, findings.Unknown)
			} else {
				require.Contains(t, strings.Join(findings.Unknown, "\n"), c.unknown)
			}
		})
	}
	findings := detectWithSearch(t, hosttest.New(t, hosttest.Files{log: head}))
	require.Equal(t, []evidence.Data{{Dir: dir, Ref: ref, Recent: true}}, findings.Data)
}

func with(files hosttest.Files, path, text string) hosttest.Files {
	files[path] = text
	return files
}

// TestOld has the data of a stopped server, which can be old only if nothing else can be its data.
func TestOld(t *testing.T) {
	const segment = "/member/wal/0000000000000000-0000000000000000.wal"
	unit := func(text string) hosttest.Files {
		return hosttest.Files{"/etc/systemd/system/etcd.service": "[Service]\n" + text}
	}
	for name, c := range map[string]struct {
		files           hosttest.Files
		isRecent, isOld bool
	}{
		"unit":          {files: unit("ExecStart=/usr/bin/etcd --data-dir=/var/lib/etcd"), isOld: true},
		"layout":        {isOld: true},
		"recent":        {files: unit("ExecStart=/usr/bin/etcd --data-dir=/var/lib/etcd"), isRecent: true},
		"another place": {files: unit("Environment=ETCD_DATA_DIR=/var/lib/etcd\nExecStart=/usr/bin/etcd --data-dir=${DIR}")},
		"container":     {files: unit("Environment=OLD=/var/lib/etcd\nExecStart=/usr/bin/docker run etcd:v3 --data-dir=/d")},
		"another starter": {files: with(unit("ExecStart=/usr/bin/etcd --data-dir=/var/lib/etcd"),
			"/etc/systemd/system/etcd-main.service", "[Service]\nExecStart=/opt/start")},
		"layout and starter": {files: unit("ExecStart=/opt/start")},
	} {
		t.Run(name, func(t *testing.T) {
			root := hosttest.New(t, hosttest.Files{"/var/lib/etcd" + segment: string(walHead(t))})
			hosttest.Add(t, root, c.files)
			written := time.Now().Add(-recentLog)
			if c.isRecent {
				written = written.Add(time.Minute)
			}
			require.NoError(t, os.Chtimes(filepath.Join(root, "var/lib/etcd"+segment), time.Time{}, written))
			findings := New(hostfs.Root(root), nil).Detect()
			require.Len(t, findings.Found, 1)
			require.Equal(t, c.isOld, findings.Found[0].Old != nil)
			if c.isOld {
				require.Equal(t, &evidence.Data{Dir: "/var/lib/etcd", Ref: *findings.Found[0].Stored}, findings.Found[0].Old)
			}
		})
	}
}

// TestDataOfPod has a server in an ordinary pod whose arguments do not tell where its log is. The
// kernel does, so the log is not that of a stopped member.
func TestDataOfPod(t *testing.T) {
	const segment = "/0000000000000000-0000000000000000.wal"
	head := string(walHead(t))
	for name, c := range map[string]struct{ flag, logDir string }{
		"configuration file": {"--config-file=/d1/etcd.yml", "/d1/data/member/wal"},
		"another disk":       {"--data-dir=/d1/data", "/d2"},
	} {
		t.Run(name, func(t *testing.T) {
			root := hosttest.New(t, hosttest.Files{
				"/mnt/d1/etcd.yml": "data-dir: /d1/data\n", "/mnt/d1/data/member/snap/db": "x",
				"/mnt" + c.logDir + segment: head,
				"/proc/812/fd/8":            "-> /d1/data/member/snap/db", "/proc/812/fd/9": "-> " + c.logDir + segment,
			})
			hosttest.AddProcess(t, root, 812, hosttest.Process{
				Line: []string{"etcd", c.flag}, Root: "/mnt",
				Cgroup: "/kubepods/burstable/pod" + hosttest.PodUID + "/" + hosttest.ContainerID,
			})
			findings := detectWithSearch(t, root)
			require.Empty(t, findings.Data)
			require.Empty(t, findings.Found)
			hosttest.Remove(t, root, "/proc/812")
			require.Len(t, detectWithSearch(t, root).Data, 1)
		})
	}
}
