package testenv

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// commLength is how much the kernel keeps of a process's name.
const commLength = 15

// ShowProcesses puts the processes into the host's process table, with the first of all, which has the host's own
// mounts, and a boot ID.
func (l HostLayout) ShowProcesses(root string, addresses *strings.Replacer) error {
	const hostMounts = "22 1 253:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n23 22 0:21 / /proc rw shared:2 - proc proc rw\n"
	first := HostProcess{PID: 1, Exe: "/usr/lib/systemd/systemd", Args: "/sbin/init", Cgroup: "/init.scope"}
	err := writeFile(filepath.Join(root, bootFile), []byte("8a5cd4d8-2c49-4f5e-9d4e-6a1b35a3b9f1\n"), 0o444)
	err = errors.Join(err, l.show(root, first, hostMounts, addresses))
	for _, p := range l.Processes {
		mounts := hostMounts
		if p.Root != "" {
			mounts = "900 800 0:52 / / rw,relatime - overlay overlay rw\n"
			for i, inside := range sortedKeys(p.Mounts) {
				mounts += fmt.Sprintf("%d 900 253:1 %s %s rw,relatime - ext4 /dev/vda1 rw\n", 901+i, p.Mounts[inside], inside)
			}
		}
		err = errors.Join(err, l.show(root, p, mounts, addresses))
	}
	return err
}

// HideProcesses takes the layout's processes out of the process table: they have ended.
func (l HostLayout) HideProcesses(root string) error {
	var err error
	for _, p := range l.Processes {
		err = errors.Join(err, os.RemoveAll(procDir(root, p.PID)))
	}
	return err
}

func procDir(root string, pid int) string { return filepath.Join(root, "proc", strconv.Itoa(pid)) }

func (l HostLayout) show(root string, p HostProcess, mounts string, addresses *strings.Replacer) error {
	env, err := l.environ(root, p, addresses)
	if err != nil {
		return err
	}
	comm := p.Comm
	if comm == "" {
		comm = path.Base(p.Exe)
	}
	dir := procDir(root, p.PID)
	for name, content := range map[string]string{
		"comm":      comm[:min(len(comm), commLength)] + "\n",
		"cmdline":   strings.Join(append(strings.Fields(addresses.Replace(p.Args)), ""), "\x00"),
		"environ":   strings.Join(append(env, ""), "\x00"),
		"cgroup":    "0::" + p.Cgroup + "\n",
		"mountinfo": mounts,
	} {
		if err := writeFile(filepath.Join(dir, name), []byte(content), 0o444); err != nil {
			return err
		}
	}
	cwd := path.Join("/", p.Cwd)
	return errors.Join(
		os.Symlink(p.Exe, filepath.Join(dir, "exe")),
		os.Symlink(cwd, filepath.Join(dir, "cwd")),
		os.Symlink(filepath.Join(root, p.Root), filepath.Join(dir, "root")),
	)
}

// environ are the process's variables, those of its environment file included.
func (l HostLayout) environ(root string, p HostProcess, addresses *strings.Replacer) ([]string, error) {
	var env []string
	if p.EnvFile != "" {
		text, err := os.ReadFile(l.at(root, p.EnvFile))
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSpace(line)
			if name, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
				env = append(env, name+"="+strings.Trim(value, `"`))
			}
		}
	}
	for _, name := range sortedKeys(p.Env) {
		env = append(env, name+"="+addresses.Replace(p.Env[name]))
	}
	return env, nil
}

// ServerCommand returns the arguments and variables with which the process of a layout is really started on the host
// under root: the layout's own, with the paths that lead to where its files lie. What etcd makes of them is etcd's.
func (l HostLayout) ServerCommand(root string, p HostProcess, addresses *strings.Replacer) (args, env []string, err error) {
	own := p.Command
	if own == "" {
		_, own, _ = strings.Cut(p.Args, " ")
	}
	if env, err = l.environ(root, p, addresses); err != nil {
		return nil, nil, err
	}
	there := filepath.Join(root, p.Root)
	for i := range env {
		env[i] = rooted(env[i], there)
	}
	for _, word := range strings.Fields(addresses.Replace(own)) {
		name, file, told := strings.Cut(word, "=")
		if !told || name != "--config-file" {
			args = append(args, rooted(word, there))
			continue
		}
		// The file itself stays as the host has it; etcd gets a copy with paths that lead there.
		text, err := os.ReadFile(filepath.Join(there, file))
		if err != nil {
			return nil, nil, err
		}
		copied := filepath.Join(root, "launched.yaml")
		if err := os.WriteFile(copied, []byte(rooted(string(text), there)), 0o600); err != nil {
			return nil, nil, err
		}
		args = append(args, name+"="+copied)
	}
	return args, env, nil
}

// rooted puts root before each absolute path in text.
func rooted(text, root string) string {
	absolute := regexp.MustCompile(`(^|[\s=,:"'])(/(?:etc|var|system|data|srv)/)`)
	return absolute.ReplaceAllString(text, "${1}"+root+"${2}")
}

// copySparse copies a directory. A write-ahead log is 64 MB of which most was never written.
func copySparse(from, to string) error {
	return filepath.WalkDir(from, func(at string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rest, err := filepath.Rel(from, at)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, rest), 0o700)
		}
		return copyFile(at, filepath.Join(to, rest))
	})
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // nothing was written
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	block, nothing := make([]byte, 1<<20), make([]byte, 1<<20)
	var size int64
	for err == nil {
		var n int
		n, err = io.ReadFull(in, block)
		if !bytes.Equal(block[:n], nothing[:n]) {
			if _, failed := out.WriteAt(block[:n], size); failed != nil {
				return errors.Join(failed, out.Close())
			}
		}
		size += int64(n)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return errors.Join(err, out.Truncate(size), out.Close())
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
