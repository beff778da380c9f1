package docs

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// TestAnsibleFiles checks that each file parses, that each task has a name and one module of
// Ansible's own, and that the files write the marker and the unit that the agent reads.
func TestAnsibleFiles(t *testing.T) {
	t.Chdir(root)
	usage := usageOf(t, "cmd/agent/flags.go")
	files, err := filepath.Glob("docs/ansible/*.yml")
	require.NoError(t, err)
	require.Len(t, files, 4)
	written, removed, stopped := map[string]bool{}, map[string]int{}, map[string]int{}
	for _, file := range files {
		for _, task := range tasksOf(t, file) {
			modules := 0
			for key, arguments := range task {
				if !strings.HasPrefix(key, "ansible.builtin.") {
					require.Contains(t, []string{"name", "register", "check_mode", "hosts", "gather_facts", "become"}, key, file)
					continue
				}
				modules++
				if command, is := arguments.(string); is && key == "ansible.builtin.shell" {
					stopped[command]++
				}
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
			require.Equal(t, map[string]int{"systemctl stop " + unit + " || true": 2}, stopped,
				"a unit that an earlier run in this boot has started opens the gate")
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
