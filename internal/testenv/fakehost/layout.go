// Package fakehost lays out directories as hosts of distributions that run etcd: files,
// certificates, data directories and a process table.
package fakehost

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/internal/testenv/pki"
	"github.com/holdfast-dev/holdfast/internal/testenv/process"
)

// BootIDFile is the path of the boot ID on a host.
const BootIDFile = "/proc/sys/kernel/random/boot_id"

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
func Layouts() (map[string]Layout, error) {
	root, err := process.RepositoryRoot()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(root, "internal/node/etcddetect/testdata/hosts")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("reading the host layouts: %w", err)
	}
	all := map[string]Layout{}
	for _, entry := range entries {
		text, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, fmt.Errorf("reading a host layout: %w", err)
		}
		var l Layout
		if err := yaml.Unmarshal(text, &l, yaml.DisallowUnknownFields); err != nil {
			return nil, fmt.Errorf("reading the host layout %s: %w", entry.Name(), err)
		}
		all[strings.TrimSuffix(entry.Name(), ".yaml")] = l
	}
	return all, nil
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
func (l Layout) LayOut(root string, parts Parts) error {
	for _, p := range l.Processes {
		for inside, outside := range p.Mounts {
			if err := bindMount(root, outside, path.Join(p.Root, inside)); err != nil {
				return fmt.Errorf("mounting %s: %w", outside, err)
			}
		}
	}
	for name, content := range l.Files {
		content = parts.Addresses.Replace(content)
		if err := pki.WriteFile(l.resolve(root, name), []byte(content), fileMode(name)); err != nil {
			return fmt.Errorf("laying out %s: %w", name, err)
		}
	}
	for name, target := range l.Links {
		at := l.resolve(root, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			return fmt.Errorf("laying out %s: %w", name, err)
		}
		if err := os.Symlink(target, at); err != nil {
			return fmt.Errorf("laying out %s: %w", name, err)
		}
	}
	for name, role := range l.Certificates {
		if err := l.writeCertificate(root, name, role, parts); err != nil {
			return fmt.Errorf("laying out %s: %w", name, err)
		}
	}
	for _, dir := range l.Members {
		if err := os.MkdirAll(l.resolve(root, dir), 0o700); err != nil {
			return fmt.Errorf("laying out %s: %w", dir, err)
		}
		if parts.Member == "" {
			continue
		}
		if err := os.CopyFS(l.resolve(root, dir), os.DirFS(parts.Member)); err != nil {
			return fmt.Errorf("laying out the member in %s: %w", dir, err)
		}
	}
	return nil
}

// bindMount imitates a bind mount of a host's directory into a container. The directory itself
// is in the container, where links must not lead outside; the host has a link to it.
func bindMount(root, outside, inside string) error {
	link := filepath.Join(root, outside)
	if err := os.MkdirAll(filepath.Join(root, inside), 0o755); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		return err
	}
	target, err := filepath.Rel(filepath.Dir(link), filepath.Join(root, inside))
	if err != nil {
		return err
	}
	return os.Symlink(target, link)
}

// resolve returns the real location of a path of the host.
func (l Layout) resolve(root, name string) string {
	if at, err := filepath.EvalSymlinks(filepath.Join(root, path.Dir(name))); err == nil {
		return filepath.Join(at, path.Base(name))
	}
	return filepath.Join(root, name)
}

// HostPath is the inverse of resolve: it returns the host's path of a real location, which may
// be a mount in a container.
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

func fileMode(name string) os.FileMode {
	if path.Base(path.Dir(name)) == "bin" {
		return 0o755
	}
	return 0o644
}

func (l Layout) writeCertificate(root, name, role string, parts Parts) error {
	at := l.resolve(root, name)
	if role == "ca" {
		return parts.CA.Write(at)
	}
	if !slices.Contains([]string{"server", "client"}, role) {
		return fmt.Errorf("unknown certificate role %q", role)
	}
	opts := pki.CertOptions{CommonName: role, Hosts: parts.Hosts, Server: role == "server", Client: true}
	pair, err := parts.CA.Issue(opts)
	if err != nil {
		return err
	}
	key := strings.TrimSuffix(at, ".crt") + ".key"
	if pem, ok := strings.CutSuffix(at, ".pem"); ok {
		key = pem + "-key.pem"
	}
	return pair.Write(at, key)
}
