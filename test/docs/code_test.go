package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// commentColumn is the last column in which a comment may end; a tab is one column wide.
const commentColumn = 100

// TestCommentsEndAtColumn100 checks the width of comments: long lines are hard to read in a
// diff. Directives may be longer, because they cannot be wrapped.
func TestCommentsEndAtColumn100(t *testing.T) {
	t.Chdir(root)
	var long []string
	eachFile(t, func(files *token.FileSet, _ string, file *ast.File) {
		for _, group := range file.Comments {
			for _, comment := range group.List {
				directive := strings.HasPrefix(comment.Text, "//") && !strings.HasPrefix(comment.Text, "// ")
				if directive || strings.HasPrefix(comment.Text, "// +") {
					continue
				}
				start := files.Position(comment.Pos())
				for i, line := range strings.Split(comment.Text, "\n") {
					width := utf8.RuneCountInString(line)
					if i == 0 {
						width += start.Column - 1
					}
					if width > commentColumn {
						long = append(long, fmt.Sprintf("%s:%d: column %d", start.Filename, start.Line+i, width))
					}
				}
			}
		}
	})
	if len(long) > 0 {
		t.Errorf("%d lines of comments end after column %d:\n%s", len(long), commentColumn, strings.Join(long, "\n"))
	}
}

// TestExamples checks that each package of pkg/ that is not for tests has a runnable example.
func TestExamples(t *testing.T) {
	t.Chdir(root)
	hasExample := map[string]bool{}
	eachFile(t, func(_ *token.FileSet, name string, file *ast.File) {
		dir := path.Dir(name)
		if !strings.HasPrefix(dir, "pkg/") || path.Base(dir) == "quorumtest" {
			return
		}
		hasExample[dir] = hasExample[dir] || slices.ContainsFunc(file.Decls, func(d ast.Decl) bool {
			f, isFunc := d.(*ast.FuncDecl)
			return isFunc && strings.HasPrefix(f.Name.Name, "Example")
		})
	})
	require.NotEmpty(t, hasExample)
	for dir, found := range hasExample {
		require.True(t, found, "package %s has no example", dir)
	}
}

// TestDecisionsStartNoGoroutine checks that pkg/ starts no goroutine: `make test` runs its tests
// without the race detector.
func TestDecisionsStartNoGoroutine(t *testing.T) {
	t.Chdir(root)
	eachFile(t, func(files *token.FileSet, name string, file *ast.File) {
		if !strings.HasPrefix(name, "pkg/") || strings.HasSuffix(name, "_test.go") {
			return
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if statement, isGo := n.(*ast.GoStmt); isGo {
				t.Errorf("%s starts a goroutine", files.Position(statement.Pos()))
			}
			return true
		})
	})
}

// eachFile parses every Go file of this module that is not generated.
func eachFile(t *testing.T, visit func(files *token.FileSet, name string, file *ast.File)) {
	t.Helper()
	files := token.NewFileSet()
	for _, name := range slices.Sorted(maps.Keys(sources(t))) {
		file, err := parser.ParseFile(files, name, nil, parser.ParseComments|parser.SkipObjectResolution)
		require.NoError(t, err)
		if !ast.IsGenerated(file) {
			visit(files, name, file)
		}
	}
}
