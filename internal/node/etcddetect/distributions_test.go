package etcddetect_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/testenv/fakehost"
	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
	"github.com/holdfast-dev/holdfast/internal/testenv/pki"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// TestDistributions lays out every host of testdata/hosts, with its processes and then
// without, with the data of a member. cmd/agent starts the servers of the same hosts and
// probes them.
func TestDistributions(t *testing.T) {
	layouts := fakehost.Layouts(t)
	require.Greater(t, len(layouts), 20)
	ca, err := pki.NewCA("etcd-ca")
	require.NoError(t, err)
	parts := fakehost.Parts{CA: ca, Hosts: []string{"192.0.2.11"}, Member: t.TempDir(), Addresses: strings.NewReplacer()}
	hosttest.Add(t, parts.Member, hosttest.Files{member: "x"})
	for name, layout := range layouts {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			layout.LayOut(t, root, parts)
			layout.ShowProcesses(t, root, parts.Addresses)
			findings := detect(t, root)
			require.Empty(t, findings.Unknown)
			require.Equal(t, layout.Running, describeServers(t, layout, root, findings.Found, layout.Running), "running")
			for _, found := range findings.Found {
				require.NotZero(t, found.PID)
				require.Equal(t, wantedDistribution(name), found.Distribution)
			}
			require.Len(t, findings.Notes, len(layout.Notes), "%q", findings.Notes)
			for i, note := range layout.Notes {
				require.Contains(t, findings.Notes[i], note)
			}

			layout.HideProcesses(t, root)
			findings = detect(t, root)
			require.Empty(t, findings.Unknown)
			require.Equal(t, layout.Stopped, describeServers(t, layout, root, findings.Found, layout.Stopped), "stopped")
			for _, found := range findings.Found {
				require.Zero(t, found.PID)
			}
		})
	}
}

// wantedDistribution returns the distribution of the servers of a layout.
func wantedDistribution(layout string) v1alpha1.Distribution {
	for _, d := range []v1alpha1.Distribution{
		v1alpha1.DistributionK0s, v1alpha1.DistributionK3s, v1alpha1.DistributionKubespray, v1alpha1.DistributionRKE2,
	} {
		if strings.HasPrefix(layout, string(d)) {
			return d
		}
	}
	if layout == "kubeadm-stacked" {
		return v1alpha1.DistributionKubeadm
	}
	return ""
}

// describeServers describes servers as a layout does. Where is set if the layout sets it, and
// always for a server without a unit.
func describeServers(
	t *testing.T, l fakehost.Layout, root string, found []evidence.FoundServer, wanted []fakehost.ExpectedServer,
) []fakehost.ExpectedServer {
	t.Helper()
	path := func(at string) string {
		if at == "" {
			return ""
		}
		_, err := os.Stat(at)
		require.NoError(t, err, "the path can be opened")
		return l.HostPath(root, at)
	}
	var all []fakehost.ExpectedServer
	for i, s := range found {
		require.Empty(t, s.Problems)
		require.True(t, *s.HasData)
		require.FileExists(t, filepath.Join(s.Config.DataDir, "member/snap/db"))
		got := fakehost.ExpectedServer{
			Source: string(s.Source), Where: s.Where, Unit: s.Unit, InCluster: s.InCluster,
			Name: s.Config.Name, DataDir: path(s.Config.DataDir), File: path(s.Config.File),
			Listen: s.Config.ListenClientURLs, Advertise: s.Config.AdvertiseClientURLs, Peer: s.Config.InitialPeerURLs,
		}
		if i < len(wanted) && wanted[i].Where == "" && s.Unit != "" {
			require.Equal(t, "systemd unit "+s.Unit, s.Where)
			got.Where = ""
		}
		for _, c := range s.Credentials {
			require.FileExists(t, c.Key)
			credential := fakehost.ExpectedCredential{Origin: c.Origin, CA: path(c.CA), Cert: path(c.Cert)}
			got.Credentials = append(got.Credentials, credential)
		}
		all = append(all, got)
	}
	return all
}

// TestDistributionOfEnvironmentFile has hosts with /etc/etcd.env, whose form others took over from
// kubespray.
func TestDistributionOfEnvironmentFile(t *testing.T) {
	const env = "# Environment file for etcd v3.5.6\nETCD_DATA_DIR=/var/lib/etcd\nETCD_NAME=etcd1\nETCD_PROXY=off\n"
	for name, c := range map[string]struct {
		files hosttest.Files
		want  v1alpha1.Distribution
	}{
		"kubespray":       {hosttest.Files{"/etc/etcd.env": env + "ETCD_PEER_CLIENT_CERT_AUTH=True\n"}, "kubespray"},
		"KubeKey":         {hosttest.Files{"/etc/etcd.env": env + "ETCD_PEER_CLIENT_CERT_AUTH=true\n"}, ""},
		"Kuboard's guide": {hosttest.Files{"/etc/etcd.env": env + "ETCD_INITIAL_CLUSTER_TOKEN=kuboard\n"}, ""},
		"by hand":         {hosttest.Files{"/etc/etcd.env": "ETCD_DATA_DIR=/var/lib/etcd\n"}, ""},
		"kubespray with events": {hosttest.Files{
			"/etc/etcd.env": env,
			"/etc/systemd/system/etcd-events.service": service("ExecStart=/usr/local/bin/etcd-events"),
		}, "kubespray"},
		"another file, the same": {hosttest.Files{"/etc/default/etcd": env + "ETCD_PEER_CLIENT_CERT_AUTH=True\n"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			root := hosttest.New(t, c.files)
			file := "/etc/etcd.env"
			if _, isThere := c.files[file]; !isThere {
				file = "/etc/default/etcd"
			}
			hosttest.Add(t, root, hosttest.Files{
				"/etc/systemd/system/etcd.service": service("EnvironmentFile="+file, "ExecStart=/usr/local/bin/etcd"),
				"/var/lib/etcd" + member:           "x",
			})
			found := detect(t, root).Found
			require.Len(t, found, 1)
			require.Equal(t, c.want, found[0].Distribution)
		})
	}
}
