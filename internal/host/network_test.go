package host_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/host"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

const (
	goodSubnet = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
	// script is the least that is a program.
	script     = "#!/bin/sh\n"
	flannelCNI = `{"name":"cbr0","cniVersion":"0.3.1","plugins":[{"type":"flannel","delegate":{"hairpinMode":true}},{"type":"portmap"}]}`
)

func TestSubnetFile(t *testing.T) {
	const path = "/run/flannel/subnet.env"
	for name, c := range map[string]struct {
		host     files
		presence readiness.Presence
		problem  string
	}{
		"none":             {presence: readiness.Absent},
		"no directory":     {host: files{"/run/flannel": "a file"}, presence: readiness.Absent},
		"whole":            {host: files{path: goodSubnet}, presence: readiness.Present},
		"empty":            {host: files{path: ""}, presence: readiness.Present, problem: "half-written"},
		"cut in a line":    {host: files{path: "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUB"}, presence: readiness.Present, problem: "missing ="},
		"cut at a line":    {host: files{path: "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\n"}, presence: readiness.Present, problem: "half-written"},
		"cut in a word":    {host: files{path: strings.TrimSuffix(goodSubnet, "e\n")}, presence: readiness.Present, problem: "half-written"},
		"no subnet":        {host: files{path: "FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"}, presence: readiness.Present, problem: "FLANNEL_SUBNET"},
		"not a subnet":     {host: files{path: strings.Replace(goodSubnet, "/24", "", 1)}, presence: readiness.Present, problem: "not a subnet"},
		"no MTU":           {host: files{path: strings.Replace(goodSubnet, "1450", "0", 1)}, presence: readiness.Present, problem: "FLANNEL_MTU"},
		"a link to itself": {host: files{path: loop}, problem: "too many levels"},
		"a directory":      {host: files{path + "/a": ""}, problem: "not a regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			got := at(t, layOut(t, c.host)).Network(t.Context()).Subnet
			require.Equal(t, path, got.Path)
			require.Equal(t, c.presence, got.Presence)
			if c.problem == "" {
				require.Empty(t, got.Problem)
				return
			}
			require.Contains(t, got.Problem, c.problem)
		})
	}
}

func TestSubnetFileIsReadWhole(t *testing.T) {
	root := layOut(t, files{"/run/flannel/subnet.env": goodSubnet})
	facts := at(t, root).Network(t.Context())
	require.Equal(t, bootID, facts.BootID)
	require.Equal(t, readiness.SubnetFile{
		Path: "/run/flannel/subnet.env", Presence: readiness.Present, Volatile: facts.Subnet.Volatile,
		Network: "10.244.0.0/16", Subnet: "10.244.1.1/24", MTU: "1450",
	}, facts.Subnet)
	require.NotEqual(t, readiness.Unknown, facts.Subnet.Volatile)
}

func TestVolatileIsMemory(t *testing.T) {
	memory, err := os.MkdirTemp("/dev/shm", "holdfast")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(memory)) })
	add(t, memory, files{"/run/flannel/subnet.env": goodSubnet})
	require.Equal(t, readiness.Present, at(t, memory).Network(t.Context()).Subnet.Volatile)

	h, err := host.New(host.Options{Root: "/", SubnetFile: filepath.Join(repository(t), "go.mod")})
	require.NoError(t, err)
	require.Equal(t, readiness.Absent, h.Network(t.Context()).Subnet.Volatile)
}

// repository is a directory on a disk.
func repository(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	require.NoError(t, err)
	return dir
}

func TestNothingBlocks(t *testing.T) {
	root := layOut(t, files{"/run/flannel/a": "", "/etc/cni/net.d/a": "", "/run/holdfast/a": ""})
	for _, pipe := range []string{"run/flannel/subnet.env", "etc/cni/net.d/10.conflist", "run/holdfast/network_plugin.done"} {
		require.NoError(t, syscall.Mkfifo(filepath.Join(root, pipe), 0o644))
	}
	facts := at(t, root).Network(t.Context())
	require.Contains(t, facts.Subnet.Problem, "not a regular file")
	require.Contains(t, facts.Conflist.Problem, "not a regular file")
	require.Contains(t, facts.Marker.Problem, "not a regular file")
}

