package etcddetect

import (
	"path"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// addStaticPods reads the static pods that may contain etcd: their name or their text has the word.
// The kubelet reads every file in the directory, and no directory in it.
func (s *hostScan) addStaticPods() {
	for _, dir := range s.manifestDirs() {
		entries, err := s.root.ReadDir(dir)
		if err != nil {
			s.addUnknown("the static pods: %v", err)
		}
		for _, entry := range entries {
			if entry.IsDir() {
				continue
			}
			file := path.Join(dir, entry.Name())
			pod := &starter{kind: podStarter, name: file, files: []string{file}, texts: s.readTexts(unchanged, file)}
			switch {
			case strings.Contains(entry.Name()+pod.all[0].content, "etcd"):
				s.starters = append(s.starters, pod)
			case pod.all[0].content == "" && len(pod.unread) > 0:
				s.addUnknown("the static pod %s", pod.unread[0])
			}
		}
	}
}

// manifestDirs returns the directories of static pods: those of the layouts, and those of programs
// whose units or settings place the data of etcd elsewhere.
func (s *hostScan) manifestDirs() (dirs []string) {
	for _, l := range distroLayouts() {
		dirs = append(dirs, l.manifests...)
		if l.program.manifests == "" {
			continue
		}
		dataDirs := s.dataDirs(l)
		for _, st := range s.starters {
			for _, dir := range st.dirs {
				dataDirs = append(dataDirs, dir.path)
			}
		}
		for _, dir := range dataDirs {
			if programDir, ok := strings.CutSuffix(dir, "/"+l.program.etcdDir); ok {
				dirs = append(dirs, path.Join(programDir, l.program.manifests))
			}
		}
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// setStaticPod describes a server that runs in a pod as the static pod that mentions its data. A
// server outside of all pods stays what it is.
func (st *starter) setStaticPod(f *detectedServer) {
	if f.PID != 0 && f.InCluster {
		f.Source, f.Where = evidence.StaticPod, st.place()
	}
}
