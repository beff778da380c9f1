package etcd_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/testenv/etcd"
	"github.com/holdfast-dev/holdfast/internal/testenv/process"
)

func TestVersions(t *testing.T) {
	t.Setenv(etcd.VersionVariable, "v3.3")
	_, err := etcd.Start(t.Context(), etcd.Options{Dir: t.TempDir()})
	require.EqualError(t, err, `HOLDFAST_ETCD is "v3.3", want one of [v3.4 v3.5 v3.6 v3.7]`)
	m := etcd.NewPlain(t).Member(1) // the etcd of a kube-apiserver does not depend on the variable
	require.Equal(t, etcd.V37, m.Version())
	agreed, err := m.ClusterVersion(t.Context())
	require.NoError(t, err)
	require.Equal(t, etcd.V37, agreed)

	t.Setenv(etcd.VersionVariable, "")
	v, err := etcd.SelectedVersion()
	require.NoError(t, err)
	require.Equal(t, etcd.V37, v)

	t.Setenv(process.ServersVariable, t.TempDir())
	_, err = etcd.Version("v3.3").Binary()
	require.EqualError(t, err, `finding etcd v3.3: there is no bin/etcd-v3.3/etcd; run "make bin/etcd-v3.3/etcd"`)
}
