package etcddetect

import (
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/testenv/fakehost"
	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/presence"
)

// A publicLayout is a host of a system that runs etcd, by its public sources.
type publicLayout struct {
	files, links map[string]string
	// dir is the data directory on the host, and server the process.
	dir    string
	server fakehost.Process
	// running and stopped are the places of the server. If stopped is empty, only the search of the
	// local disks finds the data; opaque is then what may start it.
	running, stopped, opaque string
	// isInLayer is set if the data is in the layer of a container, where nothing finds it.
	isInLayer bool
}

const (
	systemUnits      = "/etc/systemd/system/"
	dockerContainers = "/var/lib/docker/containers/" + hosttest.ContainerID + "/config.v2.json"
	dockerLayer      = "/var/lib/docker/overlay2/0a1b/diff/"
	ofDocker         = "/system.slice/docker-" + hosttest.ContainerID + ".scope"
	inDocker         = "container, process 812"
)

// native is a server without a container.
func native(cgroup, exe, args string) fakehost.Process {
	return fakehost.Process{PID: 812, Exe: exe, Args: exe + " " + args, Cgroup: cgroup}
}

// contained is a server in a container, which has a directory of the host at another path.
func contained(cgroup, args, inside, outside string) fakehost.Process {
	return fakehost.Process{
		PID: 812, Exe: "/usr/local/bin/etcd", Args: "etcd " + args, Cgroup: cgroup,
		Root: "/containers/etcd", Mounts: map[string]string{inside: outside},
	}
}

func dockerVolume(name string) string { return "/var/lib/docker/volumes/" + name + "/_data" }

// publicLayouts are beside those of testdata/hosts. The sources are repositories on GitHub.
func publicLayouts() map[string]publicLayout {
	all := containerLayouts()
	maps.Copy(all, nativeLayouts())
	return all
}

