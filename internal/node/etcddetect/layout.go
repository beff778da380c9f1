package etcddetect

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// A distroLayout describes one way in which distributions place etcd on hosts. The settings
// of a process or a unit always override it. To teach the agent a distribution, add a row to
// distroLayouts.
type distroLayout struct {
	name string
	// units are the units that run it.
	units []string
	// dataDirs are data directories of etcd. One that contains a member is a member, running or not.
	dataDirs []string
	// envFiles contain its settings. They are read through the unit that names them; the layout only
	// tells the distribution by them.
	envFiles []string
	// config is the configuration file of the server on dataDirs, for a unit that does not
	// name it.
	config string
	// manifests are directories of static pods.
	manifests []string
	// distribution has its own way to remove a member, or is empty.
	distribution v1alpha1.Distribution
	// program is the program that etcd belongs to, if that has its own data directory.
	program parentProgram
	// clients are client certificates next to the server's certificate, the most likely
	// first.
	clients []clientCert
}

// configFiles returns the configuration files that the layout may have for a server on a data
// directory.
func (l distroLayout) configFiles(dataDir string) []string {
	if l.program.settings == "" {
		return nonempty(l.config)
	}
	return []string{path.Join(dataDir, path.Base(l.config)), l.config}
}

// A clientCert is a client certificate by its path relative to the server's certificate. The
// name of the key follows from that of the certificate: x.crt and x.key, x.pem and x-key.pem.
type clientCert struct {
	ca, cert string
}

// distroLayouts returns all layouts (sources: docs of each distribution; kubespray
// roles/etcd, kubeadm constants.go, k3s pkg/etcd/etcd.go, k0s pkg/constant).
func distroLayouts() []distroLayout { return append(kubernetesLayouts(), packageLayouts()...) }

func kubernetesLayouts() []distroLayout {
	return []distroLayout{
		{
			name:         "kubespray",
			distribution: v1alpha1.DistributionKubespray,
			units:        []string{"etcd.service"},
			dataDirs:     []string{"/var/lib/etcd"},
			envFiles:     []string{"/etc/etcd.env"},
			clients:      []clientCert{{"ca.pem", "admin-*.pem"}}, // * is the name of the member
		},
		{
			name:         "kubespray events",
			distribution: v1alpha1.DistributionKubespray,
			units:        []string{"etcd-events.service"},
			dataDirs:     []string{"/var/lib/etcd-events"},
			envFiles:     []string{"/etc/etcd-events.env"},
		},
		{
			name:         "kubeadm",
			distribution: v1alpha1.DistributionKubeadm,
			manifests:    []string{"/etc/kubernetes/manifests"},
			dataDirs:     []string{"/var/lib/etcd"},
			clients:      []clientCert{{"ca.crt", "healthcheck-client.crt"}, {"ca.crt", "../apiserver-etcd-client.crt"}},
		},
		{
			name:         "k3s",
			distribution: v1alpha1.DistributionK3s,
			units:        []string{"k3s.service"},
			dataDirs:     []string{"/var/lib/rancher/k3s/server/db/etcd"},
			config:       "/var/lib/rancher/k3s/server/db/etcd/config",
			program: parentProgram{
				name: "k3s", role: "server", settings: "/etc/rancher/k3s/config.yaml", etcdDir: "server/db/etcd",
			},
			clients: []clientCert{{"server-ca.crt", "client.crt"}},
		},
		{
			name:         "RKE2",
			distribution: v1alpha1.DistributionRKE2,
			units:        []string{"rke2-server.service"},
			dataDirs:     []string{"/var/lib/rancher/rke2/server/db/etcd"},
			config:       "/var/lib/rancher/rke2/server/db/etcd/config",
			manifests:    []string{"/var/lib/rancher/rke2/agent/pod-manifests"},
			program: parentProgram{
				name: "rke2", role: "server", settings: "/etc/rancher/rke2/config.yaml", etcdDir: "server/db/etcd",
				manifests: "agent/pod-manifests",
			},
		},
		{
			name:         "k0s",
			distribution: v1alpha1.DistributionK0s,
			units:        []string{"k0scontroller.service"},
			dataDirs:     []string{"/var/lib/k0s/etcd"},
			program:      parentProgram{name: "k0s", role: "controller", etcdDir: "etcd"},
			clients:      []clientCert{{"ca.crt", "../apiserver-etcd-client.crt"}},
		},
	}
}

