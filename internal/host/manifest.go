package host

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"

	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// manifest is the part of a static pod that matters here.
type manifest struct {
	Spec struct {
		Containers []struct {
			Command []string `json:"command"`
			Args    []string `json:"args"`
			Env     []struct {
				Name  string `json:"name"`
				Value string `json:"value"`
			} `json:"env"`
		} `json:"containers"`
	} `json:"spec"`
}

// readManifests looks at the static pods. A server that runs in one was found as a process; one that does not run may
// still have its data.
func (s *scan) readManifests() {
	for _, l := range layouts() {
		for _, file := range s.place(l).manifests {
			data, err := s.host.root.read(file)
			if absent(err) {
				continue
			}
			if err != nil {
				s.unknown = append(s.unknown, fmt.Sprintf("the static pod %s: %v", file, plain(err)))
				continue
			}
			flags, env, err := podSettings(data)
			if err != nil {
				s.unknown = append(s.unknown, fmt.Sprintf("the static pod %s: %v", file, err))
				continue
			}
			s.readPod(file, flags, env)
		}
	}
}

// podSettings reads what an etcd pod tells its server. kubeadm and RKE2 mount the host's directories under their own
// names, so that the paths in it are the host's.
func podSettings(data []byte) (flags, env settings, err error) {
	var pod manifest
	if err := decodeYAML(data, &pod); err != nil {
		return nil, nil, err
	}
	for _, c := range pod.Spec.Containers {
		line := slices.Concat(c.Command, c.Args)
		at := slices.IndexFunc(line, func(word string) bool { return isServerName(path.Base(word)) })
		if at < 0 || isNoServer(line[at+1:]) {
			continue
		}
		variables := map[string]string{}
		for _, v := range c.Env {
			variables[v.Name] = v.Value
		}
		return flagSettings(line[at+1:]), envSettings(variables), nil
	}
	return nil, nil, errNoServer
}

const errNoServer = constError("no container in it runs etcd")

func (s *scan) readPod(file string, flags, env settings) {
	root := s.host.root
	told, err := precedence(flags, env, root.read)
	found := server{Sighting: protect.Sighting{Source: protect.StaticPod, InCluster: true, Config: told.config("/", true)}}
	found.look(root, root.locate)
	if s.runs(found, file) {
		return
	}
	if err != nil {
		found.Problems = append(found.Problems, err.Error())
	}
	for _, problem := range found.Problems {
		s.unknown = append(s.unknown, fmt.Sprintf("the static pod %s: %s", file, problem))
	}
	if found.HasData == nil || !*found.HasData {
		return
	}
	found.Where = fmt.Sprintf("data directory %s of static pod %s, which does not run", found.named, filepath.Base(file))
	found.Config.File = located(root.locate, told.file)
	found.Credentials = s.host.credentials(told.settings, file, root.locate)
	s.found = append(s.found, found)
}

// runs says whether a server of the manifest runs, and marks it as the static pod that it is. A workload may have the
// name and the URLs of another, so every match counts, and one that pretends takes nothing from the one that is.
func (s *scan) runs(pod server, file string) bool {
	s.workloads = slices.DeleteFunc(s.workloads, func(w workload) bool {
		is := w.is(pod)
		if is {
			s.found = append(s.found, s.running(*w.process))
		}
		return is
	})
	runs := false
	for i := range s.found {
		if known := &s.found[i]; known.same(pod) {
			known.Source, known.InCluster, known.Where = protect.StaticPod, true, "static pod "+filepath.Base(file)
			runs = true
		}
	}
	return runs
}