// containerLayouts have etcd in a container.
func containerLayouts() map[string]publicLayout {
	kolla, cke := dockerVolume("kolla_etcd"), dockerVolume("etcd-cke")
	const (
		planet    = "/system.slice/gravity__gravitational.io__planet-master.service/system.slice/etcd.service"
		staticPod = "/kubepods/burstable/pod0123456789abcdef0123456789abcdef/" + hosttest.ContainerID
	)
	return map[string]publicLayout{
		// openstack/kolla-ansible, roles/etcd and kolla_systemd_worker.py.
		"kolla-ansible": {
			files: map[string]string{
				systemUnits + "kolla-etcd-container.service": serviceOf("ExecStart=/usr/bin/docker start -a etcd"),
			},
			dir: kolla, server: contained(ofDocker, "--data-dir=/var/lib/etcd", "/var/lib/etcd", kolla),
			running: inDocker, opaque: "systemd unit kolla-etcd-container.service",
		},
		// cybozu-go/neco, progs/etcd/templates.go.
		"neco": {
			files: map[string]string{
				systemUnits + "etcd-container.service": serviceOf("ExecStart=/usr/bin/docker run --name=etcd --rm \\",
					"  --volume=/etc/etcd:/etc/etcd:ro --volume=/var/lib/etcd-container:/var/lib/etcd \\",
					"  ghcr.io/cybozu/etcd:3.5 --config-file=/etc/etcd/etcd.conf.yml"),
				"/etc/etcd/etcd.conf.yml": "name: 'boot-0'\ndata-dir: '/var/lib/etcd'\n",
			},
			dir:     "/var/lib/etcd-container",
			server:  contained(ofDocker, "--data-dir=/var/lib/etcd", "/var/lib/etcd", "/var/lib/etcd-container"),
			running: "systemd unit etcd-container.service",
			stopped: "data directory /var/lib/etcd-container of systemd unit etcd-container.service, " +
				"with no server running on it",
		},
		// cybozu-go/cke, op/etcd/boot.go.
		"CKE": {
			files: map[string]string{dockerContainers: `{"Name":"/etcd","Path":"etcd","Args":["--name=192.0.2.11"],` +
				`"Config":{"Image":"ghcr.io/cybozu/etcd:3.5"},"MountPoints":{"/var/lib/etcd":{"Source":"` + cke + `"}}}`},
			dir: cke, server: contained(ofDocker, "--data-dir=/var/lib/etcd", "/var/lib/etcd", cke),
			running: inDocker, opaque: "container etcd",
		},
		// platform9/nodelet, root/opt/pf9/pf9-kube/master_utils.sh.
		"Platform9": {
			files:  map[string]string{systemUnits + "pf9-nodeletd.service": serviceOf("ExecStart=/opt/pf9/nodelet/nodeletd")},
			dir:    "/var/opt/pf9/kube/etcd/data",
			server: contained(ofDocker, "--data-dir=/var/etcd/data", "/var/etcd/data", "/var/opt/pf9/kube/etcd/data"),

			running: inDocker,
		},
		// kubernetes/kubernetes, cluster/gce/manifests/etcd.manifest.
		"kube-up": {
			files: map[string]string{"/etc/kubernetes/manifests/etcd.manifest": `{"containers": [{"command": ["/bin/sh", "-c",
				"exec /usr/local/bin/etcd --data-dir /var/etcd/data"], "volumeMounts": [{"mountPath": "/var/etcd"}]}],
				"volumes": [{"name": "varetcd", "hostPath": {"path": "/mnt/master-pd/var/etcd"}}]}`},
			dir:    "/mnt/master-pd/var/etcd/data",
			server: contained(staticPod, "--data-dir /var/etcd/data", "/var/etcd", "/mnt/master-pd/var/etcd"),

			running: "static pod, process 812", opaque: "static pod etcd.manifest",
		},
		// milvus-io/milvus, deployments/docker/standalone/docker-compose.yml.
		"Milvus": {
			files: map[string]string{
				systemUnits + "milvus.service": serviceOf("WorkingDirectory=/opt/milvus", "ExecStart=/usr/bin/docker compose up"),
				"/opt/milvus/docker-compose.yml": "services: {etcd: {container_name: milvus-etcd, " +
					"command: etcd --data-dir /etcd, volumes: [\"./volumes/etcd:/etcd\"]}}\n",
			},
			dir:     "/opt/milvus/volumes/etcd",
			server:  contained(ofDocker, "--data-dir /etcd", "/etcd", "/opt/milvus/volumes/etcd"),
			running: inDocker,
		},
		// gravitational/planet: a container with a systemd of its own.
		"Gravity": {
			files: map[string]string{
				systemUnits + "gravity__gravitational.io__planet-master.service": serviceOf("ExecStart=/usr/bin/gravity start"),
			},
			dir: "/var/lib/gravity/planet/etcd", running: "systemd unit etcd.service",
			server: contained(planet, "--data-dir=/ext/etcd", "/ext/etcd", "/var/lib/gravity/planet/etcd"),
		},
		// andrewh1978/px-deploy, assets/training/Disaster_Recovery/etcd.sh, and go-magic/rook,
		// etc/script/install/etcd_install.sh.
		"docker run without a volume": {
			files: map[string]string{dockerContainers: `{"Name":"/etcd","Path":"/usr/local/bin/etcd","Args":["-name","etcd0"],` +
				`"Config":{"Image":"quay.io/coreos/etcd:latest"}}`},
			dir:    dockerLayer + "etcd0.etcd",
			server: contained(ofDocker, "-name etcd0 -data-dir /etcd0.etcd", "/etcd0.etcd", dockerLayer+"etcd0.etcd"),

			running: inDocker, opaque: "container etcd", isInLayer: true,
		},
		// robert0714/redmiine-docker-compose, README.md.
		"unit template for compose": {
			files: map[string]string{systemUnits + "docker-compose@.service": serviceOf(
				"WorkingDirectory=/etc/docker/compose/%i", "ExecStart=/usr/bin/docker-compose up")},
			links: map[string]string{
				systemUnits + "multi-user.target.wants/docker-compose@etcd.service": "../docker-compose@.service",
			},
			dir:    dockerLayer + "etcd",
			server: contained(ofDocker, "--data-dir /etcd", "/etcd", dockerLayer+"etcd"),

			running: inDocker, opaque: "systemd unit docker-compose@etcd.service", isInLayer: true,
		},
	}
}

