package testenv

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// modulePath is how the root of this repository is known.
const modulePath = "github.com/holdfast-dev/holdfast"

// Binary returns the absolute path of bin/<name> at the root of the repository, which is looked for from the working
// directory upwards.
func Binary(name string) (string, error) {
	root, err := RepositoryRoot()
	if err != nil {
		return "", err
	}
	path := filepath.Join(root, "bin", name)
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return "", fmt.Errorf("finding %s: there is no bin/%s; run \"make tools\"", name, name)
	}
	return path, nil
}

// RepositoryRoot returns the directory of the go.mod of this module, at or above the working directory.
func RepositoryRoot() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("finding the repository: %w", err)
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("finding the repository: %w", err)
		}
		if first, _, _ := strings.Cut(string(text), "\n"); strings.TrimSpace(first) == "module "+modulePath {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("finding the repository: no go.mod of %s at or above %s", modulePath, start)
		}
	}
}
