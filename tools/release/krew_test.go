package release_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/testenv/process"
)

// TestKrew installs the plugin with the real krew, by the manifest and an archive of a release, and
// finds it in an index: a git repository with the manifest in plugins/.
func TestKrew(t *testing.T) {
	root, err := process.RepositoryRoot()
	require.NoError(t, err)
	base := t.TempDir()
	s := release{dir: filepath.Join(base, "release"), env: []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + base, "KREW_ROOT=" + filepath.Join(base, "krew"),
		"VERSION=" + version(t), "SOURCE_DATE_EPOCH=1000000000",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org",
	}}
	require.NoError(t, os.MkdirAll(s.dir, 0o700))
	archive := func(platform string) string { return filepath.Join(s.dir, "kubectl-holdfast_"+platform+".tar.gz") }
	for _, platform := range []string{"linux_amd64", "linux_arm64", "darwin_amd64", "darwin_arm64"} {
		dir := t.TempDir()
		script := []byte("#!/bin/sh\necho the plugin for " + platform + "\n")
		require.NoError(t, os.WriteFile(filepath.Join(dir, "kubectl-holdfast"), script, 0o700)) //nolint:gosec // a program
		s.run(t, "tools/release/archive", archive(platform), "-C", dir, "kubectl-holdfast", "-C", root, "LICENSE")
	}
	index := filepath.Join(base, "index")
	manifest := filepath.Join(index, "plugins", "holdfast.yaml")
	require.NoError(t, os.MkdirAll(filepath.Dir(manifest), 0o700))
	require.NoError(t, os.WriteFile(manifest, []byte(s.run(t, "tools/release/krew", s.dir)), 0o600))

	platform := runtime.GOOS + "_" + runtime.GOARCH
	s.run(t, "krew", "install", "--manifest", manifest, "--archive", archive(platform))
	out, err := exec.CommandContext(t.Context(), filepath.Join(base, "krew", "bin", "kubectl-holdfast")).Output()
	require.NoError(t, err)
	require.Equal(t, "the plugin for "+platform+"\n", string(out))
	requireLicense(t, filepath.Join(base, "krew", "store", "holdfast", version(t), "LICENSE"))

	command := exec.CommandContext(t.Context(), "sh", "-ec", "git init -q; git add .; git commit -q -m index")
	command.Dir, command.Env = index, s.env
	require.NoError(t, command.Run())
	s.run(t, "krew", "index", "add", "own", "file://"+index)
	require.Contains(t, s.run(t, "krew", "info", "own/holdfast"), "VERSION: "+version(t))
}
