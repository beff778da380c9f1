package etcddetect

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
)

const (
	// maxTextSize is the size of the largest file that is read as a text, in bytes.
	maxTextSize = 64 << 10
	// maxTextDepth is how often a text may lead to another one: a unit to a script, and the script
	// to a file of settings.
	maxTextDepth = 2
	// maxMentions is the most paths that are followed from one starter, and maxTextsSize the size of
	// all texts that they lead to, in bytes. A wildcard can lead to files of any user, as in /tmp, so
	// the work for a text must not grow faster than its size.
	maxMentions  = 1000
	maxTextsSize = 256 << 10
)

// texts are the files that tell how a server is started. They are in many languages, and none of
// them is parsed: each absolute path in a text is a mention, and a mention leads to the data
// directory of a member, to another text, or nowhere.
type texts struct {
	scan *hostScan
	// files are the unit file and its drop-ins, or the files of the static pod or service.
	files []string
	// all are in the order in which they were read.
	all []text
	// dirs are the directories with the data of a member that the texts mention.
	dirs []memberDir
	// binds are the host's directories by the paths that a container or a unit has for them.
	binds map[string]string
	// unread are the reasons why a mention may lead to more than was found. skipped are those of
	// mentions that were not followed.
	unread, skipped []string
	seen            map[string]bool
	// isIsolated is set if a path in the texts may be one in a container, or in another root
	// directory.
	isIsolated bool
	// mentions is the number of paths that were followed, and size that of the bytes in the texts
	// among them.
	mentions, size int
}

// A text has the content of a file without its comments.
type text struct{ file, content string }

// A memberDir is a directory with the data of a member.
type memberDir struct {
	path string
	info fs.FileInfo
}

var (
	// mentionPattern matches an absolute path, and the character before it.
	mentionPattern = regexp.MustCompile("(?m)(?:^|[^\\w.})~*$/])(/[^\\s\"'`:;,=(){}\\[\\]<>|&\\\\$#!]+)")
	// blankPattern matches a path with blanks up to a quote or the end of the line.
	blankPattern = regexp.MustCompile(`[\s=:](/[^"'\n]* [^"'\n]*)`)
	// bindPattern matches a directory of the host and the path for it in a container or a unit.
	bindPattern = regexp.MustCompile(`(/[^\s"':=,]*):(/[^\s"':,]+)`)
	// commentPattern matches the comments of units, environment files, scripts and YAML.
	commentPattern = regexp.MustCompile(`(?m)^[ \t]*[#;].*\n?`)
)

// readTexts reads files, and what they mention. unit is the unit that these files are of, or "".
func (s *hostScan) readTexts(unit string, files ...string) *texts {
	t := &texts{scan: s, files: files, binds: map[string]string{}, seen: map[string]bool{}}
	for depth := 0; depth <= maxTextDepth; depth++ {
		mentions := dropIns(files)
		for _, file := range files {
			content := t.read(file)
			if depth > 0 && (strings.Contains(content, "\x00") || !t.hasRoom(len(content))) {
				continue // a program, or too much
			}
			if content = plainText(content); depth == 0 && unit != "" {
				content = expandSpecifiers(unit, content)
			}
			t.all = append(t.all, text{file, content})
			t.isIsolated = t.isIsolated || isolationPattern.MatchString(content)
			for _, found := range bindPattern.FindAllStringSubmatch(content, -1) {
				t.binds[path.Clean(found[2])] = found[1]
			}
			found := mentionsIn(content)
			mentions = append(append(mentions, found...), dropIns(found)...)
		}
		files = nil
		for _, mention := range mentions {
			files = append(files, t.follow(mention)...)
			files = append(files, t.follow(t.hostPath(mention))...)
		}
	}
	return t
}

// read returns the content of a file, or "".
func (t *texts) read(file string) string {
	t.seen[file] = true
	data, err := t.scan.root.ReadFile(file)
	if err != nil && !hostfs.IsAbsent(err) {
		t.addUnread(file, err)
	}
	return string(data)
}

// hasRoom reports whether a text of this size is read, and adds a reason if it is not.
func (t *texts) hasRoom(size int) bool {
	if t.size+size > maxTextsSize {
		t.skip(fmt.Sprintf("its files mention more than %d KiB of texts", maxTextsSize>>10))
		return false
	}
	t.size += size
	return true
}

// plainText returns a text without comments, and with continued lines joined.
func plainText(content string) string {
	content = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(content)
	return strings.ReplaceAll(commentPattern.ReplaceAllString(content, ""), "\\\n", " ")
}