func TestConflist(t *testing.T) {
	const dir, k3s = "/etc/cni/net.d/", "/var/lib/rancher/k3s/agent/etc/cni/net.d/"
	for name, c := range map[string]struct {
		host     files
		presence readiness.Presence
		path     string
		plugins  []string
		passed   []string
		problem  string
	}{
		"no directory":     {presence: readiness.Absent},
		"no configuration": {host: files{dir + "README": "x", dir + "10.conflist.d/a": "x", dir + "5.conf/a": "x"}, presence: readiness.Absent},
		"flannel": {
			host:     files{dir + "10-flannel.conflist": flannelCNI, dir + "99-loopback.conf": `{"type":"loopback"}`},
			presence: readiness.Present, path: dir + "10-flannel.conflist", passed: []string{dir + "99-loopback.conf"},
			plugins: []string{"flannel<", "portmap<", "bridge<flannel", "host-local<flannel", "loopback<flannel"},
		},
		"flannel with a delegate of its own": {
			host:     files{dir + "1.conflist": `{"name":"x","plugins":[{"type":"flannel","delegate":{"type":"ipvlan","ipam":{"type":"dhcp"}}}]}`},
			presence: readiness.Present, path: dir + "1.conflist",
			plugins: []string{"flannel<", "ipvlan<flannel", "dhcp<flannel", "loopback<flannel"},
		},
		"another, in a single file": {
			host:     files{dir + "87-podman.json": `{"name":"x","type":"bridge","ipam":{"type":"host-local"}}`},
			presence: readiness.Present, path: dir + "87-podman.json",
			plugins: []string{"bridge<", "host-local<bridge"},
		},
		"Azure's, whose addresses come from a service": {
			host: files{dir + "15-azure-swift-overlay.conflist": `{"name":"azure","cniVersion":"0.3.0","plugins":[` +
				`{"type":"azure-vnet","mode":"transparent","ipam":{"type":"azure-cns","mode":"overlay"}},{"type":"portmap"}]}`},
			presence: readiness.Present, path: dir + "15-azure-swift-overlay.conflist", plugins: []string{"azure-vnet<", "portmap<"},
		},
		"Azure's older one, whose addresses come from a program": {
			host: files{dir + "10-azure.conflist": `{"name":"azure","cniVersion":"0.3.0","plugins":[` +
				`{"type":"azure-vnet","mode":"transparent","ipam":{"type":"azure-vnet-ipam"}},{"type":"portmap"}]}`},
			presence: readiness.Present, path: dir + "10-azure.conflist", plugins: []string{"azure-vnet<", "portmap<", "azure-vnet-ipam<azure-vnet"},
		},
		"plugins beside the list": {
			host: files{
				dir + "1.conflist":  `{"name":"net","cniVersion":"1.1.0","plugins":[{"type":"ptp"}]}`,
				dir + "net/10.conf": `{"type":"tuning"}`,
			},
			presence: readiness.Present, path: dir + "1.conflist", plugins: []string{"ptp<", "tuning<"},
		},
		"Multus before flannel": {
			host: files{
				dir + "00-multus.conf": `{"name":"m","type":"multus","delegates":[{"name":"cbr0","plugins":[{"type":"flannel"},{"type":"portmap"}]},` +
					`{"type":"macvlan","ipam":{"type":"whereabouts"}}]}`,
			},
			presence: readiness.Present, path: dir + "00-multus.conf",
			plugins: []string{
				"multus<", "flannel<multus", "portmap<multus", "macvlan<multus", "bridge<flannel", "host-local<flannel", "loopback<flannel",
				"whereabouts<macvlan",
			},
		},
		"Multus that names flannel's file": {
			host: files{
				dir + "00-multus.conf":      `{"name":"m","type":"multus","clusterNetwork":"/etc/cni/net.d/10-flannel.conflist"}`,
				dir + "10-flannel.conflist": flannelCNI, dir + "20-other.conf": `{"name":"o","type":"ptp"}`, dir + "30-broken.conf": "{",
			},
			presence: readiness.Present, path: dir + "00-multus.conf",
			plugins: []string{
				"multus<", "flannel<10-flannel.conflist", "portmap<10-flannel.conflist", "bridge<flannel", "host-local<flannel", "loopback<flannel",
			},
		},
		"delegates of an odd shape": {
			host:     files{dir + "00-x.conf": `{"name":"x","type":"x","delegates":"10-flannel"}`},
			presence: readiness.Present, path: dir + "00-x.conf", plugins: []string{"x<"},
		},
		"only what packages bring along": {
			host: files{
				dir + "87-podman-bridge.conflist": `{"name":"podman","plugins":[{"type":"bridge"}]}`, dir + "99-loopback.conf": `{"type":"loopback"}`,
				dir + "100-crio-bridge.conflist": `{"name":"crio","plugins":[{"type":"bridge"}]}`, dir + "200-loopback.conflist": `{"name":"lo"}`,
			},
			presence: readiness.Absent,
			passed: []string{
				dir + "100-crio-bridge.conflist", dir + "200-loopback.conflist", dir + "87-podman-bridge.conflist", dir + "99-loopback.conf",
			},
		},
		"flannel behind what packages bring along": {
			host: files{
				dir + "100-crio-bridge.conflist": `{"name":"crio","plugins":[{"type":"bridge"}]}`,
				dir + "11-flannel.conflist":      `{"name":"f","plugins":[{"type":"flannel"}]}`,
			},
			presence: readiness.Present, path: dir + "11-flannel.conflist", passed: []string{dir + "100-crio-bridge.conflist"},
			plugins: []string{"flannel<", "bridge<flannel", "host-local<flannel", "loopback<flannel"},
		},
		"CRI-O's and nerdctl's": {
			host:     files{dir + "11-crio-ipv4-bridge.conflist": "{", dir + "10-crio-bridge.conf": "{", dir + "nerdctl-bridge.conflist": "{", dir + "nerdctl-x.conflist": "{"},
			presence: readiness.Absent,
			passed:   []string{dir + "10-crio-bridge.conf", dir + "11-crio-ipv4-bridge.conflist", dir + "nerdctl-bridge.conflist", dir + "nerdctl-x.conflist"},
		},
		"k3s": {
			host:     files{k3s + "10-flannel.conflist": `{"name":"f","plugins":[{"type":"bandwidth"}]}`, dir + "87-podman-bridge.conflist": "{"},
			presence: readiness.Present, path: k3s + "10-flannel.conflist", passed: []string{dir + "87-podman-bridge.conflist"},
			plugins: []string{"bandwidth<"},
		},
		"half-written before another": {
			host:     files{dir + "10-flannel.conflist": flannelCNI[:40], dir + "20-bridge.conflist": `{"name":"x","plugins":[{"type":"bridge"}]}`},
			presence: readiness.Present, path: dir + "10-flannel.conflist", problem: "parsing " + dir + "10-flannel.conflist",
		},
		"empty":                {host: files{dir + "10.conflist": ""}, presence: readiness.Present, path: dir + "10.conflist", problem: "unexpected end"},
		"no plugin":            {host: files{dir + "10.conflist": `{"name":"x"}`}, presence: readiness.Present, path: dir + "10.conflist", problem: "names no plugin"},
		"unreadable":           {host: files{dir + "10.conflist": loop}, path: dir + "10.conflist", problem: "too many levels"},
		"no directory to list": {host: files{"/etc/cni/net.d": loop}, problem: "too many levels"},
	} {
		t.Run(name, func(t *testing.T) {
			got := at(t, layOut(t, c.host)).Network(t.Context()).Conflist
			require.Equal(t, c.presence, got.Presence)
			require.Equal(t, c.path, got.Path)
			require.Equal(t, c.passed, got.PassedOver)
			var plugins []string
			for _, p := range got.Plugins {
				plugins = append(plugins, p.Type+"<"+p.NeededBy)
			}
			require.Equal(t, c.plugins, plugins)
			if c.problem == "" {
				require.Empty(t, got.Problem)
				return
			}
			require.Contains(t, got.Problem, c.problem)
		})
	}
}

