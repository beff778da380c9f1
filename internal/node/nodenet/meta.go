package nodenet

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"

	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
)

// multusConfDir is where Multus looks for networks by name (multus-cni pkg/types, DefaultConfDir).
const multusConfDir = "/etc/cni/multus/net.d"

// A calledPlugin is a plugin of a configuration, or one that a meta plugin of it calls.
type calledPlugin struct {
	*libcni.PluginConfig
	// neededBy is the meta plugin that calls it, or the file that names it. It is empty for a
	// plugin of the first configuration.
	neededBy string
	multus   multusConf
	// callees are the plugins that it calls, the cluster's network first.
	callees []calledPlugin
}

// A metaReader follows meta plugins, such as Multus, to the networks that they call.
type metaReader struct {
	Network
	// confDir is the directory of the first configuration.
	confDir string
	// read are the files that were read. Each is read once, because networks may name each other.
	read []string
	// problems are the files that a meta plugin needs and that are missing or cannot be read.
	problems []string
}

// A multusConf is the configuration of Multus (multus-cni pkg/types, NetConf). It has delegates or
// a cluster network, which is a file, a directory, or the name of a network.
type multusConf struct {
	Type            string   `json:"type"`
	ClusterNetwork  string   `json:"clusterNetwork"`
	DefaultNetworks []string `json:"defaultNetworks"`
	ConfDir         string   `json:"confDir"`
	ReadinessFile   string   `json:"readinessindicatorfile"`
}

// isMeta reports whether a plugin calls networks that other files configure: Multus, CNI-Genie and
// DANM.
func (c multusConf) isMeta() bool {
	return c.ClusterNetwork != "" || strings.HasPrefix(c.Type, "multus") || c.Type == "genie" || c.Type == "danm"
}

// follow returns plugins with those that they call.
func (r *metaReader) follow(plugins []*libcni.PluginConfig, neededBy string) []calledPlugin {
	var all []calledPlugin
	for _, p := range plugins {
		called := calledPlugin{PluginConfig: p, neededBy: neededBy}
		if json.Unmarshal(p.Bytes, &called.multus) != nil {
			called.multus = multusConf{} // another plugin, which gives these names another meaning
		}
		called.callees = r.callees(p, called.multus)
		all = append(all, called)
	}
	return all
}

// callees returns the plugins that a plugin calls. Multus ignores its delegates if it has a cluster
// network.
func (r *metaReader) callees(p *libcni.PluginConfig, conf multusConf) []calledPlugin {
	if file := conf.ReadinessFile; file != "" {
		if _, err := r.findShared(file); err != nil {
			r.problems = append(r.problems, fmt.Sprintf("readinessindicatorfile %s: %v", file, hostfs.Reason(err)))
		}
	}
	if conf.ClusterNetwork == "" {
		return r.follow(delegates(p.Bytes), p.Network.Type)
	}
	all := r.named("clusterNetwork", conf.ClusterNetwork, conf.ConfDir)
	for _, name := range conf.DefaultNetworks {
		all = append(all, r.named("defaultNetworks", name, conf.ConfDir)...)
	}
	return all
}

// named returns the plugins of a network that Multus refers to (multus-cni pkg/k8sclient,
// getNetDelegate).
func (r *metaReader) named(field, name, confDir string) []calledPlugin {
	path, err := r.networkFile(name, confDir)
	isCluster, isRead := field == "clusterNetwork", slices.Contains(r.read, path)
	switch {
	case err != nil:
	case !isCluster && (path == "" || isRead):
		return nil // a name without a file is a NetworkAttachmentDefinition
	case path == "":
		err = errors.New("no file has a network of this name; if it is a NetworkAttachmentDefinition, name the " +
			"file of the network instead")
	case isRead:
		err = errors.New("the configurations name each other")
	}
	var plugins []*libcni.PluginConfig
	if err == nil {
		r.read = append(r.read, path)
		_, plugins, err = r.readConflist(path)
	}
	if err != nil {
		r.problems = append(r.problems, fmt.Sprintf("%s %s: %v", field, name, hostfs.Reason(err)))
		return nil
	}
	return r.follow(plugins, filepath.Base(path))
}

// networkFile returns the file of a network that is given as a file, a directory or a name. It
// returns "" for a name that no file has.
func (r *metaReader) networkFile(name, confDir string) (string, error) {
	if strings.Contains(name, "/") {
		path, err := r.findShared(name)
		if err != nil {
			return "", err
		}
		if info, err := r.Root.Stat(path); err != nil || !info.IsDir() {
			return path, err
		}
		files, err := r.confFiles(path)
		if err == nil && len(files) == 0 {
			err = errors.New("the directory has no configuration")
		}
		if err != nil {
			return "", err
		}
		return files[0], nil
	}
	confDir = cmp.Or(confDir, multusConfDir)
	for _, dir := range []string{confDir, strings.TrimPrefix(confDir, "/host"), r.confDir} {
		files, err := r.confFiles(dir)
		if err != nil {
			return "", err
		}
		for _, path := range files {
			// As in Multus, a file that does not parse is skipped.
			if found, _, err := r.readConflist(path); err == nil && found == name {
				return path, nil
			}
		}
	}
	return "", nil
}

// findShared returns the path on the host of a file or directory. The daemon of Multus has the
// directories of the host below /host.
func (r *metaReader) findShared(name string) (string, error) {
	_, err := r.Root.Stat(name)
	if outside, isBelow := strings.CutPrefix(name, "/host/"); isBelow && hostfs.IsAbsent(err) {
		name = "/" + outside
		_, err = r.Root.Stat(name)
	}
	return name, err
}

// confFiles returns the configurations in a directory, by name.
func (n Network) confFiles(dir string) ([]string, error) {
	entries, err := n.Root.ReadDir(dir)
	var files []string
	for _, entry := range entries {
		if !entry.IsDir() && isConfName(entry.Name()) {
			files = append(files, filepath.Join(dir, entry.Name()))
		}
	}
	return files, err
}

func (n Network) readConflist(path string) (string, []*libcni.PluginConfig, error) {
	data, err := n.Root.ReadFile(path)
	if err != nil {
		return "", nil, err
	}
	return n.parseConflist(path, data)
}

// leavesOpen reports whether a configuration has a meta plugin whose network was not found. It may
// then be any of the other files.
func leavesOpen(plugins []calledPlugin) bool {
	return slices.ContainsFunc(plugins, func(p calledPlugin) bool { return len(p.callees) == 0 && p.multus.isMeta() })
}

// flatten returns plugins and all that they call, the outer ones first.
func flatten(plugins []calledPlugin) []calledPlugin {
	all := slices.Clone(plugins)
	for i := 0; i < len(all); i++ {
		all = append(all, all[i].callees...)
	}
	return all
}
