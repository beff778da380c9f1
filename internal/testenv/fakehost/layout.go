// Package fakehost lays out directories as hosts of distributions that run etcd: files,
// certificates, data directories and a process table.
package fakehost

import (
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
	"github.com/holdfast-dev/holdfast/internal/testenv/pki"
	"github.com/holdfast-dev/holdfast/internal/testenv/process"
)

// A Layout describes a host: a host with etcd, or a host with something that resembles etcd.
// Each is a file of internal/node/etcddetect/testdata/hosts. Paths are relative to the host's root.
type Layout struct {
	// About describes the host and the sources of its parts.
	About string
	// Files maps paths to contents. Links maps symbolic links to their targets.
	Files, Links map[string]string
	// Certificates maps paths of PEM files to a role: ca, server or client. A server or client
	// certificate has its key beside it.
	Certificates map[string]string
	// Members are the data directories of members.
	Members []string
	// Processes are the processes in the process table.
	Processes []Process
	// Running lists the servers to find while the processes run, Stopped those to find
	// otherwise.
	Running, Stopped []ExpectedServer
	// Notes are parts of the expected notes about things that are no etcd server.
	Notes []string
}

// A Process describes an entry of the process table.
type Process struct {
	PID int
	// Exe is the path of the program. Comm is the process name, by default the last element of
	// Exe.
	Exe, Comm string
	// Args is the command line, with words separated by spaces.
	Args string
	// Env are variables. EnvFile is a file of the host with more variables.
	Env     map[string]string
	EnvFile string
	// Cgroup is the path of the control group. Cwd is the working directory, by default /.
	Cgroup, Cwd string
	// Root is the root directory of the process, as a path on the host. If it is empty, the
	// process uses the host's root.
	Root string
	// Mounts maps paths that the process sees to directories of the host. It needs Root.
	Mounts map[string]string
	// Serves marks an etcd server. Command holds its arguments if Args belong to a wrapper
	// program.
	Serves  bool
	Command string
	// Database is the data directory whose database and log the process has open.
	Database string
}

// An ExpectedServer describes an etcd server that the agent must find on a host.
type ExpectedServer struct {
	Source, Where, Unit string
	InCluster           bool
	Name, DataDir, File string
	Listen, Advertise   []string
	Peer                []string
	Credentials         []ExpectedCredential
}

// An ExpectedCredential is a client certificate on a host. Credentials are listed in the order
// in which they are tried.
type ExpectedCredential struct{ Origin, CA, Cert string }

// Layouts reads all layouts and returns them by name.
func Layouts(t testing.TB) map[string]Layout {
	t.Helper()
	root, err := process.RepositoryRoot()
	require.NoError(t, err)
	files, err := filepath.Glob(filepath.Join(root, "internal/node/etcddetect/testdata/hosts/*.yaml"))
	require.NoError(t, err)
	all := map[string]Layout{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var l Layout
		require.NoError(t, yaml.Unmarshal(text, &l, yaml.DisallowUnknownFields), file)
		all[strings.TrimSuffix(filepath.Base(file), ".yaml")] = l
	}
	return all
}

// Parts are the generated parts of a layout.
type Parts struct {
	// CA signs the certificates. Hosts are the names in them.
	CA    *pki.CA
	Hosts []string
	// Member is a data directory to copy to each of Layout.Members. It may be empty.
	Member string
	// Addresses replaces addresses in files, arguments and variables.
	Addresses *strings.Replacer
}

// LayOut writes the host's files below root, without its processes.
func (l Layout) LayOut(t testing.TB, root string, parts Parts) {
	t.Helper()
	for _, p := range l.Processes {
		for inside, outside := range p.Mounts {
			bindMount(t, root, outside, path.Join(p.Root, inside))
		}
	}
	for name, content := range l.Files {
		hosttest.Add(t, root, hosttest.Files{name: parts.Addresses.Replace(content)})
	}
	for name, target := range l.Links {
		hosttest.Add(t, root, hosttest.Files{name: "-> " + target})
	}
	for name, role := range l.Certificates {
		writeCertificate(t, filepath.Join(root, name), role, parts)
	}
	for _, dir := range l.Members {
		at := filepath.Join(root, dir)
		require.NoError(t, os.MkdirAll(at, 0o700))
		if parts.Member != "" {
			require.NoError(t, os.CopyFS(at, os.DirFS(parts.Member)))
		}
	}
}

// bindMount imitates a bind mount of a host's directory into a container. The directory itself
// is in the container, where links must not lead outside; the host has a link to it.
func bindMount(t testing.TB, root, outside, inside string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Join(root, inside), 0o755))
	target, err := filepath.Rel(path.Dir(outside), inside)
	require.NoError(t, err)
	hosttest.Add(t, root, hosttest.Files{outside: "-> " + target})
}

// HostPath returns the host's path of a location below root, which may be a mount in a container.
func (l Layout) HostPath(root, at string) string {
	name := strings.TrimPrefix(at, root)
	for _, p := range l.Processes {
		for inside, outside := range p.Mounts {
			if rest, ok := strings.CutPrefix(name+"/", path.Join(p.Root, inside)+"/"); ok {
				name = path.Join(outside, rest)
			}
		}
	}
	return name
}

func writeCertificate(t testing.TB, at, role string, parts Parts) {
	t.Helper()
	if role == "ca" {
		require.NoError(t, parts.CA.Write(at))
		return
	}
	require.Contains(t, []string{"server", "client"}, role)
	opts := pki.CertOptions{CommonName: role, Hosts: parts.Hosts, Server: role == "server", Client: true}
	pair, err := parts.CA.Issue(opts)
	require.NoError(t, err)
	key := strings.TrimSuffix(at, ".crt") + ".key"
	if pem, ok := strings.CutSuffix(at, ".pem"); ok {
		key = pem + "-key.pem"
	}
	require.NoError(t, pair.Write(at, key))
}
