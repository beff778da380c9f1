package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRules checks that the files and tests exist that docs/verdict.md and docs/holding.md name
// for each rule.
func TestRules(t *testing.T) {
	tests, words := testsOf(t)
	for page, atLeast := range map[string]int{"docs/verdict.md": 45, "docs/holding.md": 37} {
		t.Run(page, func(t *testing.T) { testRules(t, page, atLeast, tests, words) })
	}
}

func testRules(t *testing.T, page string, atLeast int, tests map[string]bool, words map[string]map[string]bool) {
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	named := regexp.MustCompile("`(\\w+)\\.((?:Test|Fuzz)\\w+)`(?: \"([^\"]+)\")?")
	file := regexp.MustCompile("`((?:pkg|internal|manifests|docs)/[^` ]+)`")
	rows := 0
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| rule ") || strings.HasPrefix(line, "| | ") {
			continue
		}
		rows++
		found := named.FindAllStringSubmatch(line, -1)
		require.NotEmpty(t, found, "no test is named: %s", line)
		for _, f := range found {
			require.True(t, tests[f[1]+"."+f[2]], "there is no test %s.%s", f[1], f[2])
			require.True(t, f[3] == "" || words[f[1]][f[3]], "package %s has no case %q", f[1], f[3])
		}
		for _, f := range file.FindAllStringSubmatch(line, -1) {
			require.FileExists(t, filepath.FromSlash(f[1]))
		}
	}
	require.Greater(t, rows, atLeast)
}

// testsOf returns the tests of this module, as package.Test, and by package all strings in its
// test files. The name of a package is the last part of its path, or the name in its package
// clause if they differ.
func testsOf(t *testing.T) (tests map[string]bool, words map[string]map[string]bool) {
	t.Helper()
	tests, words = map[string]bool{}, map[string]map[string]bool{}
	for file := range sources(t) {
		if !strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, name := range []string{path.Base(path.Dir(file)), parsed.Name.Name} {
			if words[name] == nil {
				words[name] = map[string]bool{}
			}
			ast.Inspect(parsed, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.FuncDecl:
					tests[name+"."+n.Name.Name] = n.Recv == nil || tests[name+"."+n.Name.Name]
				case *ast.BasicLit:
					if word, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
						words[name][word] = true
					}
				}
				return true
			})
		}
	}
	return tests, words
}