func TestPluginsAreLookedForAsTheRuntimeDoes(t *testing.T) {
	conf := files{"/etc/cni/net.d/1.conflist": `{"name":"x","plugins":[{"type":"bridge"}]}`}
	for name, c := range map[string]struct {
		host       files
		executable readiness.Presence
		problem    string
	}{
		"nowhere":                 {executable: readiness.Absent},
		"first directory":         {host: files{"/opt/cni/bin/bridge": script}, executable: readiness.Present},
		"second directory":        {host: files{"/usr/lib/cni/bin/x": "", "/usr/lib/cni/bridge": "-> bin/x2", "/usr/lib/cni/bin/x2": script}, executable: readiness.Present},
		"empty: being unpacked":   {host: files{"/opt/cni/bin/bridge": ""}, executable: readiness.Absent, problem: "is empty"},
		"one byte":                {host: files{"/opt/cni/bin/bridge": "x"}, executable: readiness.Absent, problem: "neither an ELF program nor a script"},
		"the beginning of ELF":    {host: files{"/opt/cni/bin/bridge": "\x7fELF\x02\x01\x01"}, executable: readiness.Absent, problem: "/opt/cni/bin/bridge is not a whole ELF program"},
		"zeros":                   {host: files{"/opt/cni/bin/bridge": strings.Repeat("\x00", 4096)}, executable: readiness.Absent, problem: "neither"},
		"a directory":             {host: files{"/opt/cni/bin/bridge/a": "x"}, executable: readiness.Absent, problem: "not executable"},
		"not executable":          {host: files{"/opt/cni/bin/bridge": "-> /etc/cni/net.d/1.conflist"}, executable: readiness.Absent, problem: "not executable"},
		"unreadable":              {host: files{"/opt/cni/bin": loop}, executable: readiness.Unknown, problem: "too many levels"},
		"k3s":                     {host: files{"/var/lib/rancher/k3s/data/0a/bin/bridge": script, "/var/lib/rancher/k3s/data/cni/bridge": "-> ../0a/bin/bridge"}, executable: readiness.Present},
		"an older k3s":            {host: files{"/var/lib/rancher/k3s/data/0a/bin/bridge": script, "/var/lib/rancher/k3s/data/current": "-> 0a"}, executable: readiness.Present},
		"GKE":                     {host: files{"/home/kubernetes/bin/bridge": script}, executable: readiness.Present},
		"unreadable, but further": {host: files{"/opt/cni/bin": loop, "/usr/libexec/cni/bin/b": script, "/usr/libexec/cni/bridge": "-> bin/b"}, executable: readiness.Present},
	} {
		t.Run(name, func(t *testing.T) {
			root := layOut(t, conf)
			add(t, root, c.host)
			plugins := at(t, root).Network(t.Context()).Conflist.Plugins
			require.Len(t, plugins, 1)
			require.Equal(t, c.executable, plugins[0].Executable)
			require.Contains(t, plugins[0].Problem, c.problem)
		})
	}
}

func TestMarker(t *testing.T) {
	const path = "/run/holdfast/network_plugin.done"
	marker := func(f files) readiness.Marker { return at(t, layOut(t, f)).Network(t.Context()).Marker }
	require.Equal(t, readiness.Marker{Path: path, Presence: readiness.Absent}, marker(nil))
	require.Equal(t, readiness.Marker{Path: path, Presence: readiness.Present, BootID: bootID}, marker(files{path: bootID + "\n"}))
	unread := marker(files{path: loop})
	require.Equal(t, readiness.Unknown, unread.Presence)
	require.Contains(t, unread.Problem, "too many levels")
}

func TestBootIDThatCannotBeReadIsEmpty(t *testing.T) {
	require.Empty(t, at(t, t.TempDir()).Network(t.Context()).BootID)
}

func TestRootThatIsNone(t *testing.T) {
	root := layOut(t, files{"/file": "x"})
	for _, dir := range []string{filepath.Join(root, "file"), filepath.Join(root, "nothing")} {
		_, err := host.New(host.Options{Root: dir})
		require.ErrorContains(t, err, "opening the host root")
	}
}
