package smallfile_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/smallfile"
)

func TestRead(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, os.WriteFile(in("small"), []byte("content"), 0o600))
	require.NoError(t, os.WriteFile(in("full"), make([]byte, smallfile.Max), 0o600))
	require.NoError(t, os.WriteFile(in("large"), nil, 0o600))
	require.NoError(t, os.Truncate(in("large"), 400<<20)) // sparse
	require.NoError(t, syscall.Mkfifo(in("pipe"), 0o600))

	content, err := smallfile.Read(in("small"))
	require.NoError(t, err)
	require.Equal(t, "content", string(content))
	content, err = smallfile.Read(in("full"))
	require.NoError(t, err)
	require.Len(t, content, smallfile.Max)
	_, err = smallfile.Read(in("absent"))
	require.ErrorIs(t, err, fs.ErrNotExist)

	for name, tc := range map[string]struct{ path, want string }{
		"a directory":          {dir, "not a regular file"},
		"a pipe nobody writes": {in("pipe"), "not a regular file"},
		"a device":             {"/dev/zero", "not a regular file"},
		"a large file":         {in("large"), "larger than a mebibyte"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := smallfile.Read(tc.path)
			require.ErrorContains(t, err, tc.want)
			require.ErrorContains(t, err, tc.path)
		})
	}
}
