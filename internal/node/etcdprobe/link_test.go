package etcdprobe

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/internal/testenv/pki"
)

// TestLinkOfTheHost: the host, or the creator of a container, replaces a directory of the
// credential by a link after the scan. The link leads to a file of the agent, and nowhere below
// the host's root.
func TestLinkOfTheHost(t *testing.T) {
	for name, below := range map[string]string{"host": "/", "container": "/proc/812/root"} {
		t.Run(name, func(t *testing.T) {
			root := hostfs.Root(t.TempDir())
			dir := filepath.Join(string(root), below, "certs")
			require.NoError(t, os.MkdirAll(dir, 0o700))
			issued := credentialDir{t: t, path: dir, ca: filepath.Join(dir, "ca.pem")}
			ca := newCA(t, "ca")
			require.NoError(t, os.WriteFile(issued.ca, ca.PEM(), 0o600))
			e := endpoint{url: "https://10.0.0.1:2379", credential: issued.issue("client", ca, pki.CertOptions{CommonName: "c"})}
			_, err := loadCredential(root, e, loadedCredential{})
			require.NoError(t, err)

			own := t.TempDir()
			require.NoError(t, os.Rename(dir, filepath.Join(own, "certs")))
			require.NoError(t, os.Symlink(filepath.Join(own, "certs"), dir))
			_, err = loadCredential(root, e, loadedCredential{})
			require.ErrorIs(t, err, os.ErrNotExist)
			// The link leads to a file below the same root.
			require.NoError(t, os.MkdirAll(filepath.Join(string(root), below, own), 0o700))
			require.NoError(t, os.Rename(filepath.Join(own, "certs"), filepath.Join(string(root), below, own, "certs")))
			_, err = loadCredential(root, e, loadedCredential{})
			require.NoError(t, err)
		})
	}
}