func packageLayouts() []distroLayout {
	return []distroLayout{
		{
			name:     "package",
			units:    []string{"etcd.service", "etcd2.service", "etcd-member.service"},
			dataDirs: []string{"/var/lib/etcd/default", "/var/lib/etcd/default.etcd", "/var/lib/etcd2"},
			clients:  []clientCert{{"ca.pem", "client.pem"}},
		},
		{name: "etcdadm", units: []string{"etcd.service"}, clients: []clientCert{{"ca.crt", "etcdctl-etcd-client.crt"}}},
		{
			name:     "snap",
			units:    []string{"snap.etcd.etcd.service"},
			dataDirs: []string{"/var/snap/etcd/current", "/var/snap/etcd/common"},
			config:   "/var/snap/etcd/common/etcd.conf.yml",
			clients:  []clientCert{{"ca.crt", "client.crt"}},
		},
		{
			// By default microk8s has dqlite, which is not etcd, and whose directory contains
			// no member.
			name:     "microk8s",
			units:    []string{"snap.microk8s.daemon-etcd.service"},
			dataDirs: []string{"/var/snap/microk8s/common/var/run/etcd"},
		},
		{
			// Its workers have the unit too, and no etcd.
			name:     "Canonical Kubernetes",
			units:    []string{"snap.k8s.etcd.service"},
			dataDirs: []string{"/var/snap/k8s/common/var/lib/etcd/data"},
		},
		{name: "Talos", clients: []clientCert{{"ca.crt", "admin.crt"}}},
	}
}

// unitPatterns returns patterns of the units that may run or start etcd: any with etcd in its
// name, and those of programs with embedded etcd.
func unitPatterns() []string {
	patterns := []string{"*etcd*.service", "*etcd*.timer", "*etcd*.path", "*etcd*.socket"}
	for _, l := range distroLayouts() {
		patterns = append(patterns, l.units...)
		if l.program.name != "" { // k3s-<name>.service, if the installer was given a name
			patterns = append(patterns, l.program.name+"*.service")
		}
	}
	return patterns
}

// distributionOf returns the distribution that manages a server, empty if no layout is sure: its
// unit, data directory or settings file must be one that no other layout has. Several layouts have
// /var/lib/etcd, so kubeadm's server is known by being a static pod as well.
func (s *hostScan) distributionOf(f detectedServer) v1alpha1.Distribution {
	dir, file := cmp.Or(f.serverDataDir, s.root.HostPath(f.Config.DataDir)), s.root.HostPath(f.Config.File)
	isStatic := f.InCluster || f.Source == evidence.StaticPod
	for _, l := range distroLayouts() {
		switch {
		case l.distribution == "":
		case l.program.name != "":
			isUnit := f.Unit != "" && slices.Contains(l.units, f.Unit)
			// RKE2 can have its own data directory elsewhere, with the static pods beside that of etcd.
			isMoved := isStatic && l.program.manifests != "" && strings.HasSuffix(dir, "/"+l.program.etcdDir)
			if isUnit || slices.Contains(l.dataDirs, dir) || isMoved {
				return l.distribution
			}
		case len(l.manifests) > 0:
			if isStatic && slices.Contains(l.dataDirs, dir) {
				return l.distribution
			}
		case !isStatic && slices.Contains(l.envFiles, file) && s.isOfKubespray(file):
			return l.distribution
		}
	}
	return ""
}

// isOfKubespray reports whether an environment file was written by kubespray, and not by KubeKey or
// by hand after its example. Its template prints a boolean of Python (roles/etcd, etcd.env.j2), and
// it alone has a second etcd for events.
func (s *hostScan) isOfKubespray(file string) bool {
	isEvents := func(st *starter) bool { return st.name == "etcd-events.service" }
	text, _ := s.root.ReadFile(file) // without the file there is no sign
	return slices.ContainsFunc(s.starters, isEvents) || strings.Contains(string(text), "ETCD_PEER_CLIENT_CERT_AUTH=True")
}

// A parentProgram is a program that etcd belongs to: k3s contains it, k0s and RKE2 start it.
// The data directory of etcd depends on the program's own data directory.
type parentProgram struct {
	// name and role are as in `k3s server`.
	name, role string
	// settings is the YAML file that may set --data-dir. A program with such a file writes etcd's
	// configuration into its data directory. --etcd-arg of k3s and RKE2 goes into the one in the
	// default directory, and can move the data.
	settings string
	// etcdDir is etcd's data directory below the program's.
	etcdDir string
	// manifests is the directory of static pods below the program's data directory.
	manifests string
}

// programOf returns the program that a unit runs by its name, or nil. The installers of k3s and
// RKE2 name a unit k3s-NAME.service.
func programOf(unit string) *parentProgram {
	for _, l := range distroLayouts() {
		if l.program.name != "" && hostfs.MatchesAny(append(l.units, l.program.name+"*.service"), unit) {
			return &l.program
		}
	}
	return nil
}

// dataDirs returns the data directories of a layout: its own, and those that its configuration or
// the settings of its program mention.
func (s *hostScan) dataDirs(l distroLayout) []string {
	dirs := slices.Clone(l.dataDirs)
	settings := s.readTexts("", nonempty(l.config, l.program.settings)...)
	for _, dir := range settings.dirs {
		dirs = append(dirs, dir.path)
	}
	reasons := settings.unread
	if _, isCertain := settings.places(func(string) bool { return true }); !isCertain && len(reasons) == 0 {
		file := cmp.Or(l.program.settings, l.config)
		reasons = []string{"set data-dir in " + file + " to an absolute path on a local disk"}
	}
	for _, reason := range reasons {
		s.addUnknown("the data directory of %s: %s", l.name, reason)
	}
	return dirs
}

// nonempty returns the names that are not empty.
func nonempty(names ...string) []string {
	return slices.DeleteFunc(names, func(name string) bool { return name == "" })
}
