package etcddetect

import (
	"io/fs"
	"os"
	"path"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// recentLog is the age up to which a log counts as recent. The agents publish the list with a new
// member within seconds after it was added.
const recentLog = 10 * time.Minute

// addData adds the data that the search of the local disks found, and that no server has. The lists
// of a cluster decide whether it is that of a member (presence.Assess).
func (s *hostScan) addData() {
	if s.search == nil {
		return
	}
	result, isPending := s.search.Latest()
	s.isSearching, s.containerDirs = isPending, result.ContainerDirs
	if result.Incomplete != "" {
		s.addUnknown("the search of the local disks for data of etcd: %s", result.Incomplete)
	}
	for _, logDir := range result.LogDirs {
		s.addLog(logDir)
	}
}

// addLog adds the data with this log. A log without the IDs of a member is that of another program
// unless it is in a data directory of etcd.
func (s *hostScan) addLog(logDir string) {
	dir, isInside := logDir, path.Base(logDir) == "wal" && path.Base(path.Dir(logDir)) == "member"
	if isInside {
		dir = path.Dir(path.Dir(logDir))
	}
	info, err := s.root.Stat(logDir)
	if hostfs.IsAbsent(err) || s.isInUse(dir, info) {
		return
	}
	newest, ref, err := readLog(s.root, logDir)
	switch {
	case err != nil && !hostfs.IsAbsent(err):
		s.addUnknown("the log of etcd %s: %v", logDir, hostfs.Reason(err))
	case ref == nil && isInside:
		s.addUnknown("the data directory %s: its log does not tell whose data it is; move the directory away "+
			"if its data is not needed", dir)
	case ref == nil:
	case slices.ContainsFunc(s.found, func(f detectedServer) bool { return f.Stored != nil && *f.Stored == *ref }):
		s.addNote("%s has a copy of the data of member %s", dir, ref.Member)
	default:
		s.data = append(s.data, evidence.Data{Dir: dir, Ref: *ref, Recent: isRecent(newest)})
	}
}

// isRecent reports whether a segment of a log was written within the last ten minutes, or is not
// known.
func isRecent(segment fs.FileInfo) bool {
	return segment == nil || time.Since(segment.ModTime()) < recentLog
}

// isInUse reports whether a server has this data directory, or this log. logInfo is nil if the log
// cannot be read.
func (s *hostScan) isInUse(dir string, logInfo fs.FileInfo) bool {
	info, err := s.root.Stat(dir)
	isSame := func(a, b fs.FileInfo) bool { return a != nil && b != nil && os.SameFile(a, b) }
	if err != nil {
		info = nil
	}
	return slices.ContainsFunc(s.found, func(f detectedServer) bool {
		return isSame(f.dirInfo, info) || isSame(f.logInfo, logInfo)
	}) || slices.ContainsFunc(s.pods, func(p podServer) bool {
		return isSame(p.dirInfo, info) || isSame(p.logInfo, logInfo)
	})
}
