package etcdprobe

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/internal/testenv/etcd"
)

// TestAccess observes a real member, and names the host's files by the host's paths.
func TestAccess(t *testing.T) {
	t.Parallel()
	member := etcd.New(t, etcd.Options{TLS: true}).Member(1)
	root := hostfs.Root(filepath.Dir(filepath.Dir(member.Files.CA)))
	p := New(Options{HostRoot: root})
	t.Cleanup(p.Close)
	server := foundServer(member)
	server.Distribution = v1alpha1.DistributionKubespray
	o := p.Observe(t.Context(), server, p.Identify(t.Context(), server))
	require.Equal(t, &v1alpha1.Access{
		Distribution: v1alpha1.DistributionKubespray, Endpoint: member.ClientURL,
		CACert: root.HostPath(member.Files.CA), Cert: root.HostPath(member.Files.AdminCert),
		Key: root.HostPath(member.Files.AdminKey),
	}, o.Access)
	require.NotEqual(t, member.Files.CA, o.Access.CACert, "a path of the host")
}