// nativeLayouts have etcd on the host itself.
func nativeLayouts() map[string]publicLayout {
	pd := native("/system.slice/pd-2379.service", "/tidb-deploy/pd-2379/bin/pd-server", "--data-dir=/tidb-data/pd-2379")
	pd.Database = "/tidb-data/pd-2379"
	return map[string]publicLayout{
		// puppetlabs/puppetlabs-kubernetes, templates/etcd/etcd.service.epp.
		"puppetlabs-kubernetes": {
			files: map[string]string{
				systemUnits + "etcd.service": serviceOf("ExecStart=/usr/local/bin/etcd --name n1 \\", "  --data-dir /srv/etcd"),
			},
			dir: "/srv/etcd", server: native("/system.slice/etcd.service", "/usr/local/bin/etcd", "--data-dir /srv/etcd"),
			running: "systemd unit etcd.service",
			stopped: "data directory /srv/etcd of systemd unit etcd.service, with no server running on it",
		},
		// canonical/k8s-snap, docs and k8s/wrappers/services/etcd.
		"Canonical Kubernetes": {
			files: map[string]string{
				systemUnits + "snap.k8s.etcd.service": serviceOf("ExecStart=/usr/bin/snap run k8s.etcd"),
				"/var/snap/k8s/common/args/etcd":      "--data-dir=/var/snap/k8s/common/var/lib/etcd/data\n",
			},
			dir: "/var/snap/k8s/common/var/lib/etcd/data",
			server: native("/system.slice/snap.k8s.etcd.service", "/snap/k8s/1/bin/etcd",
				"--data-dir=/var/snap/k8s/common/var/lib/etcd/data"),
			running: "systemd unit snap.k8s.etcd.service",
			stopped: "data directory /var/snap/k8s/common/var/lib/etcd/data of " +
				"systemd unit snap.k8s.etcd.service, with no server running on it",
		},
		// pingcap/tiup, embed/templates: the placement driver of TiDB contains etcd.
		"TiDB": {
			files: map[string]string{
				systemUnits + "pd-2379.service":          serviceOf("ExecStart=/tidb-deploy/pd-2379/scripts/run_pd.sh"),
				"/tidb-deploy/pd-2379/scripts/run_pd.sh": "exec bin/pd-server --data-dir=\"/tidb-data/pd-2379\"\n",
			},
			dir: "/tidb-data/pd-2379", server: pd, running: "systemd unit pd-2379.service",
		},
		// Azure/aks-engine, parts/k8s/cloud-init/artifacts/etcd.service.
		"aks-engine": {
			files: map[string]string{
				systemUnits + "etcd.service": serviceOf("EnvironmentFile=-/etc/default/%p", "ExecStart=/usr/bin/etcd $DAEMON_ARGS"),
				"/etc/default/etcd":          "DAEMON_ARGS=--name n1 --data-dir \"/var/lib/etcddisk\"\n",
			},
			dir:     "/var/lib/etcddisk",
			server:  native("/system.slice/etcd.service", "/usr/bin/etcd", "--data-dir /var/lib/etcddisk"),
			running: "systemd unit etcd.service",
			stopped: "data directory /var/lib/etcddisk of systemd unit etcd.service, with no server running on it",
		},
		// cloudfoundry-incubator/etcd-release.
		"BOSH": {
			files:   map[string]string{"/var/vcap/monit/job/0001_etcd.monitrc": "check process etcd\n"},
			dir:     "/var/vcap/store/etcd",
			server:  native("/system.slice/runit.service", "/var/vcap/packages/etcd/etcd", "--data-dir /var/vcap/store/etcd"),
			running: "systemd unit runit.service",
		},
	}
}

// TestPublicLayouts lays out each host with its server, and without. A host with a stopped member
// is never without etcd, and holds it if its data can be found.
func TestPublicLayouts(t *testing.T) {
	const segment = "/member/wal/0000000000000000-0000000000000000.wal"
	head := walHead(t)
	ref := *parseWALHead(head)
	parts := fakehost.Parts{Member: t.TempDir(), Addresses: strings.NewReplacer()}
	hosttest.Add(t, parts.Member, hosttest.Files{segment: string(head), "/member/snap/db": "x"})
	for name, l := range publicLayouts() {
		t.Run(name, func(t *testing.T) {
			host := fakehost.Layout{Files: l.files, Links: l.links, Members: []string{l.dir}}
			host.Processes = []fakehost.Process{l.server}
			found := layOutHost(t, host, parts).Found
			require.Len(t, found, 1)
			require.Equal(t, l.running, found[0].Where)
			require.Equal(t, &ref, found[0].Stored)
			require.Equal(t, 812, found[0].PID)

			host.Processes = nil
			findings := layOutHost(t, host, parts)
			if l.stopped != "" {
				require.Empty(t, findings.Unknown)
				require.Len(t, findings.Found, 1)
				require.Equal(t, l.stopped, findings.Found[0].Where)
			} else if !l.isInLayer {
				require.Empty(t, findings.Found)
				require.Equal(t, l.dir, findings.Data[0].Dir)
				require.Equal(t, ref, findings.Data[0].Ref)
			}
			what := strings.Join(findings.Unknown, " ")
			for _, data := range findings.Data {
				what += data.Starter
			}
			require.Contains(t, what, l.opaque)
			want := presence.MemberPresent
			if l.isInLayer {
				want = presence.MembershipUnknown
			}
			in := presence.Inputs{ClustersKnown: true, Announced: []evidence.MemberRef{ref}}
			require.Equal(t, want, presence.Assess(findings, in).Membership)
		})
	}
}

// layOutHost lays out a host, and returns what is found there after a search of its disks.
func layOutHost(t *testing.T, l fakehost.Layout, parts fakehost.Parts) evidence.Scan {
	t.Helper()
	root := t.TempDir()
	l.LayOut(t, root, parts)
	l.ShowProcesses(t, root, parts.Addresses)
	return detectWithSearch(t, root)
}
