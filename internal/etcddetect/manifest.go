package etcddetect

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/holdfast-dev/holdfast/internal/hostfs"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

var errNoServer = errors.New("no container in it runs etcd")

// A podManifest has the relevant fields of a static pod.
type podManifest struct {
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

// addStaticPods adds the servers of static pods that do not run and have the data of a
// member. A server that runs was found as a process.
func (s *hostScan) addStaticPods() {
	for _, l := range distroLayouts() {
		for _, file := range s.placesOf(l).manifests {
			data, err := s.root.ReadFile(file)
			if hostfs.IsAbsent(err) {
				continue
			}
			var flags, env etcdSettings
			if err == nil {
				flags, env, err = parsePodManifest(data)
			}
			if err != nil {
				s.addUnknown("the static pod %s: %v", file, hostfs.Reason(err))
				continue
			}
			s.addStaticPod(file, flags, env)
		}
	}
}

// parsePodManifest returns the settings of the etcd server in a static pod. kubeadm and RKE2
// mount the host's directories at the same paths, so the paths in the settings are the
// host's.
func parsePodManifest(data []byte) (flags, env etcdSettings, err error) {
	var pod podManifest
	if err := decodeYAML(data, &pod); err != nil {
		return nil, nil, err
	}
	for _, c := range pod.Spec.Containers {
		variables := map[string]string{}
		for _, v := range c.Env {
			variables[v.Name] = v.Value
		}
		command := parseCommand(slices.Concat(c.Command, c.Args), variables)
		if !command.isServer {
			continue
		}
		maps.Copy(variables, command.env)
		return parseFlags(command.args), envSettings(variables), nil
	}
	return nil, nil, errNoServer
}

func (s *hostScan) addStaticPod(file string, flags, env etcdSettings) {
	loaded, err := loadSettings(flags, env, "/", s.root.ReadFile)
	found := detectedServer{Server: evidence.Server{Source: evidence.StaticPod, InCluster: true}}
	found.Config = loaded.config("/", true)
	found.inspectDataDir(s.root, s.root.Resolve)
	if s.mergeStaticPod(found, file) {
		return
	}
	if err != nil {
		found.Problems = append(found.Problems, err.Error())
	}
	for _, problem := range found.Problems {
		s.addUnknown("the static pod %s: %s", file, problem)
	}
	if found.HasData == nil || !*found.HasData {
		return
	}
	found.Where = fmt.Sprintf("data directory %s of static pod %s, which does not run",
		found.serverDataDir, filepath.Base(file))
	found.Config.File = s.existingPath(s.root.Resolve, loaded.file)
	found.Credentials = s.credentials(loaded.etcdSettings, file, s.root.Resolve)
	s.found = append(s.found, found)
}

// mergeStaticPod reports whether a server of the manifest runs, and describes it as that static
// pod. An ordinary pod can have the name and URLs of another server. So every match gets that
// description, and an impostor takes nothing from the real server.
func (s *hostScan) mergeStaticPod(static detectedServer, file string) bool {
	s.pods = slices.DeleteFunc(s.pods, func(pod podServer) bool {
		if !pod.isServerOf(static) {
			return false
		}
		s.found = append(s.found, s.describeProcess(*pod.process))
		return true
	})
	runs := false
	for i := range s.found {
		if known := &s.found[i]; known.isSame(static) {
			known.Source, known.InCluster, known.Where = evidence.StaticPod, true, "static pod "+filepath.Base(file)
			runs = true
		}
	}
	return runs
}
