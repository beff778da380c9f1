package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
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
	t.Chdir(root)
	tests, words := testsOf(t)
	for page, c := range map[string]struct {
		rules   func(text string) []string
		atLeast int
	}{
		"docs/verdict.md": {rowsOf, 40},
		"docs/holding.md": {sectionsOf, 40},
	} {
		t.Run(page, func(t *testing.T) {
			rules := c.rules(read(t, page))
			require.Greater(t, len(rules), c.atLeast)
			for _, rule := range rules {
				testRule(t, rule, tests, words)
			}
		})
	}
}

// rowsOf returns the rules of a page that has them in tables.
func rowsOf(text string) []string {
	var rules []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| rule ") {
			rules = append(rules, line)
		}
	}
	return rules
}

// sectionsOf returns the rules of a page that has each below a heading, in one line.
func sectionsOf(text string) []string {
	sections := strings.Split(text, "\n### ")[1:]
	for i, section := range sections {
		rule, _, _ := strings.Cut(section, "\n## ")
		sections[i] = strings.Join(strings.Fields(rule), " ")
	}
	return sections
}

func testRule(t *testing.T, rule string, tests map[string]bool, words map[string]map[string]bool) {
	t.Helper()
	named := regexp.MustCompile("`(\\w+)\\.((?:Test|Fuzz)\\w+)`(?: \"([^\"]+)\")?").FindAllStringSubmatch(rule, -1)
	require.NotEmpty(t, named, "no test is named: %s", rule)
	for _, n := range named {
		require.True(t, tests[n[1]+"."+n[2]], "there is no test %s.%s", n[1], n[2])
		require.True(t, n[3] == "" || words[n[1]][n[3]], "package %s has no case %q", n[1], n[3])
	}
	for _, file := range regexp.MustCompile("`((?:pkg|internal|manifests|docs)/[^` ]+)`").FindAllStringSubmatch(rule, -1) {
		require.FileExists(t, filepath.FromSlash(file[1]))
	}
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
	for _, file := range traceFiles(t) {
		words["simulation"][strings.TrimSuffix(filepath.Base(file), ".txt")] = true
	}
	return tests, words
}

func traceFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("test/simulation/testdata/traces/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	return files
}

// TestTraces checks that a comment in a test or in a file of a trace tells what happened in each
// trace: "F5: words", or "F5, F6: words".
func TestTraces(t *testing.T) {
	t.Chdir(root)
	files := traceFiles(t)
	for file := range sources(t) {
		if strings.HasSuffix(file, "_test.go") {
			files = append(files, file)
		}
	}
	told, highest := map[int]bool{}, 0
	heading := regexp.MustCompile(`(?m)^\s*(?://|#) ((?:F\d+[a-f]?, )*F\d+[a-f]?):(?: \S+){4}`)
	for _, file := range files {
		for _, found := range heading.FindAllStringSubmatch(read(t, file), -1) {
			for name := range strings.SplitSeq(found[1], ", ") {
				number, err := strconv.Atoi(strings.Trim(name, "Fabcdef"))
				require.NoError(t, err)
				told[number], highest = true, max(highest, number)
			}
		}
	}
	for number := 1; number <= max(highest, 98); number++ {
		require.True(t, told[number], "no comment in a test begins with F%d and says what happened", number)
	}
}
