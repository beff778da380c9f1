package etcddetect

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// setDistributions names the distribution of each server that was found.
func (s *hostScan) setDistributions() {
	for i := range s.found {
		s.found[i].Distribution = s.distributionOf(s.found[i])
	}
}

// distributionOf returns the distribution that manages a server, empty if no layout is sure: its
// unit, data directory or settings file must be one that no other layout has. Several layouts have
// /var/lib/etcd, so kubeadm's server is known by being a static pod as well.
func (s *hostScan) distributionOf(f foundServer) v1alpha1.Distribution {
	dir, file := cmp.Or(f.named, s.root.HostPath(f.Config.DataDir)), s.root.HostPath(f.Config.File)
	isStatic := f.InCluster || f.Source == evidence.StaticPod
	for _, l := range distroLayouts() {
		switch {
		case l.distribution == "":
		case l.program.name != "":
			isUnit := f.Unit != "" && slices.Contains(l.units, f.Unit)
			if isUnit || dir == l.program.etcdDataDir(l.program.dataDir) || (isStatic && l.hasManifestBeside(dir)) {
				return l.distribution
			}
		case len(l.manifests) > 0:
			if isStatic && slices.Contains(l.dataDirs, dir) {
				return l.distribution
			}
		case !isStatic && slices.Contains(l.envFiles, file):
			return l.distribution
		}
	}
	return ""
}

// hasManifestBeside reports whether a data directory is the one of a program that runs etcd as a
// static pod and has its own data directory elsewhere: <home>/server/db/etcd of <home>/rke2.
func (l distroLayout) hasManifestBeside(dir string) bool {
	home, isBelow := strings.CutSuffix(dir, "/"+l.program.etcdDir)
	return l.program.manifest != "" && isBelow && path.IsAbs(home)
}
