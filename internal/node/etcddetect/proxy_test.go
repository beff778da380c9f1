package etcddetect_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
)

// TestProxy has the v2 proxies of etcd 3.4 and 3.5 that older guides run on workers.
// A real one writes DIR/proxy/cluster, and no DIR/member.
func TestProxy(t *testing.T) {
	const dir, unitFile = "/var/lib/etcd-proxy", "/etc/systemd/system/etcd.service"
	proxy := hosttest.Files{dir + "/proxy/cluster": `{"PeerURLs":["http://192.0.2.12:2380"]}`}
	inUnit, env := "/system.slice/etcd.service", map[string]string{"ETCD_PROXY": "on", "ETCD_DATA_DIR": dir}
	for name, c := range map[string]struct {
		host     hosttest.Files
		process  hosttest.Process
		isMember bool
	}{
		"variable": {proxy, hosttest.Process{Line: []string{"/usr/bin/etcd"}, Env: env, Cgroup: inUnit}, false},
		"flag": {proxy, hosttest.Process{
			Line: []string{"/usr/bin/etcd", "--proxy", "on", "--data-dir", dir}, Cgroup: inUnit,
		}, false},
		"configuration file": {hosttest.Files{
			dir + "/proxy/cluster": "{}", "/etc/etcd.yml": "proxy: 'on'\ndata-dir: " + dir,
		}, hosttest.Process{Line: []string{"etcd", "--config-file=/etc/etcd.yml"}, Cgroup: inUnit}, false},
		"fallback of discovery": {proxy, hosttest.Process{
			Line: []string{"etcd", "--data-dir=" + dir, "--discovery=https://192.0.2.1/x"},
		}, false},
		"container": {proxy, hosttest.Process{
			Line: []string{"etcd", "--data-dir=" + dir}, Cgroup: "/docker/" + hosttest.ContainerID,
		}, false},
		"default directory": {hosttest.Files{"/srv/default.etcd/proxy/cluster": "{}"}, hosttest.Process{
			Line: []string{"etcd", "--proxy=on"}, WorkDir: "/srv", Cgroup: inUnit,
		}, false},
		"member in spite of the flag": {hosttest.Files{dir + member: "x"}, hosttest.Process{
			Line: []string{"etcd", "--proxy=on", "--data-dir=" + dir},
		}, true},
		"both directories": {hosttest.Files{dir + member: "x", dir + "/proxy/cluster": "{}"}, hosttest.Process{
			Line: []string{"etcd", "--data-dir=" + dir},
		}, true},
		"neither directory yet": {nil, hosttest.Process{Line: []string{"etcd", "--data-dir=" + dir}}, true},
		"unreadable directory of a member": {hosttest.Files{
			dir + "/member": hosttest.Loop, dir + "/proxy/cluster": "{}",
		}, hosttest.Process{Line: []string{"etcd", "--data-dir=" + dir}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			root := hosttest.New(t, c.host)
			hosttest.Add(t, root, hosttest.Files{unitFile: service("ExecStart=/usr/bin/etcd")})
			hosttest.AddProcess(t, root, 812, c.process)
			findings := detect(t, root)
			if c.isMember {
				require.Len(t, findings.Found, 1)
				return
			}
			require.Empty(t, findings.Found)
			require.Contains(t, findings.Notes[len(findings.Notes)-1], "is a v2 proxy and no member")
			if c.process.Cgroup == inUnit {
				require.Empty(t, findings.Unknown, "the unit's files do not set the data directory, but its proxy runs")
			}
		})
	}
	t.Run("stopped", func(t *testing.T) {
		root := hosttest.New(t, proxy)
		hosttest.Add(t, root, hosttest.Files{unitFile: service("ExecStart=/usr/bin/etcd --proxy=on --data-dir=" + dir)})
		findings := detect(t, root)
		require.Empty(t, findings.Found)
		require.Empty(t, findings.Unknown)
	})
}
