package nodenet_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

const (
	confDir = "/etc/cni/net.d/"
	// script is the smallest complete program.
	script     = "#!/bin/sh\n"
	flannelCNI = `{"name":"cbr0","cniVersion":"0.3.1","plugins":[` +
		`{"type":"flannel","delegate":{"hairpinMode":true}},{"type":"portmap"}]}`
)

// confs returns CNI configurations by pairs of name and content.
func confs(pairs ...string) hosttest.Files {
	files := hosttest.Files{}
	for i := 0; i < len(pairs); i += 2 {
		files[confDir+pairs[i]] = pairs[i+1]
	}
	return files
}

// pluginList returns a list of plugins.
func pluginList(plugins ...string) string {
	return `{"name":"net","cniVersion":"1.1.0","plugins":[` + strings.Join(plugins, ",") + `]}`
}

// kubeRouter returns the configuration of kube-router's DaemonSet.
func kubeRouter(ipam string) string {
	return pluginList(`{"name":"kubernetes","type":"bridge","bridge":"kube-bridge","ipam":` + ipam + `}`)
}

func TestConflist(t *testing.T) {
	const k3s = "/var/lib/rancher/k3s/agent/etc/cni/net.d/"
	flannel := []string{"flannel<", "portmap<", "bridge<flannel", "host-local<flannel", "loopback<flannel"}
	bridge := pluginList(`{"type":"bridge"}`)
	for name, c := range map[string]struct {
		host hosttest.Files
		// path is the configuration, skipped are others, below confDir unless they are
		// absolute.
		path, skipped string
		plugins       []string
		problem       string
		isUnread      bool
	}{
		"no directory":     {},
		"no configuration": {host: confs("README", "x", "10.conflist.d/a", "x", "5.conf/a", "x")},
		"flannel": {
			host: confs("10-flannel.conflist", flannelCNI, "99-loopback.conf", `{"type":"loopback"}`),
			path: "10-flannel.conflist", skipped: "99-loopback.conf", plugins: flannel,
		},
		"flannel with a delegate": {
			host: confs("1.conflist", pluginList(`{"type":"flannel","delegate":{"type":"ipvlan","ipam":{"type":"dhcp"}}}`)),
			path: "1.conflist", plugins: []string{"flannel<", "ipvlan<flannel", "dhcp<flannel", "loopback<flannel"},
		},
		"delegates of delegates": {
			host: confs("00-multus.conf", strings.Repeat(`{"name":"m","type":"multus","delegates":[`, 50)+
				`{"type":"ptp"}`+strings.Repeat("]}", 50)),
			path: "00-multus.conf", plugins: []string{"multus<", "ptp<multus"},
		},
		"Azure with addresses from a service": {
			host: confs("15-azure-swift-overlay.conflist", pluginList(
				`{"type":"azure-vnet","mode":"transparent","ipam":{"type":"azure-cns","mode":"overlay"}}`, `{"type":"portmap"}`)),
			path: "15-azure-swift-overlay.conflist", plugins: []string{"azure-vnet<", "portmap<"},
		},
		"Azure with addresses from a program": {
			host: confs("10-azure.conflist", pluginList(
				`{"type":"azure-vnet","mode":"transparent","ipam":{"type":"azure-vnet-ipam"}}`, `{"type":"portmap"}`)),
			path: "10-azure.conflist", plugins: []string{"azure-vnet<", "portmap<", "azure-vnet-ipam<azure-vnet"},
		},
		"plugins in a directory": {
			host: confs("1.conflist", pluginList(`{"type":"ptp"}`), "net/10.conf", `{"type":"tuning"}`),
			path: "1.conflist", plugins: []string{"ptp<", "tuning<"},
		},
		"Multus with delegates": {
			host: confs("00-multus.conf", `{"name":"m","type":"multus","delegates":[{"name":"cbr0","plugins":[`+
				`{"type":"flannel"},{"type":"portmap"}]},{"type":"macvlan","ipam":{"type":"whereabouts"}}]}`),
			path: "00-multus.conf", plugins: []string{
				"multus<", "flannel<multus", "portmap<multus", "macvlan<multus",
				"bridge<flannel", "host-local<flannel", "loopback<flannel", "whereabouts<macvlan",
			},
		},
		"Multus with flannel's file": {
			host: confs("00-multus.conf", `{"name":"m","type":"multus","clusterNetwork":"/etc/cni/net.d/10-flannel.conflist"}`,
				"10-flannel.conflist", flannelCNI, "20-other.conf", `{"name":"o","type":"ptp"}`, "30-broken.conf", "{"),
			path: "00-multus.conf", plugins: []string{
				"multus<", "flannel<10-flannel.conflist", "portmap<10-flannel.conflist",
				"bridge<flannel", "host-local<flannel", "loopback<flannel",
			},
		},
		"flannel#2063: flannel's file left behind Calico": {
			host: confs("10-calico.conflist", pluginList(`{"type":"calico","ipam":{"type":"calico-ipam"}}`),
				"10-flannel.conflist", flannelCNI),
			path: "10-calico.conflist", plugins: []string{"calico<", "calico-ipam<calico"},
		},
		"flannel#2063: old form of the file behind Cilium": {
			host: confs("05-cilium.conflist", pluginList(`{"type":"cilium-cni"}`),
				"10-flannel.conf", `{"name":"cbr0","type":"flannel","delegate":{"isDefaultGateway":true}}`),
			path: "05-cilium.conflist", plugins: []string{"cilium-cni<"},
		},
		"flannel's file left behind Multus with Calico inline": {
			host: confs("00-multus.conf", `{"name":"m","type":"multus","delegates":[{"type":"calico"}]}`,
				"10-flannel.conflist", flannelCNI),
			path: "00-multus.conf", plugins: []string{"multus<", "calico<multus"},
		},
		"CNI-Genie with flannel's file": {
			host: confs("00-genie.conf", `{"name":"g","type":"genie"}`, "10-flannel.conflist", flannelCNI),
			path: "00-genie.conf", plugins: []string{
				"genie<", "flannel<10-flannel.conflist", "portmap<10-flannel.conflist",
				"bridge<flannel", "host-local<flannel", "loopback<flannel",
			},
		},
		"packaged configurations": {
			host: confs("87-podman-bridge.conflist", bridge, "99-loopback.conf", `{"type":"loopback"}`,
				"100-crio-bridge.conflist", bridge, "200-loopback.conflist", `{"name":"lo"}`),
			skipped: "100-crio-bridge.conflist 200-loopback.conflist 87-podman-bridge.conflist 99-loopback.conf",
		},
		"flannel behind a packaged configuration": {
			host: confs("100-crio-bridge.conflist", bridge, "11-flannel.conflist", pluginList(`{"type":"flannel"}`)),
			path: "11-flannel.conflist", skipped: "100-crio-bridge.conflist",
			plugins: []string{"flannel<", "bridge<flannel", "host-local<flannel", "loopback<flannel"},
		},
		"CRI-O and nerdctl": {
			host: confs("11-crio-ipv4-bridge.conflist", "{", "10-crio-bridge.conf", "{", "nerdctl-bridge.conflist", "{",
				"nerdctl-x.conflist", "{"),
			skipped: "10-crio-bridge.conf 11-crio-ipv4-bridge.conflist nerdctl-bridge.conflist nerdctl-x.conflist",
		},
		"half-written": {
			host: confs("10-flannel.conflist", flannelCNI[:40], "20-bridge.conflist", bridge),
			path: "10-flannel.conflist", problem: "parsing " + confDir + "10-flannel.conflist",
		},
		"empty":     {host: confs("1.conflist", ""), path: "1.conflist", problem: "unexpected end"},
		"no plugin": {host: confs("1.conflist", `{"name":"x"}`), path: "1.conflist", problem: "names no plugin"},
		"unreadable": {
			host: confs("1.conflist", hosttest.Loop), path: "1.conflist", problem: "too many levels", isUnread: true,
		},
		"unreadable directory": {
			host: hosttest.Files{"/etc/cni/net.d": hosttest.Loop}, problem: "too many levels", isUnread: true,
		},
		"single plugin": {
			host: confs("87-podman.json", `{"name":"x","type":"bridge","ipam":{"type":"host-local","subnet":"10.1.0.0/24"}}`),
			path: "87-podman.json", plugins: []string{"bridge<", "host-local<bridge"},
		},
		"kube-router's file before kube-router runs": {
			host: confs("10-kuberouter.conflist", kubeRouter(`{"type":"host-local"}`)),
			path: "10-kuberouter.conflist", plugins: []string{"bridge<", "host-local<bridge"},
			problem: confDir + "10-kuberouter.conflist has a bridge without a subnet",
		},
		"host-local refuses the subnet": {
			host: confs("1.conflist", kubeRouter(`{"type":"host-local","subnet":4}`)),
			path: "1.conflist", plugins: []string{"bridge<", "host-local<bridge"}, problem: "without a subnet",
		},
		"kube-router with its subnet": {
			host: confs("10-kuberouter.conflist", kubeRouter(`{"type":"host-local","subnet":"10.1.0.0/24"}`)),
			path: "10-kuberouter.conflist", plugins: []string{"bridge<", "host-local<bridge"},
		},
		"the runtime adds the subnet": {
			host: confs("1.conflist", kubeRouter(`{"type":"host-local"},"capabilities":{"ipRanges":true}`)),
			path: "1.conflist", plugins: []string{"bridge<", "host-local<bridge"},
		},
		"k3s": {
			host: hosttest.Files{
				k3s + "10-flannel.conflist": pluginList(`{"type":"bandwidth"}`), confDir + "87-podman-bridge.conflist": "{",
			},
			path: k3s + "10-flannel.conflist", skipped: "87-podman-bridge.conflist", plugins: []string{"bandwidth<"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := observe(t, hosttest.New(t, c.host)).Conflist
			presence := readiness.Present
			switch {
			case c.isUnread:
				presence = readiness.Unknown
			case c.path == "":
				presence = readiness.Absent
			}
			require.Equal(t, presence, got.Presence)
			require.Equal(t, c.path, strings.TrimPrefix(got.Path, confDir))
			require.Equal(t, c.skipped, strings.ReplaceAll(strings.Join(got.Ignored, " "), confDir, ""))
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

// TestNamedNetwork has Multus with a network that another file configures, as in multus-cni#302 and
// in its configuration reference.
func TestNamedNetwork(t *testing.T) {
	const multusDir, runDir = "/etc/cni/multus/net.d/", "/run/multus/cni/net.d/"
	multus := func(fields string) string { return `{"name":"m","type":"multus",` + fields + `}` }
	for name, c := range map[string]struct {
		// conf is the configuration of Multus, others are further files of the host.
		conf    string
		others  hosttest.Files
		plugins string
		problem string
	}{
		"multus-cni#302: file elsewhere": {
			multus(`"confDir":"/etc/cni/multus/net.d","clusterNetwork":"/etc/cni/multus/net.d/10-flannel.conflist"`),
			hosttest.Files{multusDir + "10-flannel.conflist": flannelCNI},
			"flannel portmap bridge host-local loopback", "",
		},
		"the same, not written yet": {
			multus(`"clusterNetwork":"/etc/cni/multus/net.d/10-flannel.conflist"`), nil, "", "clusterNetwork /etc/cni/multus",
		},
		"daemon with the host below /host": {
			`{"name":"m","type":"multus-shim","clusterNetwork":"/host/run/multus/cni/net.d/10-flannel.conflist"}`,
			hosttest.Files{runDir + "10-flannel.conflist": flannelCNI},
			"flannel portmap bridge host-local loopback", "",
		},
		"the same, not written yet, with flannel's file in the usual place": {
			`{"name":"m","type":"multus-shim","clusterNetwork":"/host/run/multus/cni/net.d/10-flannel.conflist"}`,
			hosttest.Files{confDir + "10-flannel.conflist": flannelCNI},
			"flannel portmap bridge host-local loopback",
			"no such file",
		},
		"directory": {
			multus(`"clusterNetwork":"/etc/cni/multus/net.d"`),
			hosttest.Files{multusDir + "README": "x", multusDir + "2.conf": "{", multusDir +
				"1.conflist": pluginList(`{"type":"ptp"}`)},
			"ptp", "",
		},
		"empty directory": {
			multus(`"clusterNetwork":"/etc/cni/multus/net.d/"`),
			hosttest.Files{multusDir + "README": "x"},
			"",
			"the directory has no configuration",
		},
		"name": {
			multus(`"confDir":"/srv/nets","clusterNetwork":"cbr0"`),
			hosttest.Files{"/srv/nets/1.conf": "{", "/srv/nets/2.conflist": flannelCNI},
			"flannel portmap bridge host-local loopback", "",
		},
		"name beside Multus": {
			multus(`"clusterNetwork":"net"`), hosttest.Files{confDir + "10.conflist": pluginList(`{"type":"ptp"}`)}, "ptp", "",
		},
		"name of no file": {multus(`"clusterNetwork":"net"`), nil, "", "no file has a network of this name"},
		"delegates beside it are not used": {
			multus(`"clusterNetwork":"net","delegates":[{"type":"macvlan"}]`),
			hosttest.Files{multusDir + "1.conflist": pluginList(`{"type":"ptp"}`)},
			"ptp", "",
		},
		"default networks": {
			multus(`"clusterNetwork":"net","defaultNetworks":["/etc/cni/multus/net.d/2.conf","of-the-API-server"]`),
			hosttest.Files{
				multusDir + "1.conflist": pluginList(`{"type":"ptp"}`), multusDir + "2.conf": `{"name":"x","type":"macvlan"}`,
			},
			"ptp macvlan", "",
		},
		"default network not written yet": {
			multus(`"clusterNetwork":"net","defaultNetworks":["/etc/cni/multus/net.d/2.conf"]`),
			hosttest.Files{multusDir + "1.conflist": pluginList(`{"type":"ptp"}`)},
			"ptp", "defaultNetworks /etc/cni/multus",
		},
		"half-written": {
			multus(`"clusterNetwork":"/etc/cni/multus/net.d/1.conflist"`),
			hosttest.Files{multusDir + "1.conflist": flannelCNI[:40]},
			"", "unexpected end",
		},
		"unreadable directory": {
			multus(`"clusterNetwork":"net"`), hosttest.Files{"/etc/cni/multus/net.d": hosttest.Loop}, "", "too many levels",
		},
		"names itself": {multus(`"clusterNetwork":"/etc/cni/net.d/00-multus.conf"`), nil, "", "name each other"},
		"another Multus that names the first": {
			multus(`"clusterNetwork":"/etc/cni/multus/net.d/1.conf"`),
			hosttest.Files{multusDir + "1.conf": multus(`"clusterNetwork":"/etc/cni/net.d/00-multus.conf"`)},
			"", "name each other",
		},
		"indicator file": {
			multus(`"readinessindicatorfile":"/host/run/ready","delegates":[{"type":"ptp"}]`),
			hosttest.Files{"/run/ready": ""},
			"ptp", "",
		},
		"OpenShift: indicator file not written yet": {
			multus(`"readinessindicatorfile":"/var/run/multus/cni/net.d/80-openshift-network.conf",` +
				`"delegates":[{"type":"ptp"}]`),
			nil, "ptp", "readinessindicatorfile /var/run/multus",
		},
		"another plugin with such a field": {
			`{"name":"x","type":"x","clusterNetwork":{"a":"b"}}`, nil, "", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := hosttest.New(t, confs("00-multus.conf", c.conf))
			hosttest.Add(t, root, c.others)
			got := observe(t, root).Conflist
			var plugins []string
			for _, p := range got.Plugins[1:] {
				plugins = append(plugins, p.Type)
			}
			require.Equal(t, c.plugins, strings.Join(plugins, " "))
			require.Equal(t, readiness.Present, got.Presence)
			require.Equal(t, c.problem == "", got.Problem == "", got.Problem)
			require.Contains(t, got.Problem, c.problem)
		})
	}
}

// Plugins are looked up as the runtime does.
func TestFindPlugin(t *testing.T) {
	const bridge, k3sData = "/opt/cni/bin/bridge", "/var/lib/rancher/k3s/data/"
	complete, absent := readiness.Present, readiness.Absent
	file := func(content string) hosttest.Files { return hosttest.Files{bridge: content} }
	for name, c := range map[string]struct {
		host       hosttest.Files
		executable readiness.Presence
		problem    string
	}{
		"none":            {executable: absent},
		"first directory": {host: file(script), executable: complete},
		"second directory": {
			host: hosttest.Files{
				"/usr/lib/cni/bin/x": "", "/usr/lib/cni/bridge": "-> bin/x2", "/usr/lib/cni/bin/x2": script,
			}, executable: complete,
		},
		"k3s": {
			host:       hosttest.Files{k3sData + "0a/bin/bridge": script, k3sData + "cni/bridge": "-> ../0a/bin/bridge"},
			executable: complete,
		},
		"older k3s": {
			host: hosttest.Files{k3sData + "0a/bin/bridge": script, k3sData + "current": "-> 0a"}, executable: complete,
		},
		"GKE":            {host: hosttest.Files{"/home/kubernetes/bin/bridge": script}, executable: complete},
		"empty":          {host: file(""), executable: absent, problem: "is empty"},
		"one byte":       {host: file("x"), executable: absent, problem: "neither an ELF program nor a script"},
		"ELF header":     {host: file("\x7fELF\x02"), executable: absent, problem: bridge + " is not a complete ELF program"},
		"directory":      {host: hosttest.Files{bridge + "/a": "x"}, executable: absent, problem: "not executable"},
		"not executable": {host: file("-> " + confDir + "1.conflist"), executable: absent, problem: "not executable"},
		"unreadable": {
			host: hosttest.Files{"/opt/cni/bin": hosttest.Loop}, executable: readiness.Unknown, problem: "too many levels",
		},
		"unreadable first directory": {
			host: hosttest.Files{
				"/opt/cni/bin": hosttest.Loop, "/usr/libexec/cni/bin/b": script, "/usr/libexec/cni/bridge": "-> bin/b",
			}, executable: complete,
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := hosttest.New(t, confs("1.conflist", pluginList(`{"type":"bridge"}`)))
			hosttest.Add(t, root, c.host)
			plugins := observe(t, root).Conflist.Plugins
			require.Len(t, plugins, 1)
			require.Equal(t, c.executable, plugins[0].Executable)
			require.Contains(t, plugins[0].Problem, c.problem)
		})
	}
}

func TestBridgeSubnets(t *testing.T) {
	bridge := func(ipam string) string { return `{"name":"b","type":"bridge","ipam":{` + ipam + `}}` }
	multus := func(delegates string) string { return `{"name":"m","type":"multus","delegates":[` + delegates + `]}` }
	oneRange := bridge(`"type":"host-local","subnet":"10.1.0.0/24"`)
	for name, c := range map[string]struct {
		file, conf string
		// other is the content of 1.conf.
		other    string
		subnets  []string
		borrowed bool
	}{
		"containerd's sample": {
			file: "10-containerd-net.conflist", borrowed: true, subnets: []string{"10.88.0.0/16", "2001:db8:4860::/64"},
			conf: pluginList(bridge(`"type":"host-local","ranges":[[{"subnet":"10.88.0.0/16"}],`+
				`[{"subnet":"2001:db8:4860::/64"}]]`), `{"type":"portmap"}`),
		},
		"one range":     {conf: oneRange, subnets: []string{"10.1.0.0/24"}},
		"behind Multus": {conf: multus(`{"plugins":[` + oneRange + `]}`), subnets: []string{"10.1.0.0/24"}},
		"named by Multus": {
			file: "00-multus.conf",
			conf: `{"name":"m","type":"multus","clusterNetwork":"/etc/cni/net.d/1.conf"}`, other: oneRange,
			subnets: []string{"10.1.0.0/24"},
		},
		"after Calico": {conf: multus(`{"type":"calico"},` + oneRange)},
		"kindnet": {
			file: "10-kindnet.conflist",
			conf: pluginList(strings.Replace(oneRange, "bridge", "ptp", 1), `{"type":"portmap"}`),
		},
		"flannel":         {file: "10-flannel.conflist", conf: flannelCNI},
		"other addresses": {conf: bridge(`"type":"dhcp","subnet":"10.1.0.0/24"`)},
	} {
		t.Run(name, func(t *testing.T) {
			if c.file == "" {
				c.file = "1.conf"
			}
			root := hosttest.New(t, confs(c.file, c.conf))
			if c.other != "" {
				hosttest.Add(t, root, confs("1.conf", c.other))
			}
			got := observe(t, root).Conflist
			require.Empty(t, got.Problem)
			require.Equal(t, c.subnets, got.BridgeSubnets)
			require.Equal(t, c.borrowed, got.AmbiguousName)
		})
	}
}

// TestPackagedBridgeDoesNotRelease has a node with a container runtime and without flannel.
func TestPackagedBridgeDoesNotRelease(t *testing.T) {
	node := &corev1.Node{Spec: corev1.NodeSpec{Unschedulable: true, PodCIDRs: []string{"10.244.3.0/24"}}}
	node.Annotations = map[string]string{
		"holdfast.dev/hold": `{"state":"held","bootID":"` + hosttest.BootID + `",` +
			`"since":"2026-11-20T12:00:00Z","reason":"NewNode"}`,
	}
	isHeld := func(name, subnet string) bool {
		conf := pluginList(`{"type":"bridge","ipam":{"type":"host-local","ranges":[[{"subnet":"` + subnet + `"}]]}}`)
		root := hosttest.New(t, confs(name, conf))
		hosttest.Add(t, root, hosttest.Files{"/opt/cni/bin/bridge": script, "/opt/cni/bin/host-local": script})
		return readiness.Decide(node, observe(t, root), readiness.Policy{}, time.Now()).Held
	}
	own := []string{"10-containerd-net.conflist", "10-mine.conflist"}
	packaged := []string{"11-crio-ipv4-bridge.conflist", "nerdctl-bridge.conflist", "100-crio-bridge.conflist"}
	for _, name := range append(packaged, own...) {
		require.True(t, isHeld(name, "10.85.0.0/16"), name)
	}
	for _, name := range own {
		require.False(t, isHeld(name, "10.244.3.0/24"), name)
	}
}
