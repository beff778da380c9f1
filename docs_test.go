package holdfast

import (
	"bytes"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// TestMain adds the flag with which TestSamples writes the samples in the pages instead of
// comparing them.
func TestMain(m *testing.M) {
	flag.Bool("update", false, "write the samples in the pages")
	os.Exit(m.Run())
}

// pages returns the text of every Markdown page, by slash-separated path.
func pages(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, file := range []string{"README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "RELEASE.md"} {
		found[file] = read(t, file)
	}
	require.NoError(t, filepath.WalkDir("docs", func(path string, _ fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".md" {
			found[filepath.ToSlash(path)] = read(t, path)
		}
		return err
	}))
	require.Greater(t, len(found), 50)
	return found
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(text)
}

// usageOf returns the help of a program, which is the constant usage in this file.
func usageOf(t *testing.T, file string) string {
	t.Helper()
	_, text, isFound := strings.Cut(read(t, file), "const usage = `")
	require.True(t, isFound, "%s has no usage", file)
	text, _, _ = strings.Cut(text, "`")
	return text
}

// goCode returns the text of the Go files below these directories, without tests.
func goCode(t *testing.T, dirs ...string) string {
	t.Helper()
	var code strings.Builder
	for file := range sources(t) {
		below := slices.ContainsFunc(dirs, func(dir string) bool { return strings.HasPrefix(file, dir+"/") })
		if below && !strings.HasSuffix(file, "_test.go") {
			code.WriteString(read(t, file))
		}
	}
	return code.String()
}

// TestOverlaysAndFlags checks that the overlays and the flags in the pages
// exist, and that the pages about autoscalers are short.
func TestOverlaysAndFlags(t *testing.T) {
	usage := usageOf(t, "cmd/agent/flags.go")
	overlay := regexp.MustCompile(`manifests/(?:overlays/[\w-]+|base\S*?\.yaml)`)
	holdFlag := regexp.MustCompile(`--(?:hold|gates|network-plugin|flannel|trust-durable|cni)[\w-]*`)
	for path, text := range pages(t) {
		for _, named := range overlay.FindAllString(text, -1) {
			_, err := os.Stat(named)
			require.NoError(t, err, "%s names %s", path, named)
		}
		for _, named := range holdFlag.FindAllString(text, -1) {
			require.Contains(t, usage, " "+named, "%s names %s", path, named)
		}
		if strings.HasPrefix(path, "docs/autoscalers/") {
			require.LessOrEqual(t, strings.Count(text, "\n"), 60, path)
		}
	}
}

// TestLinks checks that the target of each link exists, with its heading.
func TestLinks(t *testing.T) {
	all := pages(t)
	link := regexp.MustCompile(`\]\(([^)#:]*)(?:#([^)]*))?\)`)
	for path, text := range all {
		for _, l := range link.FindAllStringSubmatch(withoutFences(text), -1) {
			target := filepath.ToSlash(filepath.Join(filepath.Dir(path), l[1]))
			if l[1] == "" {
				target = path
			}
			_, err := os.Stat(target)
			require.NoError(t, err, "%s links to %s", path, l[1])
			isHeading := l[2] == "" || slices.Contains(anchors(all[target]), l[2])
			require.True(t, isHeading, "%s links to %s#%s, which is no heading", path, target, l[2])
		}
	}
}

// TestPaths checks that the files and directories that the maintainers' pages name exist.
func TestPaths(t *testing.T) {
	named := regexp.MustCompile("`((?:api|cmd|internal|manifests|pkg|test|tools)/[\\w./-]*)`")
	for _, page := range []string{"CONTRIBUTING.md", "docs/architecture.md", "docs/decisions.md"} {
		for _, path := range named.FindAllStringSubmatch(read(t, page), -1) {
			_, err := os.Stat(path[1])
			require.NoError(t, err, "%s names %s", page, path[1])
		}
	}
}

// anchors returns the anchors that GitHub makes from the headings of a page.
func anchors(page string) []string {
	var found []string
	dropped := regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	for line := range strings.Lines(withoutFences(page)) {
		title, isHeading := strings.CutPrefix(strings.TrimLeft(line, "#"), " ")
		if isHeading && strings.HasPrefix(line, "#") {
			title = dropped.ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), "")
			found = append(found, strings.ReplaceAll(title, " ", "-"))
		}
	}
	return found
}

