package fakehost

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/testenv/pki"
)

// commLength is the kernel's limit for the name of a process.
const commLength = 15

// ShowProcesses writes the layout's processes and their locks, process 1 and a boot ID to the
// host's /proc. Process 1 has the host's own mounts.
func (l Layout) ShowProcesses(root string, addresses *strings.Replacer) error {
	const hostMounts = "22 1 253:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n" +
		"23 22 0:21 / /proc rw shared:2 - proc proc rw\n"
	first := Process{PID: 1, Exe: "/usr/lib/systemd/systemd", Args: "/sbin/init", Cgroup: "/init.scope"}
	err := pki.WriteFile(filepath.Join(root, BootIDFile), []byte("8a5cd4d8-2c49-4f5e-9d4e-6a1b35a3b9f1\n"), 0o444)
	err = errors.Join(err, l.showProcess(root, first, hostMounts, addresses))
	locks := ""
	for _, p := range l.Processes {
		locks += fmt.Sprintf("1: FLOCK  ADVISORY  WRITE %d fd:01:1 0 EOF\n", p.PID)
		mounts := hostMounts
		if p.Root != "" {
			mounts = "900 800 0:52 / / rw,relatime - overlay overlay rw\n"
			for i, inside := range slices.Sorted(maps.Keys(p.Mounts)) {
				mounts += fmt.Sprintf("%d 900 253:1 %s %s rw,relatime - ext4 /dev/vda1 rw\n",
					901+i, p.Mounts[inside], inside)
			}
		}
		err = errors.Join(err, l.showProcess(root, p, mounts, addresses))
	}
	return errors.Join(err, pki.WriteFile(filepath.Join(root, "proc/locks"), []byte(locks), 0o444))
}

// HideProcesses removes the layout's processes from the host's /proc.
func (l Layout) HideProcesses(root string) error {
	var err error
	for _, p := range l.Processes {
		err = errors.Join(err, os.RemoveAll(procDir(root, p.PID)))
	}
	return err
}

func procDir(root string, pid int) string { return filepath.Join(root, "proc", strconv.Itoa(pid)) }

func (l Layout) showProcess(root string, p Process, mounts string, addresses *strings.Replacer) error {
	env, err := l.environment(root, p, addresses)
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
		if err := pki.WriteFile(filepath.Join(dir, name), []byte(content), 0o444); err != nil {
			return err
		}
	}
	if p.Database != "" {
		err := os.MkdirAll(filepath.Join(dir, "fd"), 0o755)
		for i, file := range []string{"snap/db", "wal/0000000000000000-0000000000000000.wal"} {
			link := filepath.Join(dir, "fd", strconv.Itoa(8+i))
			err = errors.Join(err, os.Symlink(path.Join(p.Database, "member", file), link))
		}
		if err != nil {
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

// environment returns the variables of a process, including those of its environment file.
func (l Layout) environment(root string, p Process, addresses *strings.Replacer) ([]string, error) {
	var env []string
	if p.EnvFile != "" {
		text, err := os.ReadFile(l.resolve(root, p.EnvFile))
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
	for _, name := range slices.Sorted(maps.Keys(p.Env)) {
		env = append(env, name+"="+addresses.Replace(p.Env[name]))
	}
	return env, nil
}

// ServerCommand returns the arguments and variables for a real etcd that stands for a process
// of the layout. They are the layout's own, with all paths below root.
func (l Layout) ServerCommand(root string, p Process, addresses *strings.Replacer) (args, env []string, err error) {
	command := p.Command
	if command == "" {
		_, command, _ = strings.Cut(p.Args, " ")
	}
	if env, err = l.environment(root, p, addresses); err != nil {
		return nil, nil, err
	}
	containerRoot := filepath.Join(root, p.Root)
	for i := range env {
		env[i] = prefixPaths(env[i], containerRoot)
	}
	for _, word := range strings.Fields(addresses.Replace(command)) {
		name, file, hasValue := strings.Cut(word, "=")
		if !hasValue || name != "--config-file" {
			args = append(args, prefixPaths(word, containerRoot))
			continue
		}
		// The host keeps its file. etcd gets a copy with paths below root.
		text, err := os.ReadFile(filepath.Join(containerRoot, file))
		if err != nil {
			return nil, nil, err
		}
		copied := filepath.Join(root, "launched.yaml")
		if err := os.WriteFile(copied, []byte(prefixPaths(string(text), containerRoot)), 0o600); err != nil {
			return nil, nil, err
		}
		args = append(args, name+"="+copied)
	}
	return args, env, nil
}

// prefixPaths puts root before each absolute path in text.
func prefixPaths(text, root string) string {
	absolute := regexp.MustCompile(`(^|[\s=,:"'])(/(?:etc|var|system|data|srv|opt|rootfs)/)`)
	return absolute.ReplaceAllString(text, "${1}"+root+"${2}")
}
