package holdfast

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestHostFiles checks that the packages which read the files of the host open them below its root
// directory, or below that of a process (hostfs.Root). A link of the host, followed in the agent's
// own root directory, would lead to a file of the agent.
func TestHostFiles(t *testing.T) {
	opening := []string{
		"os.Open", "os.OpenFile", "os.ReadFile", "os.ReadDir", "os.Stat", "os.Lstat", "os.DirFS", "os.OpenRoot",
		"filepath.Glob", "filepath.Walk", "filepath.WalkDir", "filepath.EvalSymlinks", "unix.Open", "unix.Openat2",
		"unix.Stat", "syscall.Open", "hostfs.ReadFile", "tls.LoadX509KeyPair",
	}
	for _, dir := range []string{"internal/etcddetect", "internal/etcdprobe"} {
		files, err := filepath.Glob(dir + "/*.go")
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
			require.NoError(t, err)
			ast.Inspect(parsed, func(n ast.Node) bool {
				if call, ok := n.(*ast.SelectorExpr); ok {
					if of, ok := call.X.(*ast.Ident); ok {
						name := of.Name + "." + call.Sel.Name
						require.False(t, slices.Contains(opening, name), "%s uses %s", file, name)
					}
				}
				return true
			})
		}
	}
}