func withoutFences(page string) string {
	return regexp.MustCompile("(?ms)^ *```.*?^ *```$").ReplaceAllString(page, "")
}

// TestIndex checks that each page is in the index of its directory.
func TestIndex(t *testing.T) {
	all := pages(t)
	for path := range all {
		dir, name := filepath.Split(path)
		if name != "README.md" && dir != "" {
			require.Contains(t, all[dir+"README.md"], "]("+name, "%sREADME.md does not list %s", dir, name)
		}
	}
}

// TestGlossary checks that each type in the glossary exists.
func TestGlossary(t *testing.T) {
	declared := typeNames(t)
	found := 0
	for line := range strings.Lines(read(t, "docs/glossary.md")) {
		types, isType := strings.CutPrefix(line, "Type: ")
		if !isType {
			continue
		}
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(types, -1) {
			found++
			require.True(t, declared[name[1]], "there is no type %s", name[1])
		}
	}
	require.Greater(t, found, 35)
}

// typeNames returns the types of this module, as package.Type, without those of tests.
func typeNames(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for file := range sources(t) {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(parsed, func(n ast.Node) bool {
			if spec, isType := n.(*ast.TypeSpec); isType {
				found[parsed.Name.Name+"."+spec.Name.Name] = true
			}
			return true
		})
	}
	return found
}

// TestReasons checks that each reason of a verdict and of a hold, and each event, is
// documented.
func TestReasons(t *testing.T) {
	all := pages(t)
	verdicts := goCode(t, "pkg/protect", "internal/admission")
	reasons := regexp.MustCompile(`[ .]Reason = "(\w+)"`).FindAllStringSubmatch(verdicts, -1)
	require.Greater(t, len(reasons), 10)
	for _, r := range reasons {
		require.Contains(t, all["docs/refusals/README.md"], r[1])
		require.Contains(t, all["docs/metrics.md"], "`"+r[1]+"`")
	}
	holds := regexp.MustCompile(`(?m)^\t\w+ += "([A-Z][A-Za-z]+)"$`).FindAllStringSubmatch(goCode(t, "pkg/readiness"), -1)
	require.Greater(t, len(holds), 30)
	for _, r := range holds {
		documented := false
		for _, page := range []string{"holds/README.md", "node-contract.md", "events.md", "network-plugin.md"} {
			documented = documented || strings.Contains(all["docs/"+page], r[1])
		}
		require.True(t, documented, "no page explains %s", r[1])
	}
	code := goCode(t, "pkg", "internal")
	event := regexp.MustCompile(`(?m)^\t(?:Event|Reason)\w* += "([A-Z]\w+)"$`)
	// The reasons of package protect are those of a condition, not of events.
	for _, e := range event.FindAllStringSubmatch(goCode(t, "pkg/readiness", "pkg/spc", "pkg/openstack", "internal"), -1) {
		require.Contains(t, all["docs/events.md"], "`"+e[1]+"`")
	}
	for _, e := range regexp.MustCompile("`([A-Z]\\w+)`").FindAllStringSubmatch(all["docs/events.md"], -1) {
		isCode := strings.Contains(code, `"`+e[1]+`"`)
		require.True(t, isCode, "docs/events.md names %s, which is not in the code", e[1])
	}
}

// TestFlags checks that docs/flags.md has the flags of the programs, and no others.
func TestFlags(t *testing.T) {
	page, usage := read(t, "docs/flags.md"), usageOf(t, "cmd/agent/flags.go")+usageOf(t, "cmd/webhook/usage.go")
	name := regexp.MustCompile(`--[a-z][a-z-]+`)
	flags := regexp.MustCompile(`(?m)^  (--[a-z][a-z-]+)`).FindAllStringSubmatch(usage, -1)
	require.Greater(t, len(flags), 40)
	for _, f := range flags {
		require.Contains(t, name.FindAllString(page, -1), f[1])
	}
	for _, f := range name.FindAllString(page, -1) {
		require.Contains(t, append(name.FindAllString(usage, -1), "--version"), f)
	}
}

