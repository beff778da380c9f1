package holdfast

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// What the documents name must be there: files, overlays, and the agent's flags about holding.
func TestDocumentsAgreeWithWhatIsShipped(t *testing.T) {
	usage, err := os.ReadFile("cmd/agent/usage.go")
	require.NoError(t, err)
	link := regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
	overlay := regexp.MustCompile(`manifests/(?:overlays/[\w-]+|base\S*?\.yaml)`)
	flag := regexp.MustCompile(`--(?:hold|gates|network-plugin|flannel|trust-durable|cni)[\w-]*`)
	pages := 0
	require.NoError(t, filepath.WalkDir("docs", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".md" {
			return err
		}
		pages++
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, to := range link.FindAllStringSubmatch(string(text), -1) {
			_, err := os.Stat(filepath.Join(filepath.Dir(path), to[1]))
			require.NoError(t, err, "%s links to %s", path, to[1])
		}
		for _, named := range overlay.FindAllString(string(text), -1) {
			_, err := os.Stat(named)
			require.NoError(t, err, "%s names %s", path, named)
		}
		for _, named := range flag.FindAllString(string(text), -1) {
			require.Contains(t, string(usage), " "+named, "%s names %s", path, named)
		}
		if filepath.Base(filepath.Dir(path)) == "autoscalers" {
			require.LessOrEqual(t, strings.Count(string(text), "\n"), 60, path)
		}
		return nil
	}))
	require.Greater(t, pages, 10)
}

// Every metric stands in a page, and every metric in a page is one.
func TestMetricsAreDocumented(t *testing.T) {
	metric := regexp.MustCompile(`holdfast_[a-z]+(?:_[a-z]+)+`)
	documented, made := map[string]bool{}, map[string]bool{}
	for _, page := range []string{"docs/operations.md", "docs/spc.md"} {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, name := range metric.FindAllString(string(text), -1) {
			documented[name] = true
		}
	}
	for _, dir := range []string{"internal", "cmd"} {
		require.NoError(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			for _, name := range regexp.MustCompile(`"holdfast_[a-z_]+"`).FindAllString(string(text), -1) {
				made[strings.Trim(name, `"`)] = true
			}
			for _, name := range regexp.MustCompile(`gauge\("([a-z_]+)"`).FindAllStringSubmatch(string(text), -1) {
				made["holdfast_spc_"+name[1]] = true
			}
			return nil
		}))
	}
	delete(made, "holdfast_spc_") // the prefix
	require.Greater(t, len(made), 25)
	for name := range made {
		require.True(t, documented[name], "no page tells of metric %s", name)
	}
	for name := range documented {
		require.True(t, made[name], "a page tells of metric %s, which there is not", name)
	}
}

// The Ansible files are what people run: they parse, each task has a name and one module of Ansible's own, and they write
// the marker and the unit that the agent looks for.
func TestAnsibleFiles(t *testing.T) {
	usage, err := os.ReadFile("cmd/agent/usage.go")
	require.NoError(t, err)
	files, err := filepath.Glob("docs/ansible/*.yml")
	require.NoError(t, err)
	require.Len(t, files, 4)
	written := map[string]bool{}
	for _, file := range files {
		for _, task := range tasksOf(t, file) {
			modules := 0
			for key, arguments := range task {
				if !strings.HasPrefix(key, "ansible.builtin.") {
					require.Contains(t, []string{"name", "register", "check_mode", "hosts", "gather_facts", "become"}, key, file)
					continue
				}
				modules++
				if parameters, ok := arguments.(map[string]any); ok && parameters["dest"] != nil {
					written[parameters["dest"].(string)] = true
				}
			}
			require.NotEmpty(t, task["name"], file)
			require.LessOrEqual(t, modules, 1, file)
			require.True(t, modules == 1 || task["hosts"] != nil, "%s: %v does nothing", file, task["name"])
		}
	}
	require.Len(t, written, 2)
	marker := regexp.MustCompile(`(?s)--network-plugin-marker=FILE.*?default (\S+)\)`).FindStringSubmatch(string(usage))
	require.NotNil(t, marker)
	require.True(t, written[marker[1]], "%s is the agent's default, and none of %v", marker[1], written)
	for path := range written {
		if unit, is := strings.CutPrefix(path, "/etc/systemd/system/"); is {
			text, err := os.ReadFile(filepath.Join("docs/ansible", unit))
			require.NoError(t, err)
			require.Contains(t, string(text), "\nRemainAfterExit=yes\n", "otherwise systemd may forget that it ran")
			page, err := os.ReadFile("docs/network-plugin.md")
			require.NoError(t, err)
			require.Contains(t, string(page), "--gates=unit:"+unit)
		}
	}
}

// tasksOf returns the plays of a playbook with their tasks, or the tasks of a file of tasks.
func tasksOf(t *testing.T, file string) []map[string]any {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var found []map[string]any
	require.NoError(t, yaml.UnmarshalStrict(text, &found), file)
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
