package etcddetect

import (
	"bytes"
	"cmp"
	"encoding/json"
	"path"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
)

// opaqueContainers returns the containers of docker and podman that may start etcd, do not run, and
// mention the data of no stopped server. They start again without a unit, and their data may be in
// their own layers, which no search enters.
func (s *hostScan) opaqueContainers() (places []string) {
	for _, dir := range s.containerDirs {
		entries, err := s.root.ReadDir(dir)
		if err != nil {
			s.addUnknown("the containers: %v", err)
		}
		for _, entry := range entries {
			id := entry.Name()
			name, text := s.readContainer(dir, id)
			isIts := func(f detectedServer) bool {
				return strings.Contains(f.cgroups, id) || f.PID == 0 && strings.Contains(text, `"`+f.serverDataDir+`"`)
			}
			if name != "" && !slices.ContainsFunc(s.found, isIts) {
				places = append(places, "container "+name)
			}
		}
	}
	return places
}

// readContainer returns the name or the ID of a container whose name, image or program says etcd,
// and its file. The name is "" for any other container, and for that of a pod, which has the
// kubelet's labels.
func (s *hostScan) readContainer(dir, id string) (name, text string) {
	file := path.Join(dir, id, "config.v2.json")
	if path.Base(dir) != "containers" { // podman has the name in another file
		file = path.Join(dir, id, "userdata/config.json")
	}
	data, err := s.root.ReadFile(file)
	if hostfs.IsAbsent(err) || bytes.Contains(data, []byte("io.kubernetes.pod.uid")) {
		return "", ""
	}
	var c struct {
		Name, Path string
		Args       []string
		Config     struct{ Image string }
		Process    struct{ Args []string }
	}
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err != nil {
		s.addUnknown("the container in %s: %v", file, hostfs.Reason(err))
		return "", ""
	}
	name = strings.TrimPrefix(c.Name, "/")
	command := slices.Concat(nonempty(c.Path), c.Args, c.Process.Args)
	image, _, _ := strings.Cut(path.Base(c.Config.Image), ":")
	if len(command) == 0 || namesTool(append([]string{name, image}, command...)) {
		return "", ""
	}
	names := append(strings.Split(command[0], "/"), name, image)
	if !runsServer(command) && !slices.ContainsFunc(names, saysEtcd) {
		return "", ""
	}
	return cmp.Or(name, id), string(data)
}
