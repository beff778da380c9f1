package nodenet

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"

	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// conflist returns the CNI configuration that the runtime uses: in the first directory that
// has one, the first file by name that ends in .conf, .conflist or .json.
//
// As in containerd (go-cni opts.go, loadFromConfDir), a file that does not parse is not
// skipped. It may be the right one, half written, before another package's bridge network.
// Configurations that such packages install are skipped: they are placeholders until the
// cluster's network arrives.
func (n Network) conflist() readiness.Conflist {
	list := readiness.Conflist{Directory: strings.Join(n.CNIConfDirs, ", ")}
	for _, dir := range n.CNIConfDirs {
		files, err := n.confFiles(dir)
		if err != nil {
			list.Problem = err.Error()
			return list
		}
		var paths []string
		for _, path := range files {
			if hostfs.MatchesAny(packagedConfs(), filepath.Base(path)) {
				list.Ignored = append(list.Ignored, path)
			} else {
				paths = append(paths, path)
			}
		}
		if len(paths) > 0 {
			list.Directory = dir
			n.readConflists(&list, paths)
			return list
		}
	}
	list.Presence = readiness.Absent
	return list
}

// packagedConfs returns patterns of configurations that packages install: those of podman,
// CRI-O (11-crio-ipv4-bridge and 100-crio-bridge), nerdctl, and of the loopback device alone.
func packagedConfs() []string {
	return []string{"87-podman*.conflist", "*crio*bridge*", "nerdctl-*", "*-loopback*"}
}

func isConfName(name string) bool {
	return slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(name))
}

// readConflists reads the first configuration, which the runtime uses, and the networks that a
// meta plugin in it names. If a meta plugin does not show its network, as CNI-Genie, the other
// files that name flannel are read too. Behind another plugin they are what an uninstalled
// flannel left (flannel#2063).
func (n Network) readConflists(list *readiness.Conflist, paths []string) {
	list.Path = paths[0]
	data, err := n.Root.ReadFile(list.Path)
	if err != nil {
		list.Problem = fmt.Sprintf("reading %s: %v", list.Path, hostfs.Reason(err))
		return
	}
	list.Presence = readiness.Present
	name, plugins, err := n.parseConflist(list.Path, data)
	if err != nil {
		list.Problem = fmt.Sprintf("parsing %s: %v", list.Path, err)
		return
	}
	reader := metaReader{Network: n, confDir: list.Directory, read: paths[:1:1]}
	called := reader.follow(plugins, "")
	if len(reader.problems) > 0 {
		list.Problem = fmt.Sprintf("%s refers to %s", list.Path, strings.Join(reader.problems, "; "))
	}
	subnets, isComplete := bridgeSubnets(called[0])
	list.Name, list.BridgeSubnets = name, subnets
	if !isComplete {
		list.Problem = cmp.Or(list.Problem, list.Path+" has a bridge without a subnet, which its network plugin adds")
	}
	// containerd's sample network has this name (script/setup/install-cni). containerd also writes the
	// cluster's own network under it if it has a template (update_runtime_config.go,
	// cniConfigFileName), as on GKE's nodes and with kubenet. So the name proves nothing, but a subnet
	// of this very node does.
	list.AmbiguousName = strings.HasPrefix(filepath.Base(list.Path), "10-containerd-net.")
	if leavesOpen(called) {
		called = append(called, reader.flannelFiles(paths[1:])...)
	}
	for _, p := range neededPlugins(flatten(called)) {
		p.Executable, p.Problem = n.findPlugin(p.Type)
		list.Plugins = append(list.Plugins, p)
	}
}

func (r *metaReader) flannelFiles(paths []string) []calledPlugin {
	var all []calledPlugin
	for _, path := range paths {
		_, plugins, err := r.readConflist(path)
		if err != nil {
			continue // the runtime does not read it either
		}
		called := r.follow(plugins, filepath.Base(path))
		isFlannel := func(p calledPlugin) bool { return p.Network.Type == "flannel" }
		if slices.ContainsFunc(flatten(called), isFlannel) {
			all = append(all, called...)
		}
	}
	return all
}

func (n Network) parseConflist(path string, data []byte) (string, []*libcni.PluginConfig, error) {
	if filepath.Ext(path) != ".conflist" {
		plugin, err := libcni.NetworkPluginConfFromBytes(data)
		if err != nil {
			return "", nil, err
		}
		return plugin.Network.Name, []*libcni.PluginConfig{plugin}, nil
	}
	list, err := libcni.NetworkConfFromBytes(data)
	if err != nil {
		return "", nil, err
	}
	plugins := list.Plugins
	if !list.LoadOnlyInlinedPlugins && list.Name != "" && filepath.Base(list.Name) == list.Name {
		more, err := n.readPluginDir(filepath.Join(filepath.Dir(path), list.Name))
		if err != nil {
			return "", nil, err
		}
		plugins = append(plugins, more...)
	}
	if len(plugins) == 0 {
		return "", nil, fmt.Errorf("it names no plugin")
	}
	return list.Name, plugins, nil
}

