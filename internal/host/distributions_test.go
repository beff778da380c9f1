package host_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// TestEveryDistribution lays out every host of testdata/hosts, once with its processes and once without, with the data of
// a member that a real etcd has left. cmd/agent starts the servers of the same hosts and asks them who they are.
func TestEveryDistribution(t *testing.T) {
	layouts, err := testenv.HostLayouts()
	require.NoError(t, err)
	require.Greater(t, len(layouts), 20)
	ca, err := testenv.NewCA("etcd-ca")
	require.NoError(t, err)
	etcd := testenv.NewEtcd(t, testenv.EtcdOptions{})
	member := etcd.Member(1)
	require.NoError(t, member.Stop(t.Context()))
	parts := testenv.HostParts{CA: ca, Hosts: []string{"192.0.2.11"}, Member: member.DataDir(), Addresses: strings.NewReplacer()}
	for name, layout := range layouts {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			require.NoError(t, layout.LayOut(root, parts))
			require.NoError(t, layout.ShowProcesses(root, parts.Addresses))
			look := at(t, root).Look(t.Context())
			require.Empty(t, look.Unknown)
			require.Equal(t, layout.Running, shownBy(t, layout, root, look.Found, layout.Running), "while it runs")
			for _, found := range look.Found {
				require.NotZero(t, found.PID)
			}
			require.Len(t, look.Notes, 1+len(layout.Notes), "that systemd was not asked, and no more than the layout has: %q", look.Notes)
			for i, note := range layout.Notes {
				require.Contains(t, look.Notes[1+i], note)
			}

			require.NoError(t, layout.HideProcesses(root))
			look = at(t, root).Look(t.Context())
			require.Empty(t, look.Unknown)
			require.Equal(t, layout.Stopped, shownBy(t, layout, root, look.Found, layout.Stopped), "while it is stopped")
			for _, found := range look.Found {
				require.Zero(t, found.PID)
			}
		})
	}
}

func TestAnAliasIsTheSameUnit(t *testing.T) {
	root := layOut(t, files{
		"/lib/systemd/system/etcd.service":       "[Service]\nEnvironment=ETCD_DATA_DIR=/wrong\nEnvironmentFile=-/etc/default/%p\nExecStart=/usr/bin/etcd\n",
		"/lib/systemd/system/etcd@.service":      "[Service]\nExecStart=/usr/bin/etcd --data-dir=/srv/%i\n",
		"/etc/systemd/system/etcd2.service":      "-> /lib/systemd/system/etcd.service",
		"/etc/systemd/system/etcd@blue.service":  "-> /lib/systemd/system/etcd@.service",
		"/etc/default/etcd":                      "ETCD_DATA_DIR=/srv/etcd\n",
		"/srv/etcd/member/snap/db":               "x",
		"/srv/blue/member/snap/db":               "x",
		"/wrong/member/snap/db":                  "the alias has no settings of its own name",
		"/etc/systemd/system/etcd-green.service": "-> /nowhere/etcd-green.service",
	})
	found, unknown := at(t, root).Etcd(t.Context())
	require.Empty(t, unknown)
	var units []string
	for _, s := range found {
		units = append(units, s.Unit)
	}
	require.Equal(t, []string{"etcd.service", "etcd@blue.service"}, units, "an instance is a unit of its own")
}

// shownBy puts what was found in the words of a layout. A place is told if the layout tells one there, and always for a
// server that has no unit.
func shownBy(t *testing.T, l testenv.HostLayout, root string, found []protect.Sighting, wanted []testenv.HostSighting) []testenv.HostSighting {
	t.Helper()
	path := func(at string) string {
		if at == "" {
			return ""
		}
		_, err := os.Stat(at)
		require.NoError(t, err, "the path can be opened")
		return l.HostPath(root, at)
	}
	var all []testenv.HostSighting
	for i, s := range found {
		require.Empty(t, s.Problems)
		require.True(t, *s.HasData, "a real member's data")
		require.FileExists(t, filepath.Join(s.Config.DataDir, "member/snap/db"))
		shown := testenv.HostSighting{
			Source: string(s.Source), Where: s.Where, Unit: s.Unit, InCluster: s.InCluster,
			Name: s.Config.Name, DataDir: path(s.Config.DataDir), File: path(s.Config.File),
			Listen: s.Config.ListenClientURLs, Advertise: s.Config.AdvertiseClientURLs, Peer: s.Config.InitialPeerURLs,
		}
		if i < len(wanted) && wanted[i].Where == "" && s.Unit != "" {
			require.Equal(t, "systemd unit "+s.Unit, s.Where)
			shown.Where = ""
		}
		for _, c := range s.Credentials {
			require.FileExists(t, c.Key)
			shown.Credentials = append(shown.Credentials, testenv.HostCredential{Origin: c.Origin, CA: path(c.CA), Cert: path(c.Cert)})
		}
		all = append(all, shown)
	}
	return all
}
