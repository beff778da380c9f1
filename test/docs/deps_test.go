package docs

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/holdfast-dev/holdfast/"

// TestAgentImports: the packages of the agent import neither the typed client nor
// controller-runtime. These contain all types of Kubernetes, and the agent runs on every node
// (docs/decisions.md, 20).
func TestAgentImports(t *testing.T) {
	t.Chdir(root)
	imports := map[string][]string{}
	for file, all := range sources(t) {
		if !strings.HasSuffix(file, "_test.go") {
			imports[path.Dir(file)] = append(imports[path.Dir(file)], all...)
		}
	}
	seen := map[string]bool{}
	var visit func(dir string)
	visit = func(dir string) {
		if seen[dir] {
			return
		}
		seen[dir] = true
		for _, imported := range imports[dir] {
			if ours, isOurs := strings.CutPrefix(imported, module); isOurs {
				visit(ours)
			}
			for _, large := range []string{"sigs.k8s.io/controller-runtime/", "k8s.io/client-go/kubernetes"} {
				require.False(t, strings.HasPrefix(imported, large), "%s, a part of the agent, imports %s", dir, imported)
			}
		}
	}
	visit("cmd/agent")
	require.True(t, seen["internal/shared/nodepatch"])
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

// TestDependencies checks that docs/decisions.md explains each direct dependency.
func TestDependencies(t *testing.T) {
	t.Chdir(root)
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
		require.Contains(t, string(decisions), "`"+module+"`", "docs/decisions.md does not explain %s", module)
	}
}