// TestAPI checks that docs/api.md has every field of the EtcdCluster.
func TestAPI(t *testing.T) {
	var crd struct {
		Spec struct {
			Versions []struct {
				Schema struct{ OpenAPIV3Schema schema }
			}
		}
	}
	require.NoError(t, yaml.Unmarshal([]byte(read(t, "manifests/base/crd/holdfast.dev_etcdclusters.yaml")), &crd))
	root := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
	fields := slices.Concat(root.Properties["spec"].fields(), root.Properties["status"].fields())
	require.Greater(t, len(fields), 30)
	page := read(t, "docs/api.md")
	for _, field := range fields {
		require.Regexp(t, `[`+"`"+`.]`+field+"`", page)
	}
}

type schema struct {
	Properties map[string]schema
	Items      *schema
}

// fields returns the names of all fields, except those of conditions, which are Kubernetes'.
func (s schema) fields() []string {
	var names []string
	for name, field := range s.Properties {
		names = append(names, name)
		if name != "conditions" {
			names = append(names, field.fields()...)
		}
	}
	if s.Items != nil {
		names = append(names, s.Items.fields()...)
	}
	return names
}

// TestMetrics checks that each metric is in a page, and that each metric in a
// page exists.
func TestMetrics(t *testing.T) {
	metric := regexp.MustCompile(`holdfast_[a-z]+(?:_[a-z]+)+`)
	documented, made := map[string]bool{}, map[string]bool{}
	for _, page := range []string{"docs/metrics.md", "docs/operations.md", "docs/spc.md"} {
		for _, name := range metric.FindAllString(read(t, page), -1) {
			documented[name] = true
		}
	}
	code := goCode(t, "internal", "cmd")
	for _, name := range regexp.MustCompile(`"holdfast_[a-z_]+"`).FindAllString(code, -1) {
		made[strings.Trim(name, `"`)] = true
	}
	for _, name := range regexp.MustCompile(`gauge\("([a-z_]+)"`).FindAllStringSubmatch(code, -1) {
		made["holdfast_spc_"+name[1]] = true
	}
	delete(made, "holdfast_spc_") // the prefix
	require.Greater(t, len(made), 25)
	for name := range made {
		require.True(t, documented[name], "no page documents the metric %s", name)
	}
	for name := range documented {
		require.True(t, made[name], "a page documents the metric %s, which does not exist", name)
	}
}

// TestSamples compares the sample messages in the pages with those that the code makes. A
// sample is the fenced block that follows a comment: `<!-- refusal: NAME -->` for a golden
// file of pkg/protect/quorum, `<!-- warning: NAME -->` for the warning of one that allows,
// `<!-- can-remove: NAME -->` for the same from the plugin, `<!-- condition: REASON -->` for a
// condition of a hold. With -update it writes the samples.
func TestSamples(t *testing.T) {
	block := regexp.MustCompile("(?m)^<!-- (refusal|warning|can-remove|condition): ([\\w-]+)(, first line)? -->\n" +
		"```\\w+\n((?s:.*?))```$")
	const dryRun = "dry run: decided from the last observations, without a fresh probe: "
	conditions, used := holdConditions(), map[string]bool{}
	for path, page := range pages(t) {
		updated := block.ReplaceAllStringFunc(page, func(found string) string {
			b := block.FindStringSubmatch(found)
			kind, name, before := b[1], b[2], b[4]
			var text string
			switch {
			case kind == "condition":
				require.Contains(t, conditions, name, path)
				used[name] = true
				text = conditions[name]
			case kind == "warning":
				message, warning, _ := strings.Cut(golden(t, name), "\nWarning: ")
				text = "$ kubectl delete node w1 --dry-run=server\n" +
					wrapped("Warning: holdfast.dev/QuorumKept: "+dryRun+message) + wrapped("Warning: "+warning) +
					"node \"w1\" deleted (server dry run)\n"
			case kind == "can-remove":
				message, warning, _ := strings.Cut(golden(t, name), "\nWarning: ")
				text = "$ kubectl holdfast can-remove w1 --wait --timeout=15m\n" +
					"waiting, 0s of 15m0s: w1: no (QuorumWouldBeLost)\n" +
					"waiting, 40s of 15m0s: w1: unknown (CannotSee)\n" +
					"NODE   MAY GO   REASON\nw1     yes      QuorumKept\n" +
					"\n" + wrapped("w1: "+dryRun+message) + "\n" + wrapped("w1: "+warning)
			case b[3] != "":
				text = wrapped(firstLine(golden(t, name)))
			default:
				text = wrapped(golden(t, name))
			}
			command, _, isCall := strings.Cut(before, "denied the request:\n")
			if isCall {
				text = command + "denied the request:\n" + text
			}
			return strings.TrimSuffix(found, before+"```") + text + "```"
		})
		if flag.Lookup("update").Value.String() == "true" && updated != page {
			require.NoError(t, os.WriteFile(path, []byte(updated), 0o600))
		} else {
			require.Equal(t, updated, page, "%s: run `go test . -run TestSamples -update`", path)
		}
	}
	for name := range conditions {
		require.True(t, used[name], "no page shows the condition %s", name)
	}
}

