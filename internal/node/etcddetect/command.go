package etcddetect

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

// coreosWrapper is the program with which CoreOS and Flatcar start etcd in a container. It
// mounts ETCD_SSL_DIR where etcd looks up public authorities, and the data directory at its
// own path.
const coreosWrapper = "etcd-wrapper"

// runsServer reports whether the words of a command contain the program of etcd, or an image of
// it. A path that merely ends in etcd, such as the data directory, is neither.
func runsServer(words []string) bool {
	first := path.Base(words[0])
	startsImage := isEngine(first) && startsContainer(words) && !namesTool(words)
	for i, word := range words {
		base, _, _ := strings.Cut(path.Base(word), "@")
		base, _, _ = strings.Cut(base, ":")
		isImage := startsImage && strings.ContainsAny(word, "/:@") && !path.IsAbs(word) && !strings.HasPrefix(word, "-")
		isProgram := i == 0 || strings.Contains(word, "/bin/") || strings.Contains(word, "/sbin/")
		if !isServerName(base) && base != coreosWrapper || !isImage && !isProgram || isOtherMode(words[i+1:]) {
			continue
		}
		flags := parseFlags(words[i+1:])
		hasFlag := flags["data-dir"]+flags["config-file"]+flags["name"] != ""
		if i == 0 || hasFlag || !startsNone(words) {
			return true
		}
	}
	return false
}

// isOpaque reports whether a command may start a server that it does not show: it starts a
// container that was made before, or a program that may start any other one. That is each program
// but those of the system that are known to start none.
func isOpaque(words []string) bool {
	base := path.Base(words[0])
	switch {
	case namesTool(words):
		return false
	case path.Ext(base) == ".service": // started by a timer; with etcd in its name it is a starter too
		return !strings.Contains(base, "etcd")
	case isEngine(base) || strings.Contains(base, "compose"):
		return startsContainer(words)
	}
	return !startsNone(words)
}

// startsNone reports whether a command is a program of the system that is known to start no other
// one. find, tar and ip can with an option or a word for it.
func startsNone(words []string) bool {
	starts := func(word string) bool { return containsAny(word, "exec", "-ok", "command", "script") }
	isOfSystem := slices.Contains([]string{"/bin", "/sbin", "/usr/bin", "/usr/sbin"}, path.Dir(words[0]))
	return isOfSystem && !slices.ContainsFunc(words[1:], starts) && slices.Contains([]string{
		"true", "false", "test", "sleep", "echo", "printf", "cat", "logger", "mkdir", "rm", "cp", "mv", "ln", "touch",
		"install", "chown", "chmod", "chattr", "setcap", "restorecon", "setfacl", "find", "tar", "gzip", "sha256sum",
		"rsync", "scp", "rclone", "restic", "curl", "wget", "aws", "gsutil", "kubectl", "journalctl", "logrotate", "openssl",
		"mount", "umount", "mkfs.ext4", "mkfs.xfs", "wipefs", "fstrim", "sysctl", "ip", "iptables", "nft", "renice", "pkill",
		"kill", "systemd-tmpfiles", "update-ca-certificates",
	}, path.Base(words[0]))
}

func startsContainer(words []string) bool {
	return slices.ContainsFunc(words[1:], func(word string) bool {
		return slices.Contains([]string{"run", "start", "restart", "create", "up", "play", "deploy"}, word)
	})
}

// namesTool reports whether a command is that of a client of etcd or a tool for it. Options and
// their values, and the volumes of containers, can have the same words.
func namesTool(words []string) bool {
	for i, word := range words {
		isOption := strings.HasPrefix(word, "-") || strings.Contains(word, ":/") || i > 0 && takesValue(words[i-1])
		if containsAny(word, "etcdctl", "etcdutl") || !isOption && containsAny(word, "systemctl", "backup", "snapshot",
			"defrag", "keeper", "browser", "exporter", "metrics", "gateway", "grpc-proxy") {
			return true
		}
	}
	return false
}

// takesValue reports whether a word is an option whose value follows, other than the command of -c
// and --exec.
func takesValue(word string) bool {
	return strings.HasPrefix(word, "-") && word != "--" && !strings.Contains(word, "=") && !strings.HasSuffix(word, "c")
}

func isShell(base string) bool {
	return slices.Contains([]string{"sh", "bash", "dash", "ash", "zsh", "ksh", "busybox", "env"}, base)
}

// isOtherMode reports whether the arguments make etcd another program than a server
// (etcdmain/main.go).
func isOtherMode(args []string) bool {
	return len(args) > 0 && (args[0] == "gateway" || args[0] == "grpc-proxy")
}

// isServerName reports whether a program of this name is etcd. CoreOS had etcd2 next to the
// first version. A release that is unpacked by hand, or one of several versions, is
// etcd-v3.5.12 or etcd-v3.5.12-linux-amd64. Any other word after the name makes another
// program: etcdctl, etcd-backup, etcd_exporter.
func isServerName(name string) bool {
	return strings.HasPrefix(name, "etcd") && serverPattern.MatchString(name) // Most have others.
}

// serverPattern matches etcd with versions (v3, 3.5.12, rc.1, k3s1) and platforms.
var serverPattern = regexp.MustCompile(`^etcd(?:[-_+]*(?:` +
	`(?:(?:v|rc|alpha|beta|k3s)\.?)?[0-9][0-9.]*|linux|amd64|x86|arm64|arm|aarch64|ppc64le|s390x)(?:[-_+]|$))*[-_+]*$`)

func isEngine(base string) bool {
	return slices.Contains([]string{"docker", "podman", "nerdctl", "ctr", "rkt", "crictl"}, base)
}
