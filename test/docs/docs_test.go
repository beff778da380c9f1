// Package docs tests the documents against the code, and what holds for all code of this module.
package docs

import (
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

// root is where each test changes to. `go test` takes results from its cache unless it sees which
// files a test opens, and it sees no change of the directory before the first test.
const root = "../.."

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
	t.Chdir(root)
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
	t.Chdir(root)
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

// TestPaths checks that the files and directories that the maintainers' pages name exist. A name
// with braces, such as `cmd/{agent,guard}/main.go`, is one for each part between them.
func TestPaths(t *testing.T) {
	t.Chdir(root)
	const parts = "(?:\\{([\\w,-]+)\\}([\\w./-]*))?"
	named := regexp.MustCompile("`((?:api|cmd|internal|manifests|pkg|test|tools)/[\\w./-]*)" + parts + "`")
	for _, page := range []string{"CONTRIBUTING.md", "docs/architecture.md", "docs/decisions.md"} {
		for _, path := range named.FindAllStringSubmatch(read(t, page), -1) {
			for part := range strings.SplitSeq(path[2], ",") {
				_, err := os.Stat(path[1] + part + path[3])
				require.NoError(t, err, "%s names %s", page, path[0])
			}
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
	t.Chdir(root)
	all := pages(t)
	for path := range all {
		dir, name := filepath.Split(path)
		if name != "README.md" && dir != "" {
			require.Contains(t, all[dir+"README.md"], "]("+name, "%sREADME.md does not list %s", dir, name)
		}
	}
}

// TestGlossary checks that the glossary is short, and that each type in it exists.
func TestGlossary(t *testing.T) {
	t.Chdir(root)
	page, declared := read(t, "docs/glossary.md"), typeNames(t)
	require.LessOrEqual(t, strings.Count(page, "\n### "), 45)
	found := 0
	for line := range strings.Lines(page) {
		types, isType := strings.CutPrefix(line, "Type: ")
		if !isType {
			continue
		}
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(types, -1) {
			found++
			require.True(t, declared[name[1]], "there is no type %s", name[1])
		}
	}
	require.Greater(t, found, 25)
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
	t.Chdir(root)
	all := pages(t)
	verdicts := goCode(t, "pkg/protect", "internal/control/admission")
	reasons := regexp.MustCompile(`[ .]Reason = "(\w+)"`).FindAllStringSubmatch(verdicts, -1)
	require.Greater(t, len(reasons), 10)
	for _, r := range reasons {
		require.Contains(t, all["docs/refusals/README.md"], r[1])
		require.Contains(t, all["docs/metrics.md"], "`"+r[1]+"`")
	}
	hold := regexp.MustCompile(`(?m)^\t\w+(?: RecordReason)? += "([A-Z][A-Za-z]+)"$`)
	holds := hold.FindAllStringSubmatch(goCode(t, "pkg/readiness"), -1)
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
	t.Chdir(root)
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

// TestAPI checks that docs/api.md has every field of the API.
func TestAPI(t *testing.T) {
	t.Chdir(root)
	cluster := crdSchema(t, "holdfast.dev_etcdclusters.yaml").Properties
	reported := crdSchema(t, "holdfast.dev_etcdobservations.yaml").Properties
	for _, field := range []string{"apiVersion", "kind", "metadata"} {
		delete(reported, field)
	}
	fields := slices.Concat(cluster["spec"].fields(), cluster["status"].fields(), schema{Properties: reported}.fields())
	require.Greater(t, len(fields), 45)
	page := read(t, "docs/api.md")
	for _, field := range fields {
		require.Regexp(t, `[`+"`"+`.]`+field+"`", page)
	}
}

func crdSchema(t *testing.T, file string) schema {
	t.Helper()
	var crd struct {
		Spec struct {
			Versions []struct {
				Schema struct{ OpenAPIV3Schema schema }
			}
		}
	}
	require.NoError(t, yaml.Unmarshal([]byte(read(t, "manifests/base/crd/"+file)), &crd))
	return crd.Spec.Versions[0].Schema.OpenAPIV3Schema
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
	t.Chdir(root)
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
