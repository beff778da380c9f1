package host

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"

	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// conflist reads the CNI configuration that decides, of the first directory that has one: the first file by name that ends
// in .conf, .conflist or .json. As in containerd (go-cni opts.go, loadFromConfDir), one that does not parse is not passed
// over: it may be the right one, half written, with some other package's bridge network waiting behind it. What such
// packages install themselves is passed over: it stands in for the cluster's network, which is not there yet.
func (h *Host) conflist() readiness.Conflist {
	list := readiness.Conflist{Directory: strings.Join(h.opts.CNIConfDirs, ", ")}
	for _, dir := range h.opts.CNIConfDirs {
		entries, err := h.list(dir)
		if err != nil {
			list.Problem = err.Error()
			return list
		}
		var paths []string
		for _, entry := range entries {
			path := filepath.Join(dir, entry.Name())
			switch {
			case entry.IsDir() || !slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(path)):
			case matchesAny(packaged(), entry.Name()):
				list.PassedOver = append(list.PassedOver, path)
			default:
				paths = append(paths, path)
			}
		}
		if len(paths) > 0 {
			list.Directory = dir
			h.readConflists(&list, paths)
			return list
		}
	}
	list.Presence = readiness.Absent
	return list
}

// packaged are patterns of the names of configurations that packages bring along: podman's, CRI-O's (11-crio-ipv4-bridge and
// 100-crio-bridge), nerdctl's, and those of the loopback device alone.
func packaged() []string {
	return []string{"87-podman*.conflist", "*crio*bridge*", "nerdctl-*", "*-loopback*"}
}

// borrowed is the name of containerd's sample network (script/setup/install-cni), under which containerd also writes the
// cluster's own where it has a template for it (update_runtime_config.go, cniConfigFileName): GKE's nodes and kubenet. The
// name tells nothing, then; that the network was made for this very node does.
func borrowed(name string) bool { return strings.HasPrefix(name, "10-containerd-net.") }

// readConflists reads the first configuration, which the runtime takes, and of the others those that name flannel: a meta
// plugin in the first, such as Multus, may hand on to them without naming more than a path.
func (h *Host) readConflists(list *readiness.Conflist, paths []string) {
	list.Path = paths[0]
	data, err := h.root.read(list.Path)
	if err != nil {
		list.Problem = fmt.Sprintf("reading %s: %v", list.Path, plain(err))
		return
	}
	list.Presence = readiness.Present
	name, plugins, err := h.parseConflist(list.Path, data)
	if err != nil {
		list.Problem = fmt.Sprintf("parsing %s: %v", list.Path, err)
		return
	}
	list.Name, list.Bridged = name, bridged(plugins[0])
	list.Borrowed = borrowed(filepath.Base(list.Path))
	all := needed(plugins, "")
	for _, path := range paths[1:] {
		data, err := h.root.read(path)
		if err != nil {
			continue // the runtime does not read it either
		}
		if _, plugins, err := h.parseConflist(path, data); err == nil {
			if more := needed(plugins, filepath.Base(path)); names(more, "flannel") {
				all = append(all, slices.DeleteFunc(more, func(p readiness.Plugin) bool { return names(all, p.Type) })...)
			}
		}
	}
	for _, p := range all {
		p.Executable, p.Problem = h.executable(p.Type)
		list.Plugins = append(list.Plugins, p)
	}
}

func names(plugins []readiness.Plugin, kind string) bool {
	return slices.ContainsFunc(plugins, func(p readiness.Plugin) bool { return p.Type == kind })
}

func (h *Host) parseConflist(path string, data []byte) (string, []*libcni.PluginConfig, error) {
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
		beside, err := h.pluginFiles(filepath.Join(filepath.Dir(path), list.Name))
		if err != nil {
			return "", nil, err
		}
		plugins = append(plugins, beside...)
	}
	if len(plugins) == 0 {
		return "", nil, fmt.Errorf("it names no plugin")
	}
	return list.Name, plugins, nil
}

// pluginFiles reads the plugins that a list keeps in a directory of its own name (CNI 1.1).
func (h *Host) pluginFiles(dir string) ([]*libcni.PluginConfig, error) {
	entries, err := h.list(dir)
	if err != nil {
		return nil, err
	}
	var plugins []*libcni.PluginConfig
	for _, entry := range entries {
		name := entry.Name()
		if entry.IsDir() || filepath.Ext(name) != ".conf" {
			continue
		}
		data, err := h.root.read(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		plugin, err := libcni.NetworkPluginConfFromBytes(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Join(dir, name), err)
		}
		plugins = append(plugins, plugin)
	}
	return plugins, nil
}

