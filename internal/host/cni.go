package host

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/libcni"

	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// conflist reads the CNI configuration that decides: the first file by name that ends in .conf, .conflist or .json. As in
// containerd (go-cni opts.go, loadFromConfDir), one that does not parse is not passed over: it may be the right one, half
// written, with some other package's bridge network waiting behind it.
func (h *Host) conflist() readiness.Conflist {
	list := readiness.Conflist{Directory: h.opts.CNIConfDir}
	entries, err := h.list(list.Directory)
	if err != nil {
		list.Problem = err.Error()
		return list
	}
	first := slices.IndexFunc(entries, func(e os.DirEntry) bool {
		return !e.IsDir() && slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name()))
	})
	if first < 0 {
		list.Presence = readiness.Absent
		return list
	}
	list.Path = filepath.Join(list.Directory, entries[first].Name())
	data, err := h.root.read(list.Path)
	if err != nil {
		list.Problem = fmt.Sprintf("reading %s: %v", list.Path, plain(err))
		return list
	}
	list.Presence = readiness.Present
	name, plugins, err := h.parseConflist(list.Path, data)
	if err != nil {
		list.Problem = fmt.Sprintf("parsing %s: %v", list.Path, err)
		return list
	}
	list.Name = name
	for _, p := range needed(plugins) {
		p.Executable, p.Problem = h.executable(p.Type)
		list.Plugins = append(list.Plugins, p)
	}
	return list
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

// needed lists the programs that the plugins need, each once: themselves, the IPAM plugins they name, and what flannel
// calls without naming it (flannel cni-plugin flannel.go: delegate bridge, IPAM host-local; the runtime itself calls
// loopback for every pod).
func needed(plugins []*libcni.PluginConfig) []readiness.Plugin {
	var all []readiness.Plugin
	need := func(name, by string) {
		same := func(p readiness.Plugin) bool { return p.Type == name }
		if name != "" && !slices.ContainsFunc(all, same) {
			all = append(all, readiness.Plugin{Type: name, NeededBy: by})
		}
	}
	for _, p := range plugins {
		need(p.Network.Type, "")
	}
	for _, p := range plugins {
		kind := p.Network.Type
		need(p.Network.IPAM.Type, kind)
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
