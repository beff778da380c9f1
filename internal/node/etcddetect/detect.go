// Package etcddetect finds the etcd servers of a host in its processes, systemd units, static
// pods and data directories.
//
// It observes and never decides. A place that cannot be read is reported as unknown, with the
// reason, and never as empty. It does not connect to etcd: package etcdprobe identifies
// members.
//
// The steps of a scan are in detect.go. A server that runs comes from process.go (which
// processes), running.go (its description, and ordinary pods, which do not count) and owner.go (its
// cgroups). One that does not run comes from stopped.go, by what the units, static pods
// and services of starter.go mention in their texts, which texts.go reads. data.go reads the member
// in a data directory, and adds the data that a search of the local disks found; starter.go adds
// what may start a server on it. command.go tells servers from tools. layout.go contains what
// distributions do, settings.go the settings of etcd, credential.go its certificates, and
// watchlist.go what to watch.
//
// A path is one of three kinds. The server's path is valid in the root directory of its process or
// container, and the settings name it. The host's path is valid in the host's root directory: the
// paths of unit files, of layouts and of the watchlist. The agent's path begins with --host-root or
// with /proc/PID/root, and the agent can open it. The evidence contains the agent's paths.
package etcddetect

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/holdfast-dev/holdfast/internal/node/datasearch"
	"github.com/holdfast-dev/holdfast/internal/node/systemd"
	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// A Detector finds the etcd servers of one host.
type Detector struct {
	root hostfs.Root
	// credential is the operator's, or nil.
	credential *evidence.Credential
	// search finds data on the local disks, or is nil.
	search    *datasearch.Search
	watchlist *watchlist
}

// New returns a detector for the host below root. The credential, if any, is tried before all
// others; its paths are the host's.
func New(root hostfs.Root, credential *evidence.Credential) *Detector {
	return &Detector{root: root, credential: credential, watchlist: &watchlist{}}
}

// UseSearch adds the data that a search of the same host finds to the findings.
func (d *Detector) UseSearch(search *datasearch.Search) { d.search = search }

// Detect scans the host for etcd servers, running and stopped. It queries none of them.
func (d *Detector) Detect() evidence.Scan {
	s := d.newScan()
	s.addUnits()
	s.addStaticPods()
	s.addServices()
	slices.SortStableFunc(s.starters, func(a, b *starter) int { return cmp.Compare(a.rank(), b.rank()) })
	s.addProcesses()
	s.addStopped()
	s.addDataDirs()
	s.addData()
	s.addOpaque()
	s.notePods()
	d.watchlist.update(s)
	slices.Sort(s.unknown)
	scan := evidence.Scan{
		Data: s.data, Unknown: slices.Compact(s.unknown), Searching: s.isSearching, Notes: s.notes,
	}
	for _, found := range s.found {
		found.Distribution = s.distributionOf(found)
		scan.Found = append(scan.Found, evidence.FoundServer{Server: found.Server})
	}
	return scan
}

// A hostScan is a scan in progress. One server can be visible as a unit, a manifest, a process and
// a data directory. A later step of Detect adds to the server that an earlier one found.
type hostScan struct {
	*Detector
	// foreignMount and missingMount return the directory that a path leads to, or "": one with a
	// file system that texts must not lead to, or one on which the host has not mounted what it is
	// to mount.
	foreignMount, missingMount func(hostPath string) string

	starters []*starter
	found    []detectedServer
	data     []evidence.Data
	// containerDirs are those that the search of the local disks found.
	containerDirs []string
	// isSearching is set while the first search of the local disks has not ended.
	isSearching bool
	// pods are servers in ordinary pods, which are not part of the host.
	pods           []detectedServer
	unknown, notes []string
}

func (d *Detector) newScan() *hostScan {
	mounts := datasearch.ReadMounts(d.root)
	s := &hostScan{
		Detector: d, foreignMount: mounts.Foreign, missingMount: mounts.Missing(systemd.MountPoints(d.root)),
	}
	if mounts.Err != nil {
		s.addUnknown("the mounts of the host: %v", hostfs.Reason(mounts.Err))
	}
	return s
}

// mountProblem returns an error if a path is on a file system that is not mounted.
func (s *hostScan) mountProblem(name string) error {
	if dir := s.missingMount(name); dir != "" {
		return fmt.Errorf("nothing is mounted on %s", dir)
	}
	return nil
}