// needed lists the programs that the plugins need, each once: themselves (which by names, if the configuration that decides
// does not), those that they hand on to, the IPAM plugins they name, and what flannel calls without naming it (flannel
// cni-plugin flannel.go: delegate bridge, IPAM host-local; the runtime itself calls loopback for every pod).
func needed(plugins []*libcni.PluginConfig, by string) []readiness.Plugin {
	var all []readiness.Plugin
	need := func(name, by string) {
		if name != "" && !names(all, name) {
			all = append(all, readiness.Plugin{Type: name, NeededBy: by})
		}
	}
	for _, p := range plugins {
		need(p.Network.Type, by)
	}
	for _, p := range plugins {
		for _, inner := range handedOn(p.Bytes) {
			need(inner.Network.Type, p.Network.Type)
			plugins = append(plugins, inner)
		}
	}
	for _, p := range plugins {
		kind := p.Network.Type
		if !within(kind, p.Network.IPAM.Type) {
			need(p.Network.IPAM.Type, kind)
		}
		if kind != "flannel" {
			continue
		}
		bridge, ipam := delegate(p.Bytes)
		need(bridge, kind)
		need(ipam, kind)
		need("loopback", kind)
	}
	return all
}

// within says that a plugin gives out addresses by itself under a name that is no program's: AKS' azure-vnet asks a service on
// the node for them (azure-container-networking cni/network/network.go, invokers by ipam.type).
func within(plugin, ipam string) bool { return plugin == "azure-vnet" && ipam == "azure-cns" }

// handedOn returns the plugins that a meta plugin such as Multus calls, at any depth (multus-cni pkg/types, NetConf: each of
// the delegates is a plugin or a list of plugins).
func handedOn(conf []byte) []*libcni.PluginConfig {
	var outer struct {
		Delegates []json.RawMessage `json:"delegates"`
		Plugins   []json.RawMessage `json:"plugins"`
	}
	if json.Unmarshal(conf, &outer) != nil {
		return nil // of an odd shape: no delegates that could be named
	}
	var all []*libcni.PluginConfig
	for _, raw := range slices.Concat(outer.Delegates, outer.Plugins) {
		if plugin, err := libcni.NetworkPluginConfFromBytes(raw); err == nil { // a list has no type of its own
			all = append(all, plugin)
		}
		all = append(all, handedOn(raw)...)
	}
	return all
}

// bridged returns the subnets of the network that pods are first given if it is a plain bridge, with addresses by host-local
// (plugins/ipam/host-local/backend/allocator, IPAMConfig: one range inline, or sets of ranges). A meta plugin's first delegate
// is the cluster's network.
func bridged(main *libcni.PluginConfig) []string {
	for {
		inner := handedOn(main.Bytes)
		if len(inner) == 0 {
			break
		}
		main = inner[0]
	}
	if main.Network.Type != "bridge" || main.Network.IPAM.Type != "host-local" {
		return nil
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
		return nil // of an odd shape: host-local's own complaint
	}
	var all []string
	for _, s := range append(slices.Concat(conf.IPAM.Ranges...), conf.IPAM.subnet) {
		if s.Subnet != "" {
			all = append(all, s.Subnet)
		}
	}
	return all
}

// delegate returns the plugins that flannel hands on to.
func delegate(conf []byte) (plugin, ipam string) {
	var flannel struct {
		Delegate struct {
			Type string `json:"type"`
			IPAM struct {
				Type string `json:"type"`
			} `json:"ipam"`
		} `json:"delegate"`
		IPAM struct {
			Type string `json:"type"`
		} `json:"ipam"`
	}
	plugin, ipam = "bridge", "host-local"
	if json.Unmarshal(conf, &flannel) != nil {
		return plugin, ipam // the delegate is of an odd shape: flannel's own complaint, and the defaults are needed anyway
	}
	if flannel.Delegate.Type != "" {
		plugin = flannel.Delegate.Type
	}
	for _, named := range []string{flannel.IPAM.Type, flannel.Delegate.IPAM.Type} {
		if named != "" {
			ipam = named
		}
	}
	return plugin, ipam
}
