package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	utilversion "k8s.io/apimachinery/pkg/util/version"

	"github.com/holdfast-dev/holdfast/internal/testenv/process"
)

// TestPage checks that the page has the results of the last run, for the versions in tools/.
func TestPage(t *testing.T) {
	root, err := process.RepositoryRoot()
	require.NoError(t, err)
	versions, err := pinned(root)
	require.NoError(t, err)
	all, err := recorded(root)
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(root, page))
	require.NoError(t, err)
	updated, err := insert(string(text), versions, all)
	require.NoError(t, err)
	require.Equal(t, updated, string(text), "run `make test-kubernetes-versions`, which writes %s", page)
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	require.NoError(t, err)
	require.Contains(t, string(makefile), "\nNEWEST := "+versions[0]+"\n")
}

// TestLibraries checks that the client libraries are not newer than every API server under test.
func TestLibraries(t *testing.T) {
	root, err := process.RepositoryRoot()
	require.NoError(t, err)
	versions, err := pinned(root)
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	library := regexp.MustCompile(`(?m)^\tk8s\.io/api v0\.(\d+)\.`).FindStringSubmatch(string(text))
	require.NotNil(t, library)
	minor, err := strconv.Atoi(library[1])
	require.NoError(t, err)
	require.LessOrEqual(t, uint(minor), utilversion.MustParseSemantic(versions[0]).Minor(),
		"k8s.io/api in go.mod is newer than every API server under test: add that version to tools/")
}

func TestFindPackages(t *testing.T) {
	t.Chdir("../..")
	found, err := findPackages(t.Context())
	require.NoError(t, err)
	require.Contains(t, found, module+"manifests")
	require.NotContains(t, found, module+"test/versions")
}

func TestParseEvents(t *testing.T) {
	const events = `
{"Action":"run","Package":"github.com/holdfast-dev/holdfast/manifests","Test":"TestA"}
{"Action":"run","Package":"github.com/holdfast-dev/holdfast/manifests","Test":"TestA/one"}
{"Action":"run","Package":"github.com/holdfast-dev/holdfast/manifests","Test":"TestA/two"}
{"Action":"output","Package":"github.com/holdfast-dev/holdfast/manifests","Test":"TestA/two","Output":"=== RUN\n"}
{"Action":"output","Package":"github.com/holdfast-dev/holdfast/manifests","Test":"TestA/two","Output":"SKIPPED: none\n"}
{"Action":"pass","Package":"github.com/holdfast-dev/holdfast/manifests","Test":"TestA/one"}
{"Action":"skip","Package":"github.com/holdfast-dev/holdfast/manifests","Test":"TestA/two"}
{"Action":"pass","Package":"github.com/holdfast-dev/holdfast/manifests","Test":"TestA"}
{"Action":"run","Package":"github.com/holdfast-dev/holdfast/manifests","Test":"TestB"}
{"Action":"run","Package":"github.com/holdfast-dev/holdfast/manifests","Test":"TestB/one"}
{"Action":"fail","Package":"github.com/holdfast-dev/holdfast/manifests","Test":"TestB/one"}
{"Action":"fail","Package":"github.com/holdfast-dev/holdfast/manifests","Test":"TestB"}
{"Action":"fail","Package":"github.com/holdfast-dev/holdfast/manifests"}
{"Action":"fail","Package":"github.com/holdfast-dev/holdfast/charts"}
`
	found, err := parseEvents([]byte(events))
	require.NoError(t, err)
	require.Equal(t, map[string]*packageResult{
		"manifests": {Passed: 1, Failed: []string{"TestB/one"}, Skipped: map[string]string{"TestA/two": "none"}},
		"charts":    {Failed: []string{"the package"}, Skipped: map[string]string{}},
	}, found)
}

func TestRender(t *testing.T) {
	const reason = "none"
	all := results{
		"v1.9.1": {"charts": {
			Passed: 4, Skipped: map[string]string{"TestC": reason, "TestD": "no root", "TestE": "no root"},
		}},
		"v1.36.3": {
			"charts":    {Passed: 5, Skipped: map[string]string{"TestD": "no root", "TestE": "no root"}},
			"manifests": {Passed: 2, Failed: []string{"TestB/one"}},
		},
	}
	want := strings.TrimPrefix(`
| tests | v1.36.3 | v1.9.1 |
|---|---|---|
| passed | 7 | 4 |
| failed | `+"`TestB/one` of `manifests`"+` | – |
| packages that were not tested | – | `+"`manifests`"+` |

| tests that did not run | on | because |
|---|---|---|
| `+"`TestD` of `charts`, `TestE` of `charts`"+` | all | no root |
| `+"`TestC` of `charts`"+` | v1.9.1 | none |
`, "\n")
	versions := []string{"v1.36.3", "v1.9.1"}
	require.Equal(t, want, render(versions, all))
	updated, err := insert("before\n"+begin+"old\n"+end+"after\n", versions, all)
	require.NoError(t, err)
	require.Equal(t, "before\n"+begin+want+end+"after\n", updated)
	_, err = insert("before\n", versions, all)
	require.Error(t, err)
}