func golden(t *testing.T, name string) string {
	t.Helper()
	return strings.TrimRight(read(t, "pkg/protect/quorum/testdata/messages/"+name+".txt"), "\n") + "\n"
}

func firstLine(text string) string {
	first, _, _ := strings.Cut(text, "\n")
	return first + "\n"
}

// wrapped breaks lines at column 98, and indents what follows by four more. It does not
// break commands.
func wrapped(text string) string {
	const width = 98
	var out strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		rest := strings.TrimLeft(line, " ")
		indent := line[:len(line)-len(rest)]
		more, isCommand := indent+"    ", strings.HasPrefix(rest, "kubectl ")
		for !isCommand && len(indent)+len(rest) > width {
			at := strings.LastIndex(rest[:width-len(indent)], " ")
			if at < 0 {
				break
			}
			out.WriteString(indent + rest[:at] + "\n")
			rest, indent = rest[at+1:], more
		}
		out.WriteString(indent + rest + "\n")
	}
	return out.String()
}

// TestAnsibleFiles checks that each file parses, that each task has a name and one module of
// Ansible's own, and that the files write the marker and the unit that the agent reads.
func TestAnsibleFiles(t *testing.T) {
	usage := usageOf(t, "cmd/agent/flags.go")
	files, err := filepath.Glob("docs/ansible/*.yml")
	require.NoError(t, err)
	require.Len(t, files, 4)
	written, removed := map[string]bool{}, map[string]int{}
	for _, file := range files {
		for _, task := range tasksOf(t, file) {
			modules := 0
			for key, arguments := range task {
				if !strings.HasPrefix(key, "ansible.builtin.") {
					require.Contains(t, []string{"name", "register", "check_mode", "hosts", "gather_facts", "become"}, key, file)
					continue
				}
				modules++
				parameters, _ := arguments.(map[string]any)
				if parameters["dest"] != nil {
					written[parameters["dest"].(string)] = true
				}
				if parameters["state"] == "absent" {
					removed[parameters["path"].(string)]++
				}
			}
			require.NotEmpty(t, task["name"], file)
			require.LessOrEqual(t, modules, 1, file)
			require.True(t, modules == 1 || task["hosts"] != nil, "%s: %v does nothing", file, task["name"])
		}
	}
	require.Len(t, written, 2)
	marker := regexp.MustCompile(`(?s)--network-plugin-marker=FILE.*?default (\S+)\)`).FindStringSubmatch(usage)
	require.NotNil(t, marker)
	require.True(t, written[marker[1]], "%s is the agent's default, and not one of %v", marker[1], written)
	require.Equal(t, map[string]int{marker[1]: 2}, removed, "the playbooks remove a marker of an earlier run")
	for path := range written {
		if unit, is := strings.CutPrefix(path, "/etc/systemd/system/"); is {
			text := read(t, filepath.Join("docs/ansible", unit))
			require.Contains(t, text, "\nRemainAfterExit=yes\n", "otherwise systemd may forget that it ran")
			require.Contains(t, read(t, "docs/network-plugin.md"), "--gates=unit:"+unit)
		}
	}
}

// tasksOf returns the plays of a playbook with their tasks, or the tasks of a file of tasks.
func tasksOf(t *testing.T, file string) []map[string]any {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var found []map[string]any
	require.NoError(t, yaml.UnmarshalStrict(bytes.TrimSpace(text), &found), file)
	for _, play := range found {
		inner, ok := play["tasks"].([]any)
		if !ok {
			continue
		}
		delete(play, "tasks")
		for _, task := range inner {
			found = append(found, task.(map[string]any))
		}
	}
	return found
}
