package holdfast

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/holdfast-dev/holdfast/"

// arrows is the picture of docs/architecture.md as data: which packages of ours each package may import. Adding a
// package means drawing its arrows here. testenv is open to every test, to what is below test/, and to nothing else.
func arrows() map[string][]string {
	return map[string][]string{
		"api/v1alpha1":         nil,
		"pkg/protect":          {"api/v1alpha1"},
		"pkg/readiness":        nil,
		"pkg/spc":              nil,
		"pkg/openstack":        nil,
		"internal/host":        {"internal/smallfile", "pkg/protect", "pkg/readiness"},
		"internal/etcdprobe":   {"internal/smallfile", "api/v1alpha1", "pkg/protect"},
		"internal/smallfile":   nil,
		"internal/apiaccess":   nil,
		"internal/buildinfo":   nil,
		"internal/nodepatch":   {"pkg/readiness"},
		"internal/agent":       {"api/v1alpha1", "pkg/openstack", "pkg/protect", "pkg/readiness", "pkg/spc", "internal/nodepatch"},
		"internal/holdwatch":   {"pkg/readiness", "internal/nodepatch"},
		"internal/ledger":      {"api/v1alpha1", "pkg/protect"},
		"internal/admission":   {"api/v1alpha1", "pkg/protect"},
		"internal/spcapi":      {"internal/smallfile", "pkg/spc"},
		"internal/servingcert": nil,
		"internal/testenv":     {"api/v1alpha1"},
		"cmd/agent":            {"*"},
		"cmd/webhook":          {"*"},
		"cmd/uninstall":        {"internal/nodepatch", "pkg/openstack", "pkg/protect", "pkg/readiness", "pkg/spc"},
		"test/site":            {"internal/testenv"},
		"test/demo":            {"*"},
		"test/bench":           {"*"},
		"test/bench/watcher":   nil,
		"test/storm":           {"*"},
		"test/e2e":             {"api/v1alpha1", "pkg/protect", "pkg/readiness"},
		"test/e2e/echo":        nil,
		"test/spcserver":       {"pkg/spc"},
		"test/spcserver/cmd":   {"pkg/spc", "test/spcserver"},
		"manifests":            {"pkg/readiness"},

		// Tests alone: random histories against the whole webhook.
		"internal/ledger/history": {"api/v1alpha1", "pkg/protect", "internal/ledger", "internal/admission"},
	}
}

// calm lists what the pure packages may import: no files, network, clocks to wait on, contexts or logs.
func calm() []string {
	return []string{
		"cmp", "encoding/json", "errors", "fmt", "maps", "math", "net", "net/netip", "net/url", "regexp", "slices", "sort",
		"strconv", "strings", "time", "unicode",
		"k8s.io/api/core/v1", "k8s.io/apimachinery/pkg/apis/meta/v1", "k8s.io/apimachinery/pkg/types",
	}
}

func TestImportsFollowTheArrows(t *testing.T) {
	for file, imports := range sources(t) {
		dir, test := path.Dir(file), strings.HasSuffix(file, "_test.go")
		allowed, known := arrows()[dir]
		if dir == "." || strings.HasPrefix(dir, "tools") {
			continue
		}
		if !test {
			require.True(t, known, "%s: package %s has no arrows; draw them in deps_test.go and docs/architecture.md", file, dir)
		}
		for _, imported := range imports {
			ours, isOurs := strings.CutPrefix(imported, module)
			switch {
			case test && (ours == "internal/testenv" || ours == "test/spcserver" || ours == "test/site" || ours == dir):
			case isOurs:
				require.True(t, slices.Contains(allowed, "*") || slices.Contains(allowed, ours) || ours == dir,
					"%s imports %s: no arrow points from %s to %s", file, imported, dir, ours)
				require.False(t, !test && ours == "internal/testenv" && !strings.HasPrefix(dir, "test/"), "%s imports the test environment", file)
			case strings.HasPrefix(dir, "pkg/") && !test:
				require.Contains(t, calm(), imported, "%s: %s is pure and may not import %s", file, dir, imported)
			}
		}
	}
}

// sources returns the imports of every Go file of this module, by slash-separated path.
func sources(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (p == "tools" || p == "bin" || (strings.HasPrefix(d.Name(), ".") && p != ".")) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), p, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		imports := []string{}
		for _, spec := range parsed.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			imports = append(imports, imported)
		}
		found[filepath.ToSlash(p)] = imports
		return nil
	})
	require.NoError(t, err)
	require.NotEmpty(t, found)
	return found
}

// Each module that we name ourselves earns its place in one line of docs/decisions.md.
func TestEveryDirectDependencyIsExplained(t *testing.T) {
	mod, err := os.ReadFile("go.mod")
	require.NoError(t, err)
	decisions, err := os.ReadFile("docs/decisions.md")
	require.NoError(t, err)
	for line := range strings.Lines(string(mod)) {
		module, isRequired := strings.CutPrefix(line, "\t")
		if !isRequired || strings.Contains(line, "// indirect") {
			continue
		}
		module, _, _ = strings.Cut(module, " ")
		require.Contains(t, string(decisions), "`"+module+"`", "docs/decisions.md says nothing of %s", module)
	}
}
