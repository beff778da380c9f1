package etcddetect

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
)

// TestContainers has containers that docker and podman have made, and no data of etcd that can be
// found.
func TestContainers(t *testing.T) {
	const id = hosttest.ContainerID
	docker := func(text string) hosttest.Files {
		return hosttest.Files{"/var/lib/docker/containers/" + id + "/config.v2.json": text}
	}
	podman := func(storage, text string) hosttest.Files {
		return hosttest.Files{storage + "/overlay-containers/" + id + "/userdata/config.json": text}
	}
	for name, c := range map[string]struct {
		files   hosttest.Files
		unknown string
	}{
		"image": {docker(`{"Name":"/jolly","Path":"/run.sh","Config":{"Image":"bitnami/etcd:3.5"}}`), "container jolly"},
		"digest": {
			docker(`{"Name":"/a","Path":"/run.sh","Config":{"Image":"x/etcd@sha256:00"}}`), "container a may start etcd",
		},
		"name":    {docker(`{"Name":"/x-etcd-1","Path":"/run.sh","Config":{"Image":"x/y"}}`), "container x-etcd-1"},
		"program": {docker(`{"Name":"/a","Path":"/usr/bin/tini","Args":["--","/usr/bin/etcd","--name","b"]}`), "container a"},
		"directory of its scripts": {
			docker(`{"Name":"/a","Path":"/opt/scripts/etcd/entrypoint.sh"}`), "container a",
		},
		"another root directory": { // without overlay2
			hosttest.Files{
				"/srv/engine/containers/" + id + "/config.v2.json": `{"Name":"/etcd","Path":"x"}`,
			}, "container etcd",
		},
		"podman": {
			podman("/var/lib/containers/storage", `{"process":{"args":["etcd","--data-dir","/d"]}}`), "container " + id,
		},
		"podman of a user": {
			podman("/home/core/.local/share/containers/storage", `{"process":{"args":["/usr/bin/etcd"]}}`), "container " + id,
		},
		"damaged":    {docker(`{"Name":`), "the container in /var/lib/docker/containers/" + id + "/config.v2.json: "},
		"unreadable": {docker(hosttest.Loop), id + "/config.v2.json: too many levels"},
		"pod": {
			docker(`{"Name":"/k8s_etcd_x","Path":"etcd","Config":{"Labels":{"io.kubernetes.pod.uid":"1"}}}`), "",
		},
		"pod of CRI-O": {podman("/var/lib/containers/storage",
			`{"process":{"args":["etcd"]},"annotations":{"x":"{\"io.kubernetes.pod.uid\":\"1\"}"}}`), ""},
		"client":        {docker(`{"Name":"/a","Path":"etcdctl","Args":["get"],"Config":{"Image":"x/etcd:v3"}}`), ""},
		"backup":        {docker(`{"Name":"/etcd-backup","Path":"/run.sh","Config":{"Image":"x/etcd:v3"}}`), ""},
		"gateway":       {docker(`{"Name":"/a","Path":"etcd","Args":["gateway"],"Config":{"Image":"x/etcd:v3"}}`), ""},
		"never started": {podman("/var/lib/containers/storage", `{}`), ""},
		"nerdctl": {hosttest.Files{
			"/var/lib/nerdctl/1/names/default/etcd":                                                         id,
			"/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/1/fs/etcd/member/snap/db": "x",
		}, ""}, // docs/systems/README.md names this limit
		"another": {docker(`{"Name":"/nginx","Path":"nginx","Config":{"Image":"nginx:1"}}`), ""},
	} {
		t.Run(name, func(t *testing.T) {
			findings := detectWithSearch(t, hosttest.New(t, c.files))
			require.Empty(t, findings.Found)
			if c.unknown == "" {
				require.Empty(t, findings.Unknown)
				return
			}
			require.Len(t, findings.Unknown, 1)
			require.Contains(t, findings.Unknown[0], c.unknown)
		})
	}
}

// TestContainerThatRuns has a server whose unit and whose container are known.
func TestContainerThatRuns(t *testing.T) {
	const id = hosttest.ContainerID
	root := hosttest.New(t, hosttest.Files{
		etcdUnit: serviceOf("ExecStart=/usr/bin/docker run --name etcd -v /data/etcd:/d quay.io/coreos/etcd --data-dir=/d"),
		"/var/lib/docker/containers/" + id + "/config.v2.json": `{"Name":"/etcd","Path":"etcd"}`,
		"/data/etcd/member/snap/db":                            "x",
	})
	hosttest.AddProcess(t, root, 812, hosttest.Process{
		Line: []string{"etcd", "--data-dir=/data/etcd"}, Cgroup: "/system.slice/docker-" + id + ".scope",
	})
	findings := detectWithSearch(t, root)
	require.Empty(t, findings.Unknown)
	require.Len(t, findings.Found, 1)
	require.Equal(t, "etcd.service", findings.Found[0].Unit)
	hosttest.Remove(t, root, "/proc/812")
	findings = detectWithSearch(t, root)
	require.Len(t, findings.Found, 1, "the unit names the data")
	require.Len(t, findings.Unknown, 1, "and the container may have other data")
	hosttest.Add(t, root, hosttest.Files{"/var/lib/docker/containers/" + id + "/config.v2.json": `{"Name":"/etcd",` +
		`"Path":"etcd","MountPoints":{"/d":{"Source":"/data/etcd","Destination":"/d"}}}`})
	require.Empty(t, detectWithSearch(t, root).Unknown, "and so does the container")
}

// TestContainerBesideOldData has old data, which is not that of the container.
func TestContainerBesideOldData(t *testing.T) {
	root := hosttest.New(t, hosttest.Files{
		"/var/lib/docker/containers/1/config.v2.json":               `{"Name":"/etcd","Path":"etcd"}`,
		"/srv/old/member/wal/0000000000000000-0000000000000000.wal": string(walHead(t)),
	})
	findings := detectWithSearch(t, root)
	require.Len(t, findings.Data, 1)
	require.Empty(t, findings.Data[0].Starter)
	require.Len(t, findings.Unknown, 1)
	require.Contains(t, findings.Unknown[0], "container etcd may start etcd")
}

// TestManyContainers has more containers than other directories are read of, as CRI-O can.
func TestManyContainers(t *testing.T) {
	root := hosttest.New(t, hosttest.Files{
		"/var/lib/docker/containers/0/config.v2.json": `{"Name":"/etcd","Path":"etcd"}`,
	})
	for i := range 4200 {
		require.NoError(t, os.Mkdir(filepath.Join(root, "var/lib/docker/containers", strconv.Itoa(i+1)), 0o700))
	}
	names, err := os.Open(filepath.Join(root, "var/lib/docker/containers"))
	require.NoError(t, err)
	defer func() { require.NoError(t, names.Close()) }()
	last, err := names.Readdirnames(-1)
	require.NoError(t, err)
	at := filepath.Join(root, "var/lib/docker/containers", last[len(last)-1])
	const config = `{"Name":"/last-etcd","Path":"etcd"}`
	require.NoError(t, os.WriteFile(filepath.Join(at, "config.v2.json"), []byte(config), 0o600))
	require.Contains(t, strings.Join(detectWithSearch(t, root).Unknown, " "), "container last-etcd may start etcd")
}