// readPluginDir reads the plugins that a list has in a directory of its own name (CNI 1.1).
func (n Network) readPluginDir(dir string) ([]*libcni.PluginConfig, error) {
	entries, err := n.Root.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var plugins []*libcni.PluginConfig
	for _, entry := range entries {
		file := filepath.Join(dir, entry.Name())
		if entry.IsDir() || filepath.Ext(file) != ".conf" {
			continue
		}
		data, err := n.Root.ReadFile(file)
		if err != nil {
			return nil, err
		}
		plugin, err := libcni.NetworkPluginConfFromBytes(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		plugins = append(plugins, plugin)
	}
	return plugins, nil
}

// neededPlugins returns the programs that the plugins need, each once: the plugins
// themselves, their delegates, their IPAM plugins, and the plugins that flannel calls by
// default (flannel cni-plugin flannel.go: delegate bridge, IPAM host-local). The runtime
// itself calls loopback for every pod.
func neededPlugins(plugins []calledPlugin) []readiness.Plugin {
	var all []readiness.Plugin
	add := func(name, neededBy string) {
		isKnown := slices.ContainsFunc(all, func(p readiness.Plugin) bool { return p.Type == name })
		if name != "" && !isKnown {
			all = append(all, readiness.Plugin{Type: name, NeededBy: neededBy})
		}
	}
	for _, p := range plugins {
		add(p.Network.Type, p.neededBy)
	}
	for _, p := range plugins {
		name := p.Network.Type
		if !isBuiltInIPAM(name, p.Network.IPAM.Type) {
			add(p.Network.IPAM.Type, name)
		}
		if name != "flannel" {
			continue
		}
		bridge, ipam := flannelDelegate(p.Bytes)
		add(bridge, name)
		add(ipam, name)
		add("loopback", name)
	}
	return all
}

// isBuiltInIPAM reports whether a plugin assigns addresses itself, so that the IPAM name is
// not the name of a program. azure-vnet of AKS requests addresses from a service on the node
// (azure-container-networking cni/network/network.go, invokers by ipam.type).
func isBuiltInIPAM(plugin, ipam string) bool { return plugin == "azure-vnet" && ipam == "azure-cns" }

// delegates returns the plugins that a meta plugin such as Multus calls itself (multus-cni
// pkg/types, NetConf: each delegate is a plugin or a list of plugins).
func delegates(conf []byte) []*libcni.PluginConfig {
	var outer struct {
		Delegates []json.RawMessage `json:"delegates"`
		Plugins   []json.RawMessage `json:"plugins"`
	}
	if json.Unmarshal(conf, &outer) != nil {
		return nil // its delegates have another form and cannot be named
	}
	var all []*libcni.PluginConfig
	for _, raw := range slices.Concat(outer.Delegates, outer.Plugins) {
		// A list has no type of its own.
		if plugin, err := libcni.NetworkPluginConfFromBytes(raw); err == nil {
			all = append(all, plugin)
		} else {
			all = append(all, delegates(raw)...)
		}
	}
	return all
}

// bridgeSubnets returns the subnets of a plain bridge with host-local addresses
// (plugins/ipam/host-local/backend/allocator, IPAMConfig: one range, or sets of ranges). The first
// callee of a meta plugin is the cluster's network. Without a subnet the bridge is incomplete, and
// no pod gets an address: kube-router installs such a file, and adds the podCIDR when it runs. With
// the capability ipRanges, the runtime adds one. For another plugin there are no subnets to know.
func bridgeSubnets(main calledPlugin) (subnets []string, isComplete bool) {
	for len(main.callees) > 0 {
		main = main.callees[0]
	}
	if main.Network.Type != "bridge" || main.Network.IPAM.Type != "host-local" {
		return nil, true
	}
	type subnet struct {
		Subnet string `json:"subnet"`
	}
	var conf struct {
		IPAM struct {
			subnet
			Ranges [][]subnet `json:"ranges"`
		} `json:"ipam"`
	}
	if json.Unmarshal(main.Bytes, &conf) != nil {
		return nil, false // host-local refuses it
	}
	for _, s := range append(slices.Concat(conf.IPAM.Ranges...), conf.IPAM.subnet) {
		if s.Subnet != "" {
			subnets = append(subnets, s.Subnet)
		}
	}
	return subnets, len(subnets) > 0 || main.Network.Capabilities["ipRanges"]
}

func flannelDelegate(conf []byte) (plugin, ipam string) {
	const bridge, hostLocal = "bridge", "host-local"
	type ipamConf struct {
		Type string `json:"type"`
	}
	var flannel struct {
		Delegate struct {
			Type string   `json:"type"`
			IPAM ipamConf `json:"ipam"`
		} `json:"delegate"`
		IPAM ipamConf `json:"ipam"`
	}
	if json.Unmarshal(conf, &flannel) != nil {
		return bridge, hostLocal // flannel refuses it, and needs the defaults in any case
	}
	return cmp.Or(flannel.Delegate.Type, bridge), cmp.Or(flannel.Delegate.IPAM.Type, flannel.IPAM.Type, hostLocal)
}
