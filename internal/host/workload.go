package host

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
)

// workload is an etcd server in an ordinary pod.
type workload struct {
	pid int
	// dir is its data directory, nil if there is none or it could not be seen.
	dir fs.FileInfo
	// process is what the kernel tells of it, and told its settings; nil if that is too much to be kept.
	process *process
	told    settings
}

// workload says that a process is what any user of the cluster can run: a pod of the API server's, on data of its own. Who
// may make pods could otherwise make the node undeletable. A static pod that cannot be told by its UID has its settings and
// its data on the host, under the names that they have there (kubeadm, RKE2), and mounting those takes the rights of the
// host's administrator. A pod of which the kernel does not tell enough is no workload for sure.
//
// Who makes pods chooses what is in their files. So this is decided by what the kernel tells, and by where the files lie
// that a process names; until then none of them is opened.
func (s *scan) workload(p process) (w workload, is bool) {
	if !s.mayBeWorkload(p) {
		return w, false
	}
	w.pid = p.pid
	if p.within != nil { // a cluster within the cluster
		w.dir, _ = p.files.stat(p.within.etcd(p.within.dataDir)) // what cannot be seen is no more the host's
		return w, true
	}
	flags, env := flagSettings(p.args), envSettings(p.env)
	if file := configFile(flags, env); file != "" {
		there, err := p.files.stat(file)
		return w, err != nil || !s.isTheHosts(file, there)
	}
	maps.Copy(env, flags)
	dir := env.config(p.workDir, true).DataDir
	there, err := p.files.stat(dir)
	if err != nil || dir == "" {
		return w, true
	}
	w.dir = there
	if p.size() <= mostKept {
		w.process, w.told = &p, env
	}
	return w, !s.isTheHosts(dir, there)
}

// mostKept is how much of a workload is kept until the static pods have been looked at, in bytes of its arguments and
// variables. Those of a static pod have a kibibyte or two.
const mostKept = 8 << 10

func (p process) size() (bytes int) {
	for _, arg := range p.args {
		bytes += len(arg)
	}
	for name, value := range p.env {
		bytes += len(name) + len(value)
	}
	return bytes
}

// mayBeWorkload says that a process is in a pod of the API server's, by all that the kernel tells of it.
func (s *scan) mayBeWorkload(p process) bool {
	if !p.place.pod || p.place.static || len(p.unread) > 0 || s.serviceOf(p) != nil || p.place.unit() != "" {
		return false
	}
	_, err := p.files.stat("/")
	return err == nil
}

// isTheHosts says that what a pod has under this name is what the host has there.
func (s *scan) isTheHosts(named string, there fs.FileInfo) bool {
	onHost, err := s.host.root.stat(named)
	return err == nil && os.SameFile(onHost, there) || err != nil && !absent(err)
}

// is says that this is the server of a static pod whose data directory cannot be seen under the name that it has in the
// pod: by its data, or by its name and peers.
func (w workload) is(pod server) bool {
	if w.process == nil {
		return false
	}
	told := server{dir: w.dir}
	told.Config = w.told.config(w.process.workDir, true)
	return told.same(pod)
}

// mostNotes is how many workloads are told one by one.
const mostNotes = 8

// noteWorkloads tells of what was left out.
func (s *scan) noteWorkloads() {
	for i, w := range s.workloads {
		if rest := len(s.workloads) - i; i == mostNotes && rest > 1 {
			s.notes = append(s.notes, fmt.Sprintf("%d more processes are etcd in ordinary pods", rest))
			return
		}
		s.notes = append(s.notes, fmt.Sprintf("process %d is etcd in an ordinary pod with data of its own: "+
			"it is no static pod, does not guard the node, and is not asked", w.pid))
	}
}