// mentionsIn returns the absolute paths in a text, without those in URLs.
func mentionsIn(content string) (mentions []string) {
	for _, pattern := range []*regexp.Regexp{mentionPattern, blankPattern} {
		for _, found := range pattern.FindAllStringSubmatch(content, -1) {
			if !strings.HasPrefix(found[1], "//") {
				mentions = append(mentions, found[1])
			}
		}
	}
	return mentions
}

// follow looks at what a mention leads to. It adds the directories of members, and returns the
// files that may be texts. A mention with wildcards leads to each path that matches.
func (t *texts) follow(mention string) (files []string) {
	mention = path.Clean(mention)
	if t.seen[mention] || len(mention) >= unix.PathMax { // longer than the kernel follows
		return nil
	}
	t.seen[mention] = true
	if !t.count(1) || t.isSkipped(mention) {
		return nil
	}
	t.checkMount(mention)
	matches, err := t.scan.root.Glob(mention, t.isSkipped)
	if err != nil {
		t.addUnread(mention, err)
	}
	if len(matches) > 1 && !t.count(len(matches)-1) {
		return nil
	}
	for _, at := range matches {
		info, err := t.scan.root.Stat(at)
		switch {
		case hostfs.IsAbsent(err), errors.Is(err, syscall.ENAMETOOLONG):
		case err != nil:
			t.addUnread(at, err)
		case info.IsDir():
			t.addDir(at)
		case info.Mode().IsRegular() && info.Size() <= maxTextSize && !isCertificate(at):
			files = append(files, at)
		}
	}
	return files
}

// count counts mentions, and reports whether they are followed.
func (t *texts) count(mentions int) bool {
	if t.mentions+mentions > maxMentions {
		t.skip(fmt.Sprintf("its files mention more than %d paths", maxMentions))
		return false
	}
	t.mentions += mentions
	return true
}

// isSkipped reports whether a path is not followed: that of the kernel, which has no data, or one
// that may hang.
func (t *texts) isSkipped(name string) bool {
	at := t.scan.foreignMount(name)
	if at != "" && !isOfKernel(name) && !isOfKernel(at) {
		t.skip(name + " is on a file system of a network or of another program")
	}
	return at != "" || isOfKernel(name)
}

func (t *texts) skip(why string) {
	if !slices.Contains(t.skipped, why) {
		t.skipped = append(t.skipped, why)
	}
}

// dropIns returns mentions of the files that add to YAML files, as those of k3s and RKE2 do.
func dropIns(files []string) (mentions []string) {
	for _, file := range files {
		if ext := path.Ext(file); ext == ".yaml" || ext == ".yml" {
			mentions = append(mentions, file+".d/*")
		}
	}
	return mentions
}

// isOfKernel reports whether a path is that of a device or of the kernel's own files.
func isOfKernel(name string) bool {
	return slices.ContainsFunc([]string{"/dev", "/proc", "/sys"}, func(dir string) bool {
		return strings.HasPrefix(name+"/", dir+"/")
	})
}

func isCertificate(file string) bool {
	return slices.Contains([]string{".crt", ".pem", ".key"}, path.Ext(file))
}

// addDir adds a directory if it contains a member, and so the directories in it where etcd and the
// programs that contain it place their data.
func (t *texts) addDir(dir string) {
	candidates := []string{dir, path.Join(dir, "etcd"), path.Join(dir, "server/db/etcd")}
	byDefault, err := t.scan.root.Glob(path.Join(dir, "*.etcd"), t.isSkipped)
	if err != nil {
		t.addUnread(dir, err)
	}
	for _, dir := range append(candidates, byDefault...) {
		if t.isSkipped(dir) {
			continue
		}
		t.checkMount(dir)
		has, err := hasMember(t.scan.root, dir)
		if err != nil {
			t.addUnread("the data directory "+dir, err)
		}
		if info, err := t.scan.root.Stat(dir); has && err == nil {
			t.dirs = append(t.dirs, memberDir{dir, info})
		}
	}
}

// checkMount adds a reason, once, if a path is on a file system that is not mounted.
func (t *texts) checkMount(name string) {
	if err := t.scan.mountProblem(name); err != nil && !slices.Contains(t.unread, err.Error()) {
		t.unread = append(t.unread, err.Error())
	}
}

func (t *texts) addUnread(what string, err error) {
	t.unread = append(t.unread, fmt.Sprintf("%s: %v", what, hostfs.Reason(err)))
}

// hostPath returns the host's path for a path that a container or a unit may have.
func (t *texts) hostPath(name string) string {
	longest := t.bindOf(name)
	if longest == "" {
		return name
	}
	return path.Join(t.binds[longest], strings.TrimPrefix(name, longest))
}

