package etcddetect

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/internal/testenv/etcd"
	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// walHead is the beginning of a segment that etcd 3.6 wrote.
func walHead(t *testing.T) []byte {
	t.Helper()
	member := etcd.New(t, etcd.Options{}).Member(1)
	segment, err := os.Open(filepath.Join(member.DataDir(), "member/wal/0000000000000000-0000000000000000.wal"))
	require.NoError(t, err)
	defer func() { _ = segment.Close() }() // nothing was written
	head := make([]byte, maxWALHead)
	_, err = io.ReadFull(segment, head)
	require.NoError(t, err)
	return head
}

func TestStoredMember(t *testing.T) {
	const (
		dir   = "/var/lib/etcd"
		first = dir + "/member/wal/0000000000000000-0000000000000000.wal"
		next  = dir + "/member/wal/0000000000000001-00000000000000ff.wal"
	)
	head := string(walHead(t))
	damaged := []byte(head)
	damaged[8+8+8+6] ^= 1 // in the metadata record
	want := parseWALHead([]byte(head))
	require.NotNil(t, want)
	unit := "[Service]\nExecStart=/usr/bin/etcd --data-dir=" + dir
	for name, c := range map[string]struct {
		files hosttest.Files
		want  *evidence.MemberRef
	}{
		"unit":              {hosttest.Files{"/etc/systemd/system/etcd.service": unit, first: head}, want},
		"directory":         {hosttest.Files{first: head}, want},
		"newest segment":    {hosttest.Files{first: "x", next: head, dir + "/member/wal/1.tmp": "x"}, want},
		"damaged":           {hosttest.Files{first: string(damaged)}, nil},
		"cut off":           {hosttest.Files{first: head[:30]}, nil},
		"no log":            {hosttest.Files{dir + "/member/snap/db": "x"}, nil},
		"log is a loop":     {hosttest.Files{dir + "/member/snap/db": "x", dir + "/member/wal": hosttest.Loop}, nil},
		"another directory": {hosttest.Files{"/etc/systemd/system/etcd.service": unit + " --wal-dir=/wal", first: head}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			findings := New(hostfs.Root(hosttest.New(t, c.files)), nil).Detect()
			require.Len(t, findings.Found, 1, findings)
			require.Equal(t, c.want, findings.Found[0].Stored)
		})
	}
}

func FuzzWALHead(f *testing.F) {
	checksum, metadata := []byte{8, walChecksum, 16, 0}, []byte{8, walMetadata, 16, 0, 26, 4, 8, 1, 16, 2}
	f.Add(slices.Concat([]byte{4, 0, 0, 0, 0, 0, 0, 0x84}, checksum, make([]byte, 4),
		[]byte{10, 0, 0, 0, 0, 0, 0, 0x86}, metadata, make([]byte, 6)))
	f.Fuzz(func(t *testing.T, head []byte) {
		if ref := parseWALHead(head); ref != nil {
			require.NotEmpty(t, ref.Cluster)
			require.NotEmpty(t, ref.Member)
		}
	})
}
