package etcddetect

import (
	"encoding/binary"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/node/datasearch"
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
	problem := s.mountProblem(dir)
	switch {
	case hostfs.IsAbsent(err) && problem != nil:
		s.addUnknown("the data directory %s: %v", dir, problem)
		return
	case hostfs.IsAbsent(err), s.isInUse(dir, info):
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
	info, _ := s.root.Stat(dir)
	return slices.ContainsFunc(slices.Concat(s.found, s.pods), func(f detectedServer) bool {
		return f.hasDir(info) || os.SameFile(f.logInfo, logInfo)
	})
}

// A segment of etcd's write-ahead log begins with a checksum record and a metadata record, which
// contains the IDs of the server and of its cluster (etcd, server/storage/wal/wal.go, Create and
// cut). They never change: a server that joins again begins a new log.
const (
	walMetadata = 1 // walpb.Record.Type
	walChecksum = 4
	// maxWALHead is the size of the part that is read. Both records are shorter than 64 bytes.
	maxWALHead = 512
)

// readLog returns the newest segment of a log, and the member whose log it is. Both are nil with an
// error, and the member is if the log is damaged.
func readLog(files hostfs.Root, dir string) (newest fs.FileInfo, ref *evidence.MemberRef, err error) {
	names, err := files.ReadNames(dir, datasearch.IsLogFile)
	if err != nil || len(names) == 0 {
		return nil, nil, err
	}
	segment, err := files.Open(path.Join(dir, names[len(names)-1])) // The digits have a fixed length.
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = segment.Close() }() // nothing was written
	info, err := segment.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil, nil, err // a pod can put a pipe there, and a read of it would not end
	}
	head, err := io.ReadAll(io.LimitReader(segment, maxWALHead))
	if err != nil {
		return nil, nil, err
	}
	return info, parseWALHead(head), nil
}

// parseWALHead returns the member in the metadata record at the beginning of a segment, or nil if
// the segment is damaged.
func parseWALHead(head []byte) *evidence.MemberRef {
	checksum, rest := parseWALRecord(head)
	metadata, _ := parseWALRecord(rest)
	sum := crc32.Update(uint32(checksum[2].number), crc32.MakeTable(crc32.Castagnoli), metadata[3].text)
	fields := parseFields(metadata[3].text) // etcdserverpb.Metadata
	node, cluster := fields[1].number, fields[2].number
	isWhole := checksum[1].number == walChecksum && metadata[1].number == walMetadata && metadata[2].number == uint64(sum)
	if !isWhole || node == 0 || cluster == 0 {
		return nil
	}
	return &evidence.MemberRef{
		Cluster: v1alpha1.ClusterID(strconv.FormatUint(cluster, 16)), Member: v1alpha1.MemberID(strconv.FormatUint(node, 16)),
	}
}

// parseWALRecord returns the fields of the first record, and the bytes after it, or nothing if it
// is cut off. A record is a walpb.Record with its type, checksum and data. It follows its length,
// whose highest byte contains the number of bytes of padding (wal/encoder.go, encodeFrameSize).
func parseWALRecord(text []byte) (fields map[protowire.Number]field, rest []byte) {
	if len(text) < 8 {
		return nil, nil
	}
	frame, text := binary.LittleEndian.Uint64(text), text[8:]
	length, padding := frame&(1<<56-1), frame>>56&7
	if length+padding > uint64(len(text)) {
		return nil, nil
	}
	return parseFields(text[:length]), text[length+padding:]
}

// A field is the value of a field of a message.
type field struct {
	number uint64
	text   []byte
}

// parseFields returns the fields of a message that has numbers and texts only, or nil.
func parseFields(message []byte) map[protowire.Number]field {
	fields := map[protowire.Number]field{}
	for len(message) > 0 {
		id, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil
		}
		message = message[n:]
		var f field
		switch kind {
		case protowire.VarintType:
			f.number, n = protowire.ConsumeVarint(message)
		case protowire.BytesType:
			f.text, n = protowire.ConsumeBytes(message)
		default:
			return nil
		}
		if n < 0 {
			return nil
		}
		message, fields[id] = message[n:], f
	}
	return fields
}