func (s *hostScan) addUnknown(format string, args ...any) {
	s.unknown = append(s.unknown, fmt.Sprintf(format, args...))
}

func (s *hostScan) addNote(format string, args ...any) {
	s.notes = append(s.notes, fmt.Sprintf(format, args...))
}

// A detectedServer is an etcd server with its data directory, which identifies it: etcd locks the
// directory, so that no two servers share one.
type detectedServer struct {
	evidence.Server
	// dirInfo is nil if the directory does not exist or cannot be read.
	dirInfo fs.FileInfo
	// logInfo is that of the directory of its log, if it is in another directory.
	logInfo fs.FileInfo
	// serverDataDir is the server's path for its data directory, or the host's if only a unit is
	// known. Config.DataDir is the agent's path for it, as soon as that is known.
	serverDataDir string
	// isRecent is set if the log was written within the last ten minutes, or cannot be read.
	isRecent bool
	// cgroups are those of its process, as in etcdProcess.
	cgroups string
	// isProxy is set for a v2 proxy of etcd 3.4 or 3.5, which is no member.
	isProxy bool
}

func (f *detectedServer) setUnit(name string) {
	f.Source, f.Unit, f.Where = evidence.SystemdUnit, name, "systemd unit "+name
}

// hasDir reports whether a directory is the data directory of the server.
func (f *detectedServer) hasDir(info fs.FileInfo) bool { return os.SameFile(f.dirInfo, info) }

// setOld sets the old data of a stopped server. Its files name no other place for its data.
func (f *detectedServer) setOld() {
	if f.Stored != nil && !f.isRecent {
		f.Old = &evidence.Data{Dir: f.serverDataDir, Ref: *f.Stored}
	}
}

// addDataDir adds what inspectDataDir finds, or its error as a problem.
func (f *detectedServer) addDataDir(files hostfs.Root, find pathFinder) {
	if f.Config.DataDir == "" {
		return
	}
	if err := f.inspectDataDir(files, find); err != nil {
		f.Problems = append(f.Problems, fmt.Sprintf("the data directory %s: %v", f.serverDataDir, hostfs.Reason(err)))
	}
}

// inspectDataDir checks the data directory for a member, and replaces its path by the
// agent's.
func (f *detectedServer) inspectDataDir(files hostfs.Root, find pathFinder) error {
	serverPath := f.Config.DataDir
	f.serverDataDir = serverPath
	if agentPath, err := find(serverPath); err == nil {
		f.Config.DataDir = agentPath
	}
	var err error
	if f.dirInfo, err = files.Stat(serverPath); err != nil && !hostfs.IsAbsent(err) {
		return err
	}
	has, err := hasMember(files, serverPath)
	if err != nil {
		return err
	}
	f.HasData = &has
	f.isProxy = isProxyDir(files, serverPath)
	f.readLog(files, serverPath)
	return nil
}

// readLog reads the member from the log of the data directory, or from that in another directory.
// An error leaves it unknown.
func (f *detectedServer) readLog(files hostfs.Root, dataDir string) {
	logDir := path.Join(dataDir, "member/wal")
	if f.Config.WALDir != "" {
		logDir = f.Config.WALDir
		f.logInfo, _ = files.Stat(logDir)
	}
	newest, stored, _ := readLog(files, logDir)
	f.Stored, f.isRecent = stored, isRecent(newest)
}

// isProxyDir reports whether a data directory is that of a v2 proxy. The directory decides whatever
// the settings are: with member/ in it etcd is a member, with proxy/ it is a proxy (etcd 3.5
// server/etcdmain/etcd.go, identifyDataDirOrDie).
func isProxyDir(files hostfs.Root, dir string) bool {
	_, notMember := files.Stat(filepath.Join(dir, "member"))
	_, err := files.Stat(filepath.Join(dir, "proxy"))
	return hostfs.IsAbsent(notMember) && err == nil
}

// hasMember reports whether a data directory contains a member. k0s and k3s check the same
// two paths.
func hasMember(files hostfs.Root, dir string) (bool, error) {
	for _, path := range []string{"member/snap/db", "member/wal"} {
		_, err := files.Stat(filepath.Join(dir, path))
		if err == nil {
			return true, nil
		}
		if !hostfs.IsAbsent(err) {
			return false, err
		}
	}
	return false, nil
}