// bindOf returns the longest path in binds that is name or above it, or "".
func (t *texts) bindOf(name string) string {
	for at := name; len(name) < unix.PathMax && at != path.Dir(at); at = path.Dir(at) {
		if t.binds[at] != "" {
			return at
		}
	}
	return ""
}

// knownSettings are the settings of etcd that are read from texts, and the directory that CoreOS
// and Flatcar mount where etcd looks up public authorities.
const knownSettings = "config-file|name|data-dir|wal-dir|listen-client-urls|advertise-client-urls|" +
	"initial-advertise-peer-urls|cert-file|key-file|trusted-ca-file|" +
	"peer-cert-file|peer-key-file|peer-trusted-ca-file|ssl-dir"

var (
	flagPattern = regexp.MustCompile(`(?m)(?:^|[\s"',=\[(])--?(` + knownSettings + `)[=\s]\s*` + valuePattern)
	// variablePattern also matches the variables of etcdctl.
	variablePattern = regexp.MustCompile(`\b(ETCD_(?:` +
		strings.ToUpper(strings.ReplaceAll(knownSettings, "-", "_")) + `)|ETCDCTL_(?:CACERT|CERT|KEY))=` + valuePattern)
)

// valuePattern matches the value of a setting without its quotes.
const valuePattern = `\\?["']*([^\s"'\\]+)`

// settings returns the flags and the variables of etcd in the texts, and the last file with
// variables that is not one of files. The last value of a setting counts. A value with a part that
// only a running shell or systemd knows is left out. In a text with a container engine, a name can
// be that of the container.
func (t *texts) settings() (flags, env etcdSettings, envFile string) {
	flags, variables := etcdSettings{}, map[string]string{}
	for _, text := range t.all {
		for _, found := range flagPattern.FindAllStringSubmatch(text.content, -1) {
			if value := strings.TrimRight(found[2], ",]}"); isKnownText(value) {
				flags[found[1]] = value
			}
		}
		found := variablePattern.FindAllStringSubmatch(text.content, -1)
		for _, variable := range found {
			if isKnownText(variable[2]) {
				variables[variable[1]] = variable[2]
			}
		}
		if len(found) > 0 && !slices.Contains(t.files, text.file) {
			envFile = text.file
		}
	}
	if t.isIsolated {
		delete(flags, "name")
	}
	return flags, envSettings(variables), envFile
}

func isKnownText(value string) bool { return !strings.ContainsAny(value, "$*`(") }

var (
	// isolationPattern matches what gives a server another root directory than the host's.
	isolationPattern = regexp.MustCompile(`(?m)(?:^|[\s"'/;&|(])(?:docker(?:-compose)?|podman|nerdctl|ctr|rkt|crictl|` +
		`runc|crun|lxc|chroot|unshare|nsenter|bwrap|proot|systemd-nspawn)(?:[\s"']|$)|^[ \t]*Root(?:Directory|Image)[ \t]*=`)
	// placePattern matches the settings that lead to the data.
	placePattern = regexp.MustCompile(
		`(data-dir|DATA_DIR|config-file|--config|CONFIG_FILE)["']?[=:\s][ \t]*\\?["']*([^\s"'\\]*)(\\[^\n"'])?`)
	// placeVariable matches a value that is one variable with the name of such a setting.
	placeVariable = regexp.MustCompile(`^\$\$?\{?(\w*(?:DATA_DIR|CONFIG_FILE))\}?$`)
)

// places returns the data directories that the texts set, by the host's paths. isCertain is false
// if the data may be in another place, also if a path has a character that ends a mention, so that
// it was not followed.
func (t *texts) places(isHost func(dir string) bool) (dirs []string, isCertain bool) {
	var all strings.Builder
	for _, text := range t.all {
		all.WriteString(text.content + "\n")
	}
	isCertain = len(t.unread) == 0
	seen := map[string]bool{}
	for _, found := range placePattern.FindAllStringSubmatch(all.String(), -1) {
		if seen[found[0]] {
			continue
		}
		seen[found[0]] = true
		variable := placeVariable.FindStringSubmatch(found[2])
		if variable != nil && strings.Contains(all.String(), variable[1]+"=") {
			continue // its own value is a place too
		}
		value := strings.TrimRight(found[2], ",]};)")
		at := t.hostPath(value)
		isPath := path.IsAbs(at) && len(at) < unix.PathMax && isKnownText(value) && found[3] == ""
		if !isPath || !t.seen[path.Clean(at)] || t.scan.foreignMount(at) != "" || !isHost(value) {
			isCertain = false
		} else if strings.HasSuffix(strings.ToLower(found[1]), "dir") {
			dirs = append(dirs, at)
		}
	}
	return dirs, isCertain
}
