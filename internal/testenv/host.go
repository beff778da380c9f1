package testenv

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// HostLayout is a host as a distribution of etcd leaves it, or one with something on it that is easily taken for etcd: a
// file of internal/host/testdata/hosts. All paths are the host's own.
type HostLayout struct {
	// About says what the host is, and where its parts are known from.
	About string
	// Files are contents by path, Links the targets of symbolic links.
	Files, Links map[string]string
	// Certificates are PEM files by path: ca, server or client. The last two come with their key beside them.
	Certificates map[string]string
	// Members are data directories of members.
	Members []string
	// Processes are shown by the process table.
	Processes []HostProcess
	// Running is what is to be found while the processes run, Stopped when they do not.
	Running, Stopped []HostSighting
	// Notes are parts of what is to be said of things that are no etcd server.
	Notes []string
}

// HostProcess is a process as a process table shows it.
type HostProcess struct {
	PID int
	// Exe is the program. Comm is its name, by default the last part of Exe.
	Exe, Comm string
	// Args is the command line, its words separated by spaces.
	Args string
	// Env are variables; EnvFile is a file of the host with more of them.
	Env     map[string]string
	EnvFile string
	// Cgroup is the path of its control group. Cwd is /, if empty.
	Cgroup, Cwd string
	// Root is the root directory that the process sees, as a directory of the host. Empty means the host's own.
	Root string
	// Mounts are the host's directories that it sees, by the path at which it sees them. Only with Root.
	Mounts map[string]string
	// Serves says that it is an etcd server: Command are its arguments if Args are those of a program around it.
	Serves  bool
	Command string
}

// HostSighting is what is expected of one etcd server on a host.
type HostSighting struct {
	Source, Where, Unit string
	InCluster           bool
	Name, DataDir, File string
	Listen, Advertise   []string
	Peer                []string
	Credentials         []HostCredential
}

// HostCredential is a client certificate on a host, in the order in which they are tried.
type HostCredential struct{ Origin, CA, Cert string }

// HostLayouts reads all of them, by name.
func HostLayouts() (map[string]HostLayout, error) {
	root, err := RepositoryRoot()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(root, "internal/host/testdata/hosts")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("reading the host layouts: %w", err)
	}
	all := map[string]HostLayout{}
	for _, entry := range entries {
		text, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, fmt.Errorf("reading a host layout: %w", err)
		}
		var l HostLayout
		if err := yaml.Unmarshal(text, &l, yaml.DisallowUnknownFields); err != nil {
			return nil, fmt.Errorf("reading the host layout %s: %w", entry.Name(), err)
		}
		all[strings.TrimSuffix(entry.Name(), ".yaml")] = l
	}
	return all, nil
}

// HostParts are what a layout is filled with.
type HostParts struct {
	// CA signs the certificates, Hosts are the names in them.
	CA    *CA
	Hosts []string
	// Member is a data directory that etcd has left, to be copied to each of the layout's; empty for none.
	Member string
	// Addresses are put in the place of addresses in files, arguments and variables.
	Addresses *strings.Replacer
}

// LayOut makes the host's files under root, without its processes.
func (l HostLayout) LayOut(root string, parts HostParts) error {
	for _, p := range l.Processes {
		for inside, outside := range p.Mounts {
			if err := bind(root, outside, path.Join(p.Root, inside)); err != nil {
				return fmt.Errorf("mounting %s: %w", outside, err)
			}
		}
	}
	for name, content := range l.Files {
		if err := writeFile(l.at(root, name), []byte(parts.Addresses.Replace(content)), fileMode(name)); err != nil {
			return fmt.Errorf("laying out %s: %w", name, err)
		}
	}
	for name, target := range l.Links {
		at := l.at(root, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			return fmt.Errorf("laying out %s: %w", name, err)
		}
		if err := os.Symlink(target, at); err != nil {
			return fmt.Errorf("laying out %s: %w", name, err)
		}
	}
	for name, role := range l.Certificates {
		if err := l.certify(root, name, role, parts); err != nil {
			return fmt.Errorf("laying out %s: %w", name, err)
		}
	}
	for _, dir := range l.Members {
		if err := os.MkdirAll(l.at(root, dir), 0o700); err != nil {
			return fmt.Errorf("laying out %s: %w", dir, err)
		}
		if parts.Member == "" {
			continue
		}
		if err := copySparse(parts.Member, l.at(root, dir)); err != nil {
			return fmt.Errorf("laying out the member in %s: %w", dir, err)
		}
	}
	return nil
}

// bind lets a directory of a container be one of the host too, as a bind mount does. The directory itself lies in the
// container, where no link may lead outside, and the host has a link to it.
func bind(root, outside, inside string) error {
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

// at returns where a path of the host really lies.
func (l HostLayout) at(root, name string) string {
	if at, err := filepath.EvalSymlinks(filepath.Join(root, path.Dir(name))); err == nil {
		return filepath.Join(at, path.Base(name))
	}
	return filepath.Join(root, name)
}

// HostPath returns the host's name for where a path of it really lies, which may be a mount in a container.
func (l HostLayout) HostPath(root, at string) string {
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

func (l HostLayout) certify(root, name, role string, parts HostParts) error {
	at := l.at(root, name)
	if role == "ca" {
		return parts.CA.Write(at)
	}
	if !slices.Contains([]string{"server", "client"}, role) {
		return fmt.Errorf("%q is no kind of certificate", role)
	}
	pair, err := parts.CA.Issue(CertOptions{CommonName: role, Hosts: parts.Hosts, Server: role == "server", Client: true})
	if err != nil {
		return err
	}
	key := strings.TrimSuffix(at, ".crt") + ".key"
	if pem, ok := strings.CutSuffix(at, ".pem"); ok {
		key = pem + "-key.pem"
	}
	return pair.Write(at, key)
}
